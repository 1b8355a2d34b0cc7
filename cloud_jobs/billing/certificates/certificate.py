"""The certificate of a device: whether the centre has everything that the device recorded in a period. Pure.

It relies on statements of the device: with each batch the device states up to which moment its head holds. The highest
received seq would say nothing about the records that a silent device still has.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from enum import StrEnum
from typing import Any, Final, NamedTuple

import orjson

from cloud_jobs.billing.certificates.decisions import Decision, accepting, in_effect
from cloud_jobs.billing.contracts import DoubtBounds
from cloud_jobs.billing.contracts.published import micros, moment_of
from cloud_jobs.lake.coverage import Coverage, SeqRanges, TenantDevice
from cloud_jobs.lake.snapshots import Reach
from cloud_jobs.lake.values import OdometerWay
from geo.reference.moments import stamp
from waybill.record import NO_FAULTS, IntervalSet
from waybill.record.record import EPOCH_RANDOM_BITS

# Doubts: unreadable messages and unknown ways that may make a complete period's sum wrong. Pure.

USUAL_BOUNDS: Final = DoubtBounds()
"""The defaults."""
UNKNOWN_TOPIC: Final = "unknown-topic"
_NO_VALUE: Final = "no-value"
_MIN_AFTER: Final = 60
"""Fewer messages on unknown topics after the last position are no doubt."""
_DROPPED: Final = "messages dropped by the vehicle's broker before the agent"


class Observed(NamedTuple):
    """What usage reports about a device and period apart from metered quantities.

    `messages`: readable ones: `positions`, customer `events` and signals. `kept`: positions used in tracks; `refused`:
    unusable positions that may hide distance. `driven_ms`: driven time. `unknown_ms`, `unknown_mm`: time and
    straight-line distance of gaps in which the device moved; `inferred_entries`: entries that must have happened in
    them. `far_off`: records with a wrong clock, in no hour, received since the period began. `unreadable`: raw messages
    by kind and reason. `positions_until`: end of the last quarter of an hour with a readable position ("");
    `unknown_after`: messages on unknown topics after it. `dropped`: messages that the vehicle's broker dropped.
    `odometer`: of a device with two readings.
    """

    messages: int = 0
    positions: int = 0
    kept: int = 0
    refused: int = 0
    driven_ms: int = 0
    unknown_ms: int = 0
    unknown_mm: int = 0
    inferred_entries: int = 0
    events: int = 0
    far_off: int = 0
    unreadable: tuple[tuple[str, int], ...] = ()
    positions_until: str = ""
    unknown_after: int = 0
    dropped: int = 0
    odometer: OdometerWay | None = None

    @property
    def signals(self) -> int:
        return self.messages - self.positions - self.events

    @property
    def faults(self) -> int:
        """Messages that could not be read and should have been."""
        return sum(count for reason, count in self.unreadable if reason not in NO_FAULTS)

    @property
    def no_faults(self) -> dict[str, int]:
        """Raw messages that are no fault, by reason."""
        return {reason: count for reason, count in self.unreadable if reason in NO_FAULTS}

    @property
    def reasons(self) -> str:
        return listed(self.unreadable)

    @property
    def amounts(self) -> dict[str, int]:
        """The amounts that a decision accepts; it does not cover more of any of them."""
        raw = sum(count for _, count in self.unreadable)
        names = ("far_off", "refused", "unknown_ms", "unknown_mm", "inferred_entries", "unknown_after", "dropped")
        unknown = {name: getattr(self, name) for name in names}
        no_value = 0 if self.signals else self.no_faults.get(_NO_VALUE, 0)
        alone = {"raw_alone": 0 if self.positions else raw, "no_value_alone": no_value}
        return {"unreadable": self.faults, **alone, **unknown}

    def document(self) -> dict[str, Any]:
        way = None if self.odometer is None else self.odometer.document()
        return self._asdict() | {"unreadable": dict(self.unreadable), "odometer": way, "remarks": [*self.remarks]}

    @property
    def remarks(self) -> tuple[str, ...]:
        """Remarks to show with the state of a device."""
        lost = f"{self.dropped:,} {_DROPPED}" if self.dropped else ""
        return tuple(filter(None, (lost, "" if self.odometer is None else str(self.odometer))))

    @property
    def unknown(self) -> str:
        """The unknown distance as text; "" if there is none."""
        if not self.unknown_mm:
            return ""
        count = self.inferred_entries
        made = f", {count:,} {'entry' if count == 1 else 'entries'} inferred" if count else ""
        return f"{_km(self.unknown_mm)} and {_clock(self.unknown_ms)} of the way are unknown{made}"

    def doubts(self, bounds: DoubtBounds) -> tuple[str, ...]:
        """Why a sum of the period may be wrong, as texts; none within the bounds."""
        found = []
        if self.unreadable and not self.messages:
            found.append(f"none of its messages could be read: {self.reasons}")
        elif not self.positions and (others := self.no_faults.keys() - {_NO_VALUE}):
            # signals and events do not replace positions
            reasons = [one for one in self.unreadable if one[0] in others]
            found.append(f"none of its positions could be read: {listed(reasons)}")
        if self.messages:
            if not self.signals and (count := self.no_faults.get(_NO_VALUE, 0)):
                found.append(f"none of its signals could be read: {_NO_VALUE} {count:,}")
            found += self._unreadable_kinds(bounds)
        # a topic seen before is not the renamed topic of the positions
        before, after = self.no_faults.get(UNKNOWN_TOPIC, 0) - self.unknown_after, self.unknown_after
        if after > max(before, _MIN_AFTER) and after * 100 > bounds.unreadable_percent * (self.positions + after):
            came = f"although {after:,} messages on unknown topics came"
            found.append(f"no position could be read after {self.positions_until}, {came}")
        total = self.messages + self.faults + self.far_off
        if share := _beyond(self.far_off, total, bounds.unreadable_percent):
            found.append(f"{self.far_off:,} of {total:,} messages have an unusable time (wrong clock) ({share})")
        if share := _beyond(self.dropped, total + self.dropped, bounds.unreadable_percent):
            found.append(f"{self.dropped:,} {_DROPPED} ({share})")
        if share := _beyond(self.refused, self.positions, bounds.refused_percent):
            found.append(f"{self.refused:,} of {self.positions:,} positions cannot be used for any track ({share})")
        if share := _beyond(self.unknown_ms, self.driven_ms + self.unknown_ms, bounds.unknown_percent):
            found.append(f"{self.unknown} ({share.replace(',', ' of the driven time,')})")
        return tuple(found)

    def _unreadable_kinds(self, bounds: DoubtBounds) -> Iterator[str]:
        """Each kind by itself: a few lost positions would vanish among many signals, with all of the distance."""
        readable = {"position": self.positions, "event": self.events, "signal": self.signals}
        faults: dict[str, list[tuple[str, int]]] = {}
        for name, count in self.unreadable:
            kind, _, reason = name.rpartition("/")
            if reason not in NO_FAULTS:
                faults.setdefault(kind if kind in readable else "message", []).append((reason, count))
        for kind, reasons in faults.items():
            count = sum(one for _, one in reasons)
            total = count + readable.get(kind, self.messages)
            if share := _beyond(count, total, bounds.unreadable_percent):
                yield f"{count:,} of {total:,} {kind}s could not be read ({share}): {listed(reasons)}"


def _beyond(count: int, total: int, percent: Decimal) -> str:
    """The share and the accepted share as text; "" if the share is accepted."""
    if count * 100 <= percent * total:
        return ""
    return f"{count * 100 / total:.2f} %, {percent:f} % are accepted"


def listed(reasons: Iterable[tuple[str, int]]) -> str:
    return ", ".join(f"{reason} {count:,}" for reason, count in reasons)


def _km(mm: int) -> str:
    return f"{mm / 1_000_000:.2f} km"


def _clock(ms: int) -> str:
    minutes, seconds = divmod(round(ms / 1000), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{seconds:02} h"


# The state of each record stream of a device. Pure.

_US_PER_MS: Final = 1000
DRAWN_BY_CHANCE_US: Final = ((1 << 35 >> EPOCH_RANDOM_BITS) + 1) * _US_PER_MS
"""Without a set clock, a buffer's number is at most this much after the previous one (17 minutes)."""


