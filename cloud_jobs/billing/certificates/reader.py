"""The certificates of many devices at once, read from a lake at a snapshot, without Spark."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Final, NamedTuple, Protocol

from cloud_jobs.billing.certificates.certificate import DeviceCertificate, DeviceCounts, certify
from cloud_jobs.billing.certificates.counting import (
    HoursOf,
    count_erased,
    count_far_off,
    count_not_metered,
    heard_records,
    observed_usage,
)
from cloud_jobs.billing.certificates.decisions import by_device, decisions
from cloud_jobs.billing.certificates.doubts import USUAL_BOUNDS, Observed
from cloud_jobs.billing.contracts import DoubtBounds
from cloud_jobs.billing.usage import Reach, reach_at
from cloud_jobs.lake.coverage import Coverage, TenantDevice
from cloud_jobs.lake.erasures import Erasures
from cloud_jobs.lake.snapshot_reads import conflicts, coverage, erasures, erasures_since, reference_rows
from cloud_jobs.lake.snapshots import LakeState
from cloud_jobs.lake.tables import Lake
from geo.reference.in_force import RefusedVersion, published_fences

_NO_BOUNDS: Final[Mapping[TenantDevice, DoubtBounds]] = MappingProxyType({})


class TimeSpan(Protocol):
    """A period of any kind: from `start`, included, to `end`, excluded."""

    @property
    def start(self) -> datetime:
        """Its first moment."""

    @property
    def end(self) -> datetime:
        """The first moment that is no more in it."""


class UnmeteredRecords(NamedTuple):
    """Records of a period that usage does not cover: see `DeviceCounts`, by device."""

    counted: Counter[TenantDevice]
    may_be_more: Collection[TenantDevice]


def certificates_from(
    lake: Lake,
    snapshot: LakeState,
    devices: Collection[TenantDevice],
    period: TimeSpan,
    bounds: DoubtBounds | None = None,
) -> dict[TenantDevice, DeviceCertificate]:
    """The certificate of each of the devices for a period, in their order; also of one that nobody heard of.

    As `certificates_of_spans`.
    """
    spans = dict.fromkeys(devices, (period.start, period.end))
    return certificates_of_spans(lake, snapshot, spans, {} if bounds is None else dict.fromkeys(devices, bounds))


def certificates_of_spans(
    lake: Lake,
    snapshot: LakeState,
    spans: Mapping[TenantDevice, tuple[datetime, datetime]],
    bounds: Mapping[TenantDevice, DoubtBounds] = _NO_BOUNDS,
) -> dict[TenantDevice, DeviceCertificate]:
    """The certificate of each device for a time of its own (its end excluded), in the order of the devices.

    A million devices are asked for in groups of devices that follow on each other in order: each call opens the logs of
    the tables once, and of their files those alone that can hold records of these devices. `bounds`: of the doubts on
    each device, the usual ones if not given. Raises LakeError.
    """
    names = sorted(spans)
    hours_of = {device: (spans[device][0].astimezone(UTC), spans[device][1].astimezone(UTC)) for device in names}
    streams: dict[TenantDevice, dict[int, Coverage]] = {device: {} for device in names}
    for stream, known in coverage(lake, snapshot, names).items():
        streams[stream.of_device][stream.epoch] = known
    reach = reach_at(snapshot)
    counts, observed = _counts(lake, snapshot, hours_of), observed_usage(lake, snapshot, hours_of)
    far_off = count_far_off(lake, snapshot, hours_of)
    decided = by_device(decisions(lake, snapshot, names))
    # few: a device states what it has with each batch, once its clock is set
    wordless = [device for device, of in streams.items() if any(known.stated_us <= 0 for known in of.values())]
    heard = heard_records(lake, snapshot, {device: hours_of[device] for device in wordless})
    return {
        device: certify(
            device,
            *hours_of[device],
            of,
            reach=reach,
            counts=counts[device],
            decisions=decided.get(device, ()),
            heard=heard.get(device),
            observed=observed.get(device, Observed())._replace(far_off=far_off[device]),
            bounds=bounds.get(device, USUAL_BOUNDS),
        )
        for device, of in streams.items()
    }


def refused_fences(lake: Lake, snapshot: LakeState) -> tuple[RefusedVersion, ...]:
    """The publications of fences that cannot be used at a snapshot; what they were to replace was metered."""
    return published_fences(reference_rows(lake, snapshot, "fence")).refused


def unmetered_records(lake: Lake, snapshot: LakeState, hours_of: HoursOf) -> UnmeteredRecords:
    """What usage lacks of each device's time: no bill of theirs is final. Raises LakeError."""
    reach = reach_at(snapshot)
    counted = count_not_metered(lake, snapshot, hours_of, reach)
    return UnmeteredRecords(counted, _erased_unmetered(lake, snapshot, hours_of, reach))


def _counts(lake: Lake, snapshot: LakeState, hours_of: HoursOf) -> dict[TenantDevice, DeviceCounts]:
    devices = [*hours_of]
    not_metered = unmetered_records(lake, snapshot, hours_of)
    erased = count_erased(lake, snapshot, _before(erasures(lake, snapshot), devices), hours_of)
    conflicting = conflicts(lake, snapshot, devices)
    return {
        device: DeviceCounts(
            erased=erased.metered[device],
            late_positions=erased.late[device],
            former_rules=erased.former_rules[device],
            not_metered=not_metered.counted[device],
            conflicts=conflicting[device],
            may_be_more=device in not_metered.may_be_more,
        )
        for device in devices
    }


def _erased_unmetered(lake: Lake, snapshot: LakeState, hours_of: HoursOf, reach: Reach) -> set[TenantDevice]:
    """The devices of which records that usage did not cover may be erased since, and so are not counted any more."""
    if snapshot.covers == snapshot.ingest_number:
        return set()
    # an erasure waits for usage as it is, not as it was at this snapshot
    since = _before(erasures_since(lake, snapshot), hours_of)
    return {device for device, moment in since.items() if moment > hours_of[device][0] - reach.before}


def _before(declared: Erasures, devices: Collection[TenantDevice]) -> dict[TenantDevice, datetime]:
    """Of each device with erased positions the moment before which they are."""
    if not declared:
        return {}
    found = {device: declared.before(*device) for device in devices}
    return {device: moment for device, moment in found.items() if moment is not None}
