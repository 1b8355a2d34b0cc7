"""Follows one kind of reference data on its topic, and builds what a daemon uses from it.

Nothing is built before the topic was read to its end. A change is then built in a thread, and replaces the former rules
when it is complete.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final, Generic, NamedTuple, TypeVar

import structlog

from gateway.config import ClusterSource, ReferenceSource
from geo.reference.in_force import (
    InForce,
    JudgedPublication,
    Made,
    RefusedVersion,
    Usable,
    held_versions,
    judged_publication,
    publication_order,
)
from geo.reference.messages import (
    ANYBODY,
    NAMESPACE,
    TOPICS,
    Kind,
    QuarantinedMessage,
    ReferenceTrust,
    check_content,
    named_message,
    quarantined_publication,
    read_messages,
)
from waybill.identity.errors import SignatureFault
from waybill.identity.registry_messages import FollowedOperators
from waybill.identity.signatures import is_far_ahead
from waybill.pulsar.compacted_topic import CompactedTopicReader, TopicMessage, TopicStanding
from waybill.pulsar.pulsar_client import PulsarAccess

# Published reference data of one kind, with the centre's rules.

KEPT_OF_A_VERSION: Final = 4
"""Publications that are kept of a version, and the last usable one."""
_FAR_AHEAD: Final = "ahead: it was published by a clock more than five minutes ahead"
_WORDS: Final = frozenset({"ahead", *SignatureFault})


class ReferencePublications(Generic[Made]):
    """Publications of one kind. One thread adds messages, another may ask what is in force. `trust`: the trusted
    keys now.

    `usable` parses a text, or raises one of `faults`. `messages_refused`: by the first word of the reason.
    """

    def __init__(
        self,
        kind: Kind,
        usable: Callable[[str], Usable[Made]],
        faults: tuple[type[Exception], ...],
        trust: Callable[[], ReferenceTrust],
    ) -> None:
        self.kind, self._usable, self._faults, self._trust = kind, usable, faults, trust
        self._lock = threading.Lock()
        self._kept: dict[tuple[str, str], list[JudgedPublication[Made]]] = {}
        self._digests: dict[str, str] = {}
        self.messages_refused: Counter[str] = Counter()
        self.last_refused = ""

    def __len__(self) -> int:
        return len(self._digests)

    def take(self, message: TopicMessage, now_ms: float) -> QuarantinedMessage | None:
        """Add a message, which may come again; returns the refusal if it is no publication."""
        read = read_messages(self.kind, [_columns(message)], self._trust(), self._digests)
        refused = [named_message(row) for row in read.quarantined]
        for row in read.publications:
            try:
                self._keep(row, now_ms)
            except ValueError as fault:
                refused.append(named_message(quarantined_publication(row, str(fault))))
        if not refused:
            return None
        self._note_refused(refused[0])
        return refused[0]

    def begin_again(self) -> None:
        """All messages come again. Accepted ones stay accepted, as at the centre."""
        self.messages_refused.clear()

    def in_force(self) -> InForce[Made]:
        with self._lock:
            kept = [one for several in self._kept.values() for one in several]
        return held_versions(sorted(kept, key=lambda one: publication_order(one.row)))

    def _keep(self, row: dict[str, Any], now_ms: float) -> None:
        name = row["publication_id"]
        known = self._digests.get(name)
        check_content(row, known or row["digest"])
        if is_far_ahead(name, now_ms):
            raise ValueError(_FAR_AHEAD)
        if known is not None:
            return
        judged = judged_publication(row, lambda _, body: self._usable(body), self._faults)
        # The texts of 100,000 fences would take as much memory as their index.
        slim = {key: row[key] for key in ("kind", "id", "publication_id", "published_at", "place")}
        one = JudgedPublication(slim, judged.written, judged.usable, judged.reason)
        with self._lock:
            self._digests[name] = row["digest"]
            several = self._kept.setdefault((row["id"], judged.written), [])
            several.append(one)
            several.sort(key=lambda one: publication_order(one.row))
            gone = {one.row["publication_id"] for one in _superseded(several)}
            several[:] = [one for one in several if one.row["publication_id"] not in gone]
            # A compacted topic does not repeat them, and their digests would stay forever.
            for old in gone:
                del self._digests[old]

    def _note_refused(self, refused: QuarantinedMessage) -> None:
        self.messages_refused[_reason_word(refused.reason)] += 1
        self.last_refused = str(refused)


def _superseded(several: list[JudgedPublication[Made]]) -> list[JudgedPublication[Made]]:
    """The publications of one version, in order, that can no longer matter."""
    usable = next((one for one in reversed(several) if one.usable is not None), None)
    return [one for one in several[:-KEPT_OF_A_VERSION] if one is not usable]


def _reason_word(reason: str) -> str:
    word = reason.partition(":")[0]
    return word if word in _WORDS else "not-a-publication"


def _columns(message: TopicMessage) -> dict[str, Any]:
    """A message with the columns of the source `pulsar`; its publish time stands for its message id."""
    published_at = datetime.fromtimestamp(message.published_ms / 1000, UTC)
    return {
        "key": message.key,
        "value": message.body,
        "properties": [*message.properties.items()],
        "publish_time": published_at,
        "message_id": f"{published_at:%Y-%m-%dT%H:%M:%SZ}",
        "malformed": None,
    }


Rules = TypeVar("Rules")

SETTLE_S: Final = 0.5
"""Rules are built after this time without a publication."""
MAX_SETTLE_S: Final = 5.0
"""Rules are built after this time, however many publications come."""
MAX_NAMED: Final = 100
"""Unusable publications in one log line."""
_TURN_S: Final = 0.1
_CLOSE_S: Final = 2.0
_LOG = structlog.get_logger("reference")


class ReferenceFacts(NamedTuple):
    """The state of one kind. `refused`: publications that cannot be used. `problem`: why it is not current; "" while it
    is.
    """

    held: int
    refused: tuple[RefusedVersion, ...]
    messages_refused: dict[str, int]
    last_refused: str
    unreachable_since_s: float | None
    problem: str


class ReferenceFollower(Generic[Made, Rules]):
    """`rules`: those in use; None before there are any. `make` builds them from what is in force.

    `operators`: the trusted keys; None: unsigned publications are accepted too.
    """

    def __init__(
        self,
        service_url: str,
        access: PulsarAccess,
        operators: FollowedOperators | None,
        publications: Callable[[Callable[[], ReferenceTrust]], ReferencePublications[Made]],
        make: Callable[[InForce[Made]], Rules],
    ) -> None:
        self._operators = operators
        self._publications = publications(self._trust)
        self._make = make
        self._reader = CompactedTopicReader(
            service_url,
            access,
            f"{NAMESPACE}/{TOPICS[self._publications.kind]}",
            self._on_message,
            self._on_standing,
            # Compaction keeps the last message of each key, which may be one that is refused.
            is_compacted=False,
            starts_anew=self._starts_anew,
        )
        self._changed, self._stop = threading.Event(), threading.Event()
        self._changed_s = 0.0
        name = f"builds {TOPICS[self._publications.kind]}"
        self._builder = threading.Thread(target=self._build, name=name, daemon=True)
        self._made: tuple[Rules, InForce[Made]] | None = None

    @property
    def rules(self) -> Rules | None:
        """The rules in use; None before the topic was read to its end for the first time."""
        return None if self._made is None else self._made[0]

    @property
    def is_running(self) -> bool:
        return self._reader.is_running and self._builder.is_alive()

    @property
    def in_force(self) -> InForce[Made] | None:
        """What the rules in use were built from."""
        return None if self._made is None else self._made[1]

    @property
    def reference_facts(self) -> ReferenceFacts:
        standing, found = self._reader.standing, self.in_force
        return ReferenceFacts(
            held=0 if found is None else len(found.held),
            refused=() if found is None else found.refused,
            messages_refused=dict(self._publications.messages_refused),
            last_refused=self._publications.last_refused,
            unreachable_since_s=standing.unreachable_since_s,
            problem=self._problem(standing),
        )

    def start(self) -> None:
        self._reader.start()
        self._builder.start()

    def close(self) -> None:
        self._stop.set()
        self._reader.close()
        self._builder.join(_CLOSE_S)

    def _problem(self, standing: TopicStanding) -> str:
        problem = standing.last_unhandled if standing.is_current else standing.problem or "not read to their end yet"
        problem = problem or ("" if self._made is not None else "rules are being made of them")
        return problem or (self._operators.problem if self._operators is not None else "")

    def _trust(self) -> ReferenceTrust:
        return ANYBODY if self._operators is None else ReferenceTrust(self._operators.keys)

    def _starts_anew(self) -> bool:
        if self._operators is None or not self._operators.look():
            return False
        self._publications.begin_again()
        return True

    def _on_message(self, message: TopicMessage) -> None:
        if refused := self._publications.take(message, time.time() * 1000):
            _LOG.warning("a message is not a publication", kind=self._publications.kind, refused=str(refused))
            return
        self._note_change()

    def _on_standing(self, standing: TopicStanding) -> None:
        if standing.is_current:
            self._note_change()

    def _note_change(self) -> None:
        self._changed_s = time.monotonic()
        self._changed.set()

    def _build(self) -> None:
        while not self._stop.is_set():
            if not self._changed.wait(_TURN_S) or not self._reader.standing.was_current:
                self._stop.wait(_TURN_S)
                continue
            self._wait_until_settled()
            self._changed.clear()
            began_s, in_force = time.monotonic(), self._publications.in_force()
            if self._made is not None and _publications_of(self._made[1]) == _publications_of(in_force):
                continue
            # The former rules stay in use until these are complete.
            rules = self._make(in_force)
            self._made = (rules, in_force)
            _LOG.info(
                "in force",
                kind=self._publications.kind,
                count=len(in_force.held),
                seconds=round(time.monotonic() - began_s, 3),
            )
            _log_refused(self._publications.kind, in_force.refused)

    def _wait_until_settled(self) -> None:
        if self._made is None:
            # The first rules are built at once.
            return
        ends_s = time.monotonic() + MAX_SETTLE_S
        while (now_s := time.monotonic()) < min(self._changed_s + SETTLE_S, ends_s) and not self._stop.is_set():
            self._stop.wait(min(_TURN_S, max(self._changed_s + SETTLE_S - now_s, 0.001)))


def follow_reference(
    cluster: ClusterSource,
    source: ReferenceSource,
    publications: Callable[[Callable[[], ReferenceTrust]], ReferencePublications[Made]],
    make: Callable[[InForce[Made]], Rules],
) -> ReferenceFollower[Made, Rules]:
    """Follow one kind on a cluster. Raises SettingsError for a file of keys that cannot be used."""
    # Each follower has its own copy, because `look` reports a change only once.
    operators = None if source.operators is None else FollowedOperators(source.operators)
    return ReferenceFollower(cluster.service_url, cluster.access, operators, publications, make)


def _publications_of(found: InForce[Any]) -> list[str]:
    return [*(one.row["publication_id"] for one in found.held), *(one.publication_id for one in found.refused)]


def _log_refused(kind: str, refused: tuple[RefusedVersion, ...]) -> None:
    if refused:
        named = [str(one) for one in refused[:MAX_NAMED]]
        more = max(len(refused) - MAX_NAMED, 0)
        _LOG.warning("publications that cannot be used", kind=kind, count=len(refused), refused=named, not_named=more)