class CertificateState(StrEnum):
    """The state of a device in a period: that of its worst stream. Ordered from best to worst."""

    COMPLETE = "complete"
    DECLARED_LOSS = "complete with declared loss"
    SILENT = "silent"
    OPEN = "open"
    DECIDED = "closed by decision"


_BEST_FIRST: Final = [*CertificateState]


def began_us(epoch: int) -> int:
    """When the buffer of an epoch was made, by the device's clock at that time, in µs since 1970."""
    return (epoch >> EPOCH_RANDOM_BITS) * _US_PER_MS


def stream_state(coverage: Coverage, end_us: int) -> CertificateState:
    """The state of one stream for all of its records before a moment (µs since 1970)."""
    if coverage.complete_until_us >= end_us or _is_stated_whole(coverage, end_us):
        return (
            CertificateState.DECLARED_LOSS
            if coverage.tombstones and coverage.declared_lost
            else CertificateState.COMPLETE
        )
    return CertificateState.OPEN if coverage.missing else CertificateState.SILENT


def relevant_streams(streams: Mapping[int, Coverage], start_us: int, end_us: int) -> dict[int, Coverage]:
    """The streams of a device that may hold records of the period, by epoch, in order.

    A stream is left out if a later buffer replaced it before the period: that buffer was made after its last statement.
    A buffer made after the period is left out if an earlier one remains, because until then the device wrote into that
    one.
    """
    # nearly all devices have one stream
    if len(streams) == 1:
        return dict(streams)
    ordered = dict(sorted(streams.items()))
    begun = _believed(ordered)
    left = {
        epoch: coverage
        for epoch, coverage in ordered.items()
        if not any(coverage.stated_us <= at <= start_us for later, at in begun.items() if later > epoch)
    }
    # if none is left, only later buffers are known, and they must account for the period
    earlier = any(began_us(epoch) < end_us for epoch in left)
    return {epoch: one for epoch, one in left.items() if not (earlier and begun.get(epoch, 0) >= end_us)}


