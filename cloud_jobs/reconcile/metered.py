"""Station usage: the records of a period beside those that usage covers, and these beside the rows that count them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from cloud_jobs.billing.register.metered_records import WITH_REGION
from cloud_jobs.lake.snapshot_reads import erasures, erasures_since
from cloud_jobs.lake.snapshots import LakeState
from cloud_jobs.lake.tables import Lake
from cloud_jobs.reconcile.comparison import Comparison, Station, named, quantity_name
from cloud_jobs.reconcile.used import CountedUsage

_RUN_USAGE: Final = "run `cloud-jobs usage`"


def compare_usage(
    lake: Lake, snapshot: LakeState, used: CountedUsage, records: int, *, everyone: bool
) -> Iterator[Comparison]:
    """The records of the period beside those that usage covers, and these beside what its rows count.

    `records`: how many there are in all regions, read before `used`. `everyone`: of all devices. Raises LakeError.
    """
    place = "all devices" if everyone else "these payers' devices"
    yield from _covered(lake, snapshot, used, records, place)
    for name, (recorded, metered) in used.counted.items():
        yield Comparison(Station.USAGE, f"{name} metered", place, recorded, metered)
    yield from named(
        [
            Comparison(
                Station.USAGE,
                f"{one.name} metered",
                f"{one.device.tenant}/{one.device.device} on {one.day}",
                one.recorded,
                one.metered,
            )
            for one in used.differences
            # of the region there is a station of its own
            if one.name != WITH_REGION
        ]
    )
    if snapshot.covers < snapshot.ingest_number:
        # merely counted: what they hold of the period is compared above
        note = f"of {snapshot.ingest_number:,}; run `cloud-jobs usage`"
        yield Comparison(Station.USAGE, "commits of the ingest that usage covers", "", None, snapshot.covers, note)
    if used.late_positions:
        note = "their way is not metered; their bytes are"
        yield Comparison(Station.USAGE, "positions that came after an erasure", place, None, used.late_positions, note)
    yield from _unreadable(used, place)
    yield from _unknown(used, place)
    note = "; ".join(used.damaged[:3])
    yield Comparison(
        Station.USAGE, "rows that are what their digest says", place, used.rows, used.rows - len(used.damaged), note
    )
    for meter, quantity in sorted(used.meters.items()):
        yield Comparison(Station.USAGE, f"used: {quantity_name(meter)}", place, None, quantity, "in all zones")


def _unreadable(used: CountedUsage, place: str) -> Iterator[Comparison]:
    """Messages that are in no sum because they could not be read; whether a bill can bear them, its closing says."""
    name = "messages that could not be read"
    faults = {device: one.faults for device, one in used.observed.items() if one.faults}
    if not faults:
        return
    note = f"of {len(faults):,} devices; in no sum"
    yield Comparison(Station.USAGE, name, place, None, sum(faults.values()), note)
    yield from named(
        [
            Comparison(
                Station.USAGE,
                name,
                f"{one.tenant}/{one.device}",
                None,
                count,
                ", ".join(f"{reason} {of:,}" for reason, of in used.observed[one].unreadable),
            )
            for one, count in sorted(faults.items(), key=lambda item: (-item[1], item[0]))
        ]
    )


def _unknown(used: CountedUsage, place: str) -> Iterator[Comparison]:
    """Ways that nobody knows, as beelines: they are in no sum."""
    name = "unknown ways, beeline in mm"
    ways = {device: one.unknown_mm for device, one in used.observed.items() if one.unknown_mm}
    if not ways:
        return
    yield Comparison(Station.USAGE, name, place, None, sum(ways.values()), f"of {len(ways):,} devices; in no sum")
    yield from named(
        [
            Comparison(Station.USAGE, name, f"{one.tenant}/{one.device}", None, mm, used.observed[one].unknown)
            for one, mm in sorted(ways.items(), key=lambda item: (-item[1], item[0]))
        ]
    )


def _covered(lake: Lake, snapshot: LakeState, used: CountedUsage, records: int, place: str) -> Iterator[Comparison]:
    """What was received and is not metered is unknown, and so is what may have been erased before it was."""
    found, note = used.covered, ""
    if unmetered := used.not_metered.total():
        note = f"{unmetered:,} records are not metered yet; {_RUN_USAGE}"
    elif used.may_be_more:
        note = f"of {len(used.may_be_more):,} devices records that were not metered may be erased since; {_RUN_USAGE}"
    elif found != records and any((erasures(lake, snapshot), erasures_since(lake, snapshot))):
        note = "positions were erased, perhaps in this moment; reconcile again"
    name = "records of the period that usage covers"
    yield Comparison(Station.USAGE, name, place, records, None if note else found, note)
    yield from named(
        [
            Comparison(Station.USAGE, "records that are not metered yet", f"{one.tenant}/{one.device}", count, None)
            for one, count in sorted(used.not_metered.items())
        ]
    )
