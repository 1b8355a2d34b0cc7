"""Station device: what the devices' heads say was made, held against what was received or declared lost."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from cloud_jobs.billing.certificates import CertificateState, DeviceCertificate, certify
from cloud_jobs.billing.certificates.decisions import by_device, decisions
from cloud_jobs.billing.usage import reach_at
from cloud_jobs.lake.coverage import Coverage, TenantDevice
from cloud_jobs.lake.coverage_rows import from_rows
from cloud_jobs.lake.record_counts import received_by_device, received_counts
from cloud_jobs.lake.snapshot_reads import coverage
from cloud_jobs.lake.snapshots import LakeState
from cloud_jobs.lake.tables import Lake
from cloud_jobs.reconcile.comparison import Comparison, Station, named, parts

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_AT_ONCE: Final = 10_000
_MAX_NAMED: Final = 5
_STATE: Final = {CertificateState.OPEN: "open", CertificateState.SILENT: "silent"}
_Integers = NDArray[np.int64]


Hours = tuple[datetime, datetime]
"""The first moment of a period, and the first one after it."""


class Heads(NamedTuple):
    """What the coverage says of all streams. `received`: by device, in order; `devices`: all that were heard of."""

    comparisons: list[Comparison]
    received: dict[TenantDevice, int]


def compare_heads(
    lake: Lake,
    snapshot: LakeState,
    devices: Collection[TenantDevice] | None,
    hours: Hours,
    hours_of: Mapping[TenantDevice, Collection[Hours]],
) -> Heads:
    """Every record below a stated head was received or declared lost, of each stream that may hold some of the period.

    `devices`: those of some payers, also those that nobody heard of; None: all of the coverage. `hours_of`: what is
    certified of a device that somebody pays for, by the clocks of each who does; `hours`: that of the others, which
    holds all these. Raises LakeError.
    """
    rows = lake.coverage_rows(lake.coverage_manifest(snapshot.ingest_commit), devices)
    made = np.maximum(rows["head"].to_numpy(), rows["stated_head"].to_numpy())
    received, lost = received_counts(rows), _lost(rows)
    missing = made - received - lost
    # whose streams do not all reach the end: a few, whose certificates say why
    settled_at = hours[1] + reach_at(snapshot).after
    late = rows["complete_until_us"].to_numpy() < (settled_at - _EPOCH) // timedelta(microseconds=1)
    asked = {*_devices(rows.filter(pa.array(late)))}
    by = received_by_device(rows, received)
    if devices is not None:
        asked |= {*devices} - by.keys()
    wrong = [*_not_closed(lake, snapshot, {device: hours_of.get(device, [hours]) for device in asked})]
    of_wrong, found = sum(one.missing.count for one in wrong), int(received.sum())
    # a vehicle that was taken out of service is silent for good
    retired = [one for one in wrong if _is_silent(one) and one.of_device not in hours_of]
    known = [*_wrong_ones([one for one in wrong if not _is_silent(one) or one.of_device in hours_of])]
    note = f"{int(lost.sum()):,} declared lost"
    if (other := int(missing.sum()) - of_wrong) > 0:
        note += f"; {other:,} missing that are of no stream of the period, or closed by decision"
    name = "records made, less declared lost, of any period"
    whole = Comparison(Station.DEVICE, name, "all devices", found + of_wrong, found, note)
    return Heads([whole, *named(known), *_counted(retired)], by)


def _lost(rows: pa.Table) -> _Integers:
    found = np.zeros(rows.num_rows, np.int64)
    having = np.flatnonzero(pc.list_value_length(rows["lost"]).to_numpy())
    for at, (_, known) in zip(having.tolist(), from_rows(rows.take(pa.array(having))), strict=True):
        found[at] = known.declared_lost.count
    return found


def _devices(rows: pa.Table) -> Iterator[TenantDevice]:
    pairs = rows.group_by(["tenant", "device"]).aggregate([])
    return map(TenantDevice, pairs["tenant"].to_pylist(), pairs["device"].to_pylist())


def _not_closed(
    lake: Lake, snapshot: LakeState, hours_of: Mapping[TenantDevice, Collection[Hours]]
) -> Iterator[DeviceCertificate]:
    """Of each device that is open or silent one certificate, the worst for those who pay for it."""
    reach = reach_at(snapshot)
    for asked in parts(sorted(hours_of), _AT_ONCE):
        streams: dict[TenantDevice, dict[int, Coverage]] = defaultdict(dict)
        for stream, known in coverage(lake, snapshot, asked).items():
            streams[stream.of_device][stream.epoch] = known
        decided = by_device(decisions(lake, snapshot, asked))
        for device in asked:
            its, of = streams[device], decided.get(device, ())
            made = [certify(device, *hours, its, reach=reach, decisions=of) for hours in sorted(hours_of[device])]
            yield from sorted((one for one in made if one.state in _STATE), key=_is_silent)[:1]


def _is_silent(certificate: DeviceCertificate) -> bool:
    return certificate.state is CertificateState.SILENT


def _counted(retired: Sequence[DeviceCertificate]) -> Iterator[Comparison]:
    if retired:
        first = ", ".join(f"{one.tenant}/{one.device}" for one in retired[:_MAX_NAMED])
        name = "silent devices that no account has in the period"
        yield Comparison(Station.DEVICE, name, "all devices", None, len(retired), first)


def _wrong_ones(certificates: list[DeviceCertificate]) -> Iterator[Comparison]:
    """Open ones first: of silent ones there is only more to come."""
    for one in sorted(certificates, key=lambda one: (_is_silent(one), one.of_device)):
        is_open = not _is_silent(one)
        expected, found = (one.received + one.missing.count, one.received) if is_open else (one.received, None)
        name = f"records of a device that is {_STATE[one.state]}"
        yield Comparison(Station.DEVICE, name, f"{one.tenant}/{one.device}", expected, found, "; ".join(one.reasons))
