"""What is said of a running access daemon: each second its parts are asked, and its status and numbers follow."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from gateway.access.access_key import AccessKey
from gateway.access.broker import BrokerFiles
from gateway.access.broker_logs import BrokerLogs
from gateway.access.clock_watch import ClockWatch
from gateway.access.core import AccessCore
from gateway.access.held_entries import HeldEntries
from gateway.access.issued import IssuedReader
from gateway.access.list_intake import ListIntake
from gateway.access.loop import AccessLoop
from gateway.access.metrics import AccessMetrics
from gateway.access.publisher import AccessPublisher
from gateway.access.region_enrolment import RegionEnrolment
from gateway.access.seen_entries import SeenEntries
from gateway.access.status import AccessStatus, RefusedEnrolment
from waybill.identity.followed_operators import FollowedOperators
from waybill.identity.registry_reader import RegistryReader
from waybill.pulsar.compacted_topic import CompactedTopicReader
from waybill.pulsar.token_watch import TokenWatch

__all__ = ["AccessReport", "ReportedParts"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedParts:
    """The parts of a daemon that are asked."""

    region: str
    files: BrokerFiles
    core: AccessCore
    loop: AccessLoop
    reader: RegistryReader[Any]
    lists: CompactedTopicReader
    intake: ListIntake
    issued: IssuedReader
    operators: FollowedOperators | None
    key: AccessKey
    publisher: AccessPublisher
    seen: SeenEntries
    held: HeldEntries
    clock_watch: ClockWatch
    tokens: TokenWatch
    enrolment: RegionEnrolment | None
    logs: BrokerLogs
    metrics: AccessMetrics


class AccessReport:
    """`status` is the last one that was made; other threads read it."""

    def __init__(self, parts: ReportedParts, clock: Callable[[], float] = time.time) -> None:
        self._parts, self._clock = parts, clock
        started_at = datetime.now(UTC).isoformat(timespec="seconds")
        self._first = self.status = AccessStatus(region=parts.region, pid=os.getpid(), started_at=started_at)

    def make(self) -> None:
        """Ask all parts now."""
        parts = self._parts
        parts.logs.read()
        parts.logs.end_sessions()
        problem, ends = next(self._problems(), ""), parts.key.ends
        standing, registry, enrolment = parts.reader.standing, parts.reader.registry, parts.enrolment
        counts = registry.counts
        self.status = self._first.model_copy(
            update={
                "healthy": not problem,
                "last_error": problem,
                "registry_current": standing.is_current,
                "registry_unreachable_since_s": standing.unreachable_since_s,
                "devices_known": len(registry),
                "devices_closed": parts.core.closed_devices,
                "certificates_revoked": parts.core.revoked_certificates,
                "rules_version": parts.files.rules_version,
                # From the file: what the broker has counts, not what we meant to give it.
                "lists": {one.issuer: one.next_update.timestamp() for one in parts.files.lists.values()},
                "key_ends_s": ends.timestamp() if ends is not None else None,
                "entries_refused": counts.refused,
                "entries_refused_by": dict(counts.refused_by),
                "entries_outranked": counts.outranked,
                "list_bytes": parts.publisher.list_bytes,
                "devices_left_open": parts.core.left_open,
                "answers_dropped": parts.publisher.dropped + parts.core.confirmations_dropped,
                "topics_held": dict(parts.publisher.topics_held + (enrolment.topics_held if enrolment else Counter())),
                "entries_published_again": parts.held.displaced.published.total(),
                "last_entry_refused": registry.last_refused,
                "enrolments": dict(enrolment.outcomes) if enrolment else {},
                "enrolments_refused": [RefusedEnrolment.of(one) for one in (enrolment.refusals if enrolment else ())],
                **parts.logs.status,
                **parts.metrics.counts,
            }
        )
        parts.metrics.mirrored.entries.set(counts.taken, "taken")
        parts.metrics.take(self.status)

    def _problems(self) -> Iterator[str]:
        """What is wrong now, what matters most first."""
        parts = self._parts
        standing, lists = parts.reader.standing, parts.lists.standing
        found = (
            parts.loop.problem,
            parts.tokens.ended,
            parts.clock_watch.problem,
            "" if standing.is_current else f"registry: {standing.problem}",
            "" if lists.is_current else f"revocation lists: {lists.problem}",
            parts.operators.problem if parts.operators is not None else "",
            parts.loop.not_applied,
            parts.issued.problem,
            standing.last_unhandled,
            parts.reader.registry.problem,
            parts.core.problem,
            lists.last_unhandled,
            parts.intake.problem,
            parts.key.problem(datetime.fromtimestamp(self._clock(), UTC)),
            parts.publisher.problem,
            parts.seen.problem,
            parts.held.problem,
            parts.held.displaced.problem,
            "; ".join(parts.enrolment.problems) if parts.enrolment is not None else "",
            parts.tokens.ending,
        )
        return (one for one in found if one)
