"""`waybill reconcile`: the stations of a period side by side, and where they differ."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from typing import Final

import typer

from cloud_jobs.billing.register.commands import (
    JsonOption,
    LakeOption,
    PayersOption,
    PeriodOption,
    SnapshotOption,
    days_of,
)
from cloud_jobs.error_messages import cloud_errors_as_messages
from cloud_jobs.fitted_table import screen
from cloud_jobs.lake.location import Location
from cloud_jobs.lake.snapshots import read_snapshot, take_snapshot
from cloud_jobs.lake.tables import Lake
from cloud_jobs.reconcile.comparison import ComparisonOutcome
from cloud_jobs.reconcile.reconciling import reconcile as compare
from cloud_jobs.reconcile.terminal import reconciled_table
from waybill.settings import printable_json

DIFFERENT: Final = 3
"""The exit status where counts differ, or one is not known."""
_WIDTH: Final = 200


@cloud_errors_as_messages("reconcile")
def reconcile(
    *,
    lake: LakeOption,
    period: PeriodOption,
    payer: PayersOption = None,
    snapshot: SnapshotOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compare what devices, regions, centre, usage, charges and documents have of a period.

    Exit status: 0 equal; 1 an error; 2 wrong options; 3 something differs or is unknown; 75 the store does not answer.

    Example: waybill reconcile --lake lake --period 2026-03
    """
    tables, now = Lake(Location.of(lake)), datetime.now(UTC)
    tables.check("records", "closings")
    taken = take_snapshot(tables, now) if snapshot is None else read_snapshot(tables, snapshot)
    made = compare(tables, taken, days_of(period), payer, now=now)
    if as_json:
        sys.stdout.write(printable_json(made.values(), indent=2, sort_keys=True) + "\n")
    else:
        screen(_WIDTH).print(reconciled_table(made))
    if made.outcome is not ComparisonOutcome.EQUAL:
        raise typer.Exit(DIFFERENT)