def _believed(ordered: Mapping[int, Coverage]) -> dict[int, int]:
    """When buffers were made, for those whose number is reliable.

    Left out: numbers that may be a random step after the previous buffer's number, and numbers of a clock that was
    ahead of everything received from the device since.
    """
    found, before = dict[int, int](), -DRAWN_BY_CHANCE_US
    for epoch, coverage in ordered.items():
        # also for an unreliable number, because the next one may be a step after it
        at = began_us(epoch)
        if before + DRAWN_BY_CHANCE_US <= at <= coverage.stated_us:
            found[epoch] = at
        before = at
    return found


def _is_stated_whole(coverage: Coverage, end_us: int) -> bool:
    """Whether a statement of that moment or later was received together with all records up to its head."""
    return coverage.stated_us >= end_us and coverage.stated_head <= coverage.covered_through


_UNSEALED: Final = b'"digest":"\\u0000",'
_MAX_RANGES: Final = 20
_NO_REACH: Final = Reach()
_NOTHING: Final = Observed()


_CLOSED: Final = (CertificateState.COMPLETE, CertificateState.DECLARED_LOSS, CertificateState.DECIDED)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceCounts:
    """Records of a device that do not affect its state.

    `not_metered`: received in the period and not yet covered by usage. `may_be_more`: such records may have been erased
    since. `late_positions`: arrived after the positions around them were erased, so their distance is not metered.
    `conflicts`: arrived again with different content, in any period.
    """

    late_positions: int = 0
    not_metered: int = 0
    conflicts: int = 0
    may_be_more: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceCertificate:
    """What the centre knows of a device in [start, end) at one snapshot, with reasons.

    `stated_state`: the state without the decision that closes it. `since`: up to when a silent device accounted for
    everything; None: never. `received`, `missing`, `declared_lost` (by reason): of all streams that may hold records of
    the period, since a missing seq has no time; `missing` leaves out seqs above a head that was stated for the end.
    `settled_at`: up to when the device must account for its records, because later fixes affect the period.
    `doubts`: observations beyond the agreed bounds; `accepted`: the decision that accepts them.
    """

    tenant: str
    device: str
    start: datetime
    end: datetime
    state: CertificateState
    stated_state: CertificateState
    since: datetime | None = None
    received: int = 0
    missing: SeqRanges = field(default_factory=SeqRanges)
    declared_lost: tuple[tuple[str, SeqRanges], ...] = ()
    counts: DeviceCounts = field(default_factory=DeviceCounts)
    decision: Decision | None = None
    settled_at: datetime | None = None
    observed: Observed = _NOTHING
    doubts: tuple[str, ...] = ()
    accepted: Decision | None = None

    @property
    def of_device(self) -> TenantDevice:
        return TenantDevice(self.tenant, self.device)

    @property
    def is_final(self) -> bool:
        """Whether a bill may be final for this device: all of the period is known or decided, and metered."""
        return self.state in _CLOSED and not self.reasons

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why a bill is not final for this device; none if it may be."""
        found = [] if self.state is CertificateState.DECIDED else [*self.silence_or_gap]
        if self.counts.not_metered:
            found.append(f"{self.counts.not_metered:,} records are not metered yet")
        if self.counts.may_be_more:
            found.append("records that were not metered may be erased since")
        return (*found, *(() if self.accepted else self.doubts))

    @property
    def silence_or_gap(self) -> tuple[str, ...]:
        """What the device does not account for, regardless of decisions; none if it accounts for everything."""
        if self.stated_state is CertificateState.OPEN:
            return (f"{self.missing.count:,} records are missing: seqs {_shown(self.missing)}",)
        if self.stated_state is not CertificateState.SILENT:
            return ()
        if self.since is None:
            return ("never sent a statement" if self.received else "never sent anything",)
        if self.settled_at is not None and self.since >= self.end:
            return (f"silent since {stamp(self.since)}; fixes until {stamp(self.settled_at)} affect the period",)
        return (f"silent since {stamp(self.since)}",)

    def document(self) -> dict[str, Any]:
        content = self._content()
        return content | {"digest": _sealed(content)[0]}

    def sealed(self) -> tuple[str, str]:
        """The digest, and the canonical JSON of the document."""
        return _sealed(self._content())

    def digest(self) -> str:
        """SHA-256 (hex) of the canonical JSON (sorted keys, no spaces) without the digest."""
        return _sealed(self._content())[0]

    def _content(self) -> dict[str, Any]:
        return {
            "tenant": self.tenant,
            "device": self.device,
            "start": stamp(self.start),
            "end": stamp(self.end),
            "settled_at": stamp(self.settled_at or self.end),
            "state": self.state.value,
            "stated_state": self.stated_state.value,
            "since": None if self.since is None else stamp(self.since),
            "received": self.received,
            "missing": self.missing.document(),
            "declared_lost": {reason: seqs.document() for reason, seqs in self.declared_lost},
            "late_positions": self.counts.late_positions,
            "not_metered": self.counts.not_metered,
            "may_be_more": self.counts.may_be_more,
            "conflicts": self.counts.conflicts,
            "decision": None if self.decision is None else self.decision.document(),
            **self.observed.document(),
            "doubts": [*self.doubts],
            "accepted": None if self.accepted is None else self.accepted.document(),
        }


def _shown(seqs: SeqRanges) -> str:
    """The first ranges as text: a device may have a hundred thousand gaps."""
    ranges = [(epoch, bounds) for epoch, of in seqs for bounds in of.ranges]
    if len(ranges) <= _MAX_RANGES:
        return seqs.text()
    epochs = dict.fromkeys(epoch for epoch, _ in ranges[:_MAX_RANGES])
    first = {epoch: IntervalSet(one for of, one in ranges[:_MAX_RANGES] if of == epoch) for epoch in epochs}
    return f"{SeqRanges.of(first).text()} and {len(ranges) - _MAX_RANGES:,} more ranges, see the certificate"


def _sealed(content: dict[str, Any]) -> tuple[str, str]:
    """The digest of some content, and the canonical JSON of both, encoded once."""
    text = orjson.dumps(content | {"digest": "\0"}, option=orjson.OPT_SORT_KEYS)
    # no value of the content has this key, and quotes within texts are escaped
    head, tail = text.split(_UNSEALED)
    found = hashlib.sha256(head + tail).hexdigest()
    return found, f'{head.decode()}"digest":"{found}",{tail.decode()}'


def certify(
    device: TenantDevice,
    start: datetime,
    end: datetime,
    streams: Mapping[int, Coverage],
    *,
    reach: Reach = _NO_REACH,
    counts: DeviceCounts | None = None,
    decisions: Iterable[Decision] = (),
    observed: Observed = _NOTHING,
    bounds: DoubtBounds = USUAL_BOUNDS,
) -> DeviceCertificate:
    """The certificate of a device for [start, end), from the coverage of its streams by epoch.

    `reach`: how far around the period fixes affect it; the device must account for all of that. `decisions`: of any
    device; the latest that closes this state for the whole period counts. `bounds`: for `observed`.
    """
    assert start < end, "a period"
    settled_us = micros(end + reach.after)
    # gaps in a buffer of another time are no reason
    of_period = relevant_streams(streams, micros(start - reach.before), settled_us)
    states = {epoch: stream_state(coverage, settled_us) for epoch, coverage in of_period.items()}
    # a device without any record may have driven
    state = max(states.values(), key=_BEST_FIRST.index, default=CertificateState.SILENT)
    # complete streams do not tell how long the others have been silent
    silent = [of_period[epoch].stated_us for epoch, one in states.items() if one is CertificateState.SILENT]
    first = min(silent, default=0) if state is CertificateState.SILENT else 0
    decisions, doubts = [*decisions], observed.doubts(bounds)
    decision = in_effect(decisions, device, state.value, start, end)
    return DeviceCertificate(
        tenant=device.tenant,
        device=device.device,
        start=start.astimezone(UTC),
        end=end.astimezone(UTC),
        state=state if decision is None else CertificateState.DECIDED,
        stated_state=state,
        since=moment_of(first) if first > 0 else None,
        received=sum(coverage.received.count for coverage in of_period.values()),
        missing=SeqRanges.of(
            {epoch: coverage.missing for epoch, coverage in of_period.items() if states[epoch] is CertificateState.OPEN}
        ),
        declared_lost=_declared_lost(of_period),
        counts=counts or DeviceCounts(),
        decision=decision,
        settled_at=(end + reach.after).astimezone(UTC),
        observed=observed,
        doubts=doubts,
        accepted=accepting(decisions, device, observed.amounts, start, end) if doubts else None,
    )


def _declared_lost(streams: Mapping[int, Coverage]) -> tuple[tuple[str, SeqRanges], ...]:
    found: dict[str, dict[int, IntervalSet]] = {}
    for epoch, coverage in streams.items():
        if not coverage.tombstones:
            continue
        # without records that arrived after they were declared lost
        lost = coverage.declared_lost
        for reason in {tombstone.reason for tombstone in coverage.tombstones}:
            declared = IntervalSet((first, last) for first, last, why in coverage.tombstones if why == reason)
            found.setdefault(reason, {})[epoch] = declared & lost
    return tuple((reason, seqs) for reason in sorted(found) if (seqs := SeqRanges.of(found[reason])))
