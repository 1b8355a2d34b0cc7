"""The figures of a drill as a table for people and as JSON for programs."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from rich.table import Table
from rich.text import Text

from deploy.drill.alert_audit import AlertAudit
from deploy.drill.drills import Outcome
from deploy.drill.findings import FIRST_WITHIN_S
from deploy.drill.settings import Drill

_TITLES = {
    Drill.HQ_LOSS: "hq-loss: the centre is killed, the ingest goes on at its standby",
    Drill.REGION_LOSS: "region-loss: a region is killed, its devices go to the next one",
    Drill.LINK_CUT: "link-cut: the link between a region and the centre is cut, and healed",
    Drill.FAILBACK: "failback: the ingest is ordered back to the centre",
}
_NOT_REPLICATED = {
    Drill.HQ_LOSS: "not yet replicated to the standby at the kill (RPO)",
    Drill.REGION_LOSS: "not yet replicated to the centre at the kill (RPO)",
    Drill.LINK_CUT: "not yet replicated to the centre at the heal",
    Drill.FAILBACK: "not yet replicated to the centre at the order",
}
_SINCE = {
    Drill.HQ_LOSS: "the kill",
    Drill.REGION_LOSS: "the kill",
    Drill.LINK_CUT: "the heal",
    Drill.FAILBACK: "the order",
}


def drill_table(outcome: Outcome) -> Table:
    """Each figure, what it must be, and whether it is."""
    counts, verdicts = outcome.found, iter(outcome.found.verdicts.values())
    table = Table(title=_TITLES[outcome.drill], title_justify="left", title_style="bold", caption_justify="left")
    for column, side in (("what", "left"), ("found", "right"), ("must be", "right"), ("holds", "right")):
        table.add_column(column, justify="right" if side == "right" else "left", no_wrap=True)
    since = _SINCE[outcome.drill]
    oldest = f", the oldest {counts.not_replicated_s * 1000:.0f} ms old" if counts.not_replicated else ""
    table.add_row("records acknowledged to devices", f"{counts.acknowledged:,}")
    table.add_row("of them in the central table", f"{counts.in_table:,}")
    table.add_row("lost", f"{counts.lost:,}")
    table.add_row("lost of what was replicated", f"{counts.lost_of_replicated:,}", "0", _verdict(next(verdicts)))
    table.add_row(_NOT_REPLICATED[outcome.drill], f"{counts.not_replicated:,}{oldest}")
    if outcome.lost_after_return is not None:
        table.add_row("lost once the region was back with its disks", f"{outcome.lost_after_return:,}")
    table.add_row("duplicates in the table", f"{counts.duplicates_in_table:,}", "0", _verdict(next(verdicts)))
    bound = f"at most {counts.duplicates_bound:,}"
    table.add_row("duplicates before deduplication", f"{counts.duplicates_before:,}", bound, _verdict(next(verdicts)))
    within = f"at most {FIRST_WITHIN_S:.0f} s"
    table.add_row(
        f"first record through, after {since}", _seconds(counts.first_through_s), within, _verdict(next(verdicts))
    )
    table.add_row(f"last record that was under way through, after {since}", _seconds(counts.last_through_s))
    if outcome.alerts is not None:
        _add_alerts(table, outcome.alerts)
    table.caption = (
        f"{counts.records_per_s:,.0f} records/s; the largest micro-batch before had {counts.largest_batch:,} records; "
        f"sent again by devices: {counts.resent:,}; restarts of the ingest: {outcome.restarts}"
    )
    return table


def _add_alerts(table: Table, alerts: AlertAudit) -> None:
    if alerts.unknown:
        table.add_row("alerts without exactly one verdict", "unknown", "0", _verdict(None))
        return
    table.add_row("alerts that regions raised", f"{alerts.announced:,}")
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in alerts.in_force.items() if count)
    table.add_row("verdicts in force", kinds)
    bad = alerts.without + alerts.twice + alerts.unpublished
    table.add_row(
        "alerts without exactly one verdict, or with one unpublished", f"{bad:,}", "0", _verdict(alerts.holds)
    )


def as_json(outcome: Outcome) -> dict[str, Any]:
    """The same for programs; a time that never came is null."""
    figures = {
        name: None if isinstance(value, float) and math.isinf(value) else value
        for name, value in dataclasses.asdict(outcome.found).items()
    }
    return {
        "drill": outcome.drill.value,
        "passed": outcome.passed,
        "verdicts": dict(outcome.found.verdicts),
        **figures,
        "lost_after_return": outcome.lost_after_return,
        "ingest_restarts": outcome.restarts,
        "alerts": None
        if outcome.alerts is None
        else {"each_has_one_verdict": outcome.alerts.holds, **dataclasses.asdict(outcome.alerts)},
    }


def _seconds(value: float) -> str:
    return "never" if math.isinf(value) else f"{value:.1f} s"


def _verdict(holds: bool | None) -> Text:
    if holds is None:
        return Text("unknown", style="bold yellow")
    return Text("yes", style="green") if holds else Text("NO", style="bold red")
