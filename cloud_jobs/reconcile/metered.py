"""Station usage: the records of a period beside those that usage covers, and these beside the rows that count them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from operator import attrgetter
from typing import Final

from cloud_jobs.billing.certificates import Observed, listed
from cloud_jobs.billing.register.metered_records import WITH_REGION
from cloud_jobs.lake.snapshot_reads import erasures, erasures_since
from cloud_jobs.lake.snapshots import LakeState
from cloud_jobs.lake.tables import Lake
from cloud_jobs.reconcile.comparison import Comparison, Station, named, quantity_name
from cloud_jobs.reconcile.used import CountedUsage

_RUN_USAGE: Final = "run `cloud-jobs usage`"
_IN_NO_SUM: Final[tuple[tuple[str, Callable[[Observed], int], Callable[[Observed], str]], ...]] = (
    ("messages that could not be read", attrgetter("faults"), attrgetter("reasons")),
    (
        "messages without a position, value or known topic",
        lambda one: sum(one.no_faults.values()),
        lambda one: listed(one.no_faults.items()),
    ),
    ("unknown ways, beeline in mm", attrgetter("unknown_mm"), attrgetter("unknown")),
    ("messages that vehicles' brokers dropped", attrgetter("dropped"), lambda _: "before the agent"),
)


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
    yield from _in_no_sum(used, place)
    note = "; ".join(used.damaged[:3])
    yield Comparison(
        Station.USAGE, "rows that are what their digest says", place, used.rows, used.rows - len(used.damaged), note
    )
    for meter, quantity in sorted(used.meters.items()):
        yield Comparison(Station.USAGE, f"used: {quantity_name(meter)}", place, None, quantity, "in all zones")


def _in_no_sum(used: CountedUsage, place: str) -> Iterator[Comparison]:
    """What could not be read, and ways that nobody knows; whether a bill can bear them, its closing says."""
    for name, amount_of, note_of in _IN_NO_SUM:
        found = {device: amount for device, one in used.observed.items() if (amount := amount_of(one))}
        if found:
            note = f"of {len(found):,} devices; in no sum"
            yield Comparison(Station.USAGE, name, place, None, sum(found.values()), note)
        yield from named(
            [
                Comparison(Station.USAGE, name, f"{one.tenant}/{one.device}", None, amount, note_of(used.observed[one]))
                for one, amount in sorted(found.items(), key=lambda item: (-item[1], item[0]))
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
