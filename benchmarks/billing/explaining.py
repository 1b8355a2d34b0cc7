"""How long it takes to take one line of an invoice apart, in a lake with a past and in one that has none."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

from benchmarks.billing.closing import REGISTER
from benchmarks.billing.metered_past import DAYS, FIRST_DAY, Past, metered_lake
from benchmarks.billing.processes import ran
from benchmarks.centre.lakes import unsynced
from benchmarks.harness import Figure
from cloud_jobs.billing.register.close import close_period
from cloud_jobs.billing.register.closer import ClosingRun
from cloud_jobs.billing.register.operations import Clerk, issue_period
from cloud_jobs.billing.register.tables import Register
from cloud_jobs.lake.snapshots import take_snapshot
from cloud_jobs.lake.tables import Lake

LIMIT_S = 3
_EXPLAIN = (*REGISTER, "explain", "WB-EU-00000001", "1")
_ROUNDS = 3
MARCH: tuple[date, date] = (FIRST_DAY.date(), (FIRST_DAY + timedelta(days=DAYS - 1)).date())


def rows(folder: Path, past: Past) -> Iterator[Figure]:
    """Seconds of `explain` from the start of its process, of the line with the most hours. A lake is built once."""
    for of in (Past(1, 1, 1), past):
        place = folder / f"explain-{of.records}-{of.commits}-{of.fences}"
        _built(place, of)
        output = place / "explained.json"
        taken = [ran([*_EXPLAIN, "--lake", str(place), "--json"], output) for _ in range(_ROUNDS)]
        found = json.loads(output.read_bytes())
        assert found["agrees"] is True, found
        seconds = sorted(one.seconds for one in taken)
        cpu = min(one.cpu_s for one in taken)
        size = f"{of.records:,} records, {of.commits:,} commits, {of.fences:,} fences"
        yield Figure(
            f"explain; {size}; {found['hours_in_all']} hours",
            f"< {LIMIT_S} s",
            f"{seconds[0]:.2f} to {seconds[-1]:.2f} s ({cpu:.2f} s of cores), {taken[-1].own_mib:.0f} MiB",
        )


def _built(place: Path, past: Past) -> None:
    """A lake in a folder, unless it is there from an earlier run, with the month closed and issued."""
    done = place.with_suffix(".built")
    if done.exists():
        return
    shutil.rmtree(place, ignore_errors=True)
    with unsynced():
        invoiced(metered_lake(place, past))
    done.touch()


def invoiced(lake: Lake, *, against_records: bool = True) -> None:
    """Closes and issues March of the one payer, in this process. `against_records`: see `close_period`."""
    now = datetime.now(UTC)
    taken, register = take_snapshot(lake, now), Register(lake)
    run = ClosingRun(name="run", snapshot=taken.number, snapshot_id=taken.id, now=now)
    close_period(lake, taken, MARCH, None, run=run, against_records=against_records)
    clerk = Clerk(by="bench", now=now, attempt="attempt")
    done = issue_period(register, MARCH, None, clerk=clerk)
    assert len(done.documents) == 1, done.refused
