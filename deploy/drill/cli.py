"""The commands `waybill drill hq-loss | region-loss | link-cut | failback`."""

from __future__ import annotations

import dataclasses
import json
import math
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import pulsar
import typer
from pydantic import ValidationError
from rich.console import Console
from rich.table import Table
from rich.text import Text

from cloud_jobs.errors import CloudError
from deploy.drill.drills import Outcome, run_drill
from deploy.drill.environment import Drill, DrillError, DrillSettings, Moment, Say, drill_stack, open_environment
from deploy.drill.findings import FIRST_WITHIN_S
from deploy.local import LakePlace, LocalStackError, empty
from geo.replication import ReplicationError
from waybill.daemon.signals import raise_on_signals
from waybill.settings import SettingsError

# The results of a drill as a table and as JSON.

_TITLES = {
    Drill.HQ_LOSS: "hq-loss: the centre is killed, the ingest continues at its standby",
    Drill.REGION_LOSS: "region-loss: a region is killed, its devices move to the next one",
    Drill.LINK_CUT: "link-cut: the link between a region and the centre is cut, and healed",
    Drill.FAILBACK: "failback: the ingest is moved back to the centre",
}


def drill_table(outcome: Outcome) -> Table:
    """Each count, its bound, and whether it holds."""
    found, alerts = outcome.found, outcome.alerts
    table = Table(title=_TITLES[outcome.drill], title_justify="left", title_style="bold")
    table.add_column("what")
    for column in ("found", "must be", "holds"):
        table.add_column(column, justify="right")
    table.add_row("records acknowledged to devices", f"{found.acknowledged:,}")
    table.add_row("of them in the central table", f"{found.in_table:,}")
    table.add_row("lost", f"{found.lost:,}")
    lost = found.lost_of_replicated
    table.add_row("lost of what was replicated", f"{lost:,}", "0", _verdict(lost == 0))
    table.add_row("not yet replicated at the loss, the repair or the order (RPO)", f"{found.not_replicated:,}")
    if outcome.lost_after_return is not None:
        table.add_row("lost once the region was back with its disks", f"{outcome.lost_after_return:,}")
    twice, before, bound = found.duplicates_in_table, found.duplicates_before, found.duplicates_bound
    table.add_row("duplicates in the table", f"{twice:,}", "0", _verdict(twice == 0))
    table.add_row("duplicates before deduplication", f"{before:,}", f"at most {bound:,}", _verdict(before <= bound))
    first_s = found.first_through_s
    within = f"at most {FIRST_WITHIN_S:.0f} s"
    table.add_row("first record through", f"{first_s:.1f} s", within, _verdict(first_s <= FIRST_WITHIN_S))
    table.add_row("each alert has one verdict", alerts.summary, "", _verdict(alerts.holds))
    return table


def as_json(outcome: Outcome) -> dict[str, Any]:
    """The counts for programs; a time that never came is null."""
    found = dataclasses.asdict(outcome.found)
    if math.isinf(outcome.found.first_through_s):
        found["first_through_s"] = None
    return {
        "drill": outcome.drill.value,
        "passed": outcome.passed,
        **found,
        "lost_after_return": outcome.lost_after_return,
        "alerts": {"holds": outcome.alerts.holds, **dataclasses.asdict(outcome.alerts)},
    }


def _verdict(holds: bool) -> Text:
    return Text("yes", style="green") if holds else Text("NO", style="bold red")


_WIDTH = None if sys.stdout.isatty() else 120
console = Console(highlight=False, width=_WIDTH)
errors = Console(stderr=True, highlight=False, width=_WIDTH)

app = typer.Typer(
    rich_markup_mode=None,
    no_args_is_help=True,
    add_completion=False,
    help="Stop a cluster or cut a link on purpose and count every record.",
)

Folder = Annotated[Path, typer.Option(help="Folder of the servers and tables; emptied first.")]
Rate = Annotated[float, typer.Option("--records-per-s", help="Records per second of each region's devices.")]
When = Annotated[Moment, typer.Option("--moment", help="When the cluster is killed, relative to a micro-batch.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Place = Annotated[LakePlace, typer.Option("--lake", help="`s3`: the tables are on an S3 server of the stack.")]
FOLDER = Path("var/drill")


_EXIT_STATUS = "Exit status: 0 passed, 1 failed, 2 could not run."
_COMMANDS = {
    "hq-loss": ("Kill the centre during the ingest, which continues at the standby.", [Drill.HQ_LOSS]),
    "region-loss": (
        "Kill a region's cluster: its devices move to the next region. At the end the cluster returns with its disks.",
        [Drill.REGION_LOSS],
    ),
    "link-cut": ("Cut the link between a region and the centre, and restore it later.", [Drill.LINK_CUT]),
    "failback": (
        "Kill the centre, start it again, and move the ingest back to it.",
        [Drill.HQ_LOSS, Drill.FAILBACK],
    ),
}


def _add(name: str, summary: str, drills: Sequence[Drill]) -> None:
    @app.command(name, help=f"{summary}\n\n{_EXIT_STATUS}\n\nExample: waybill drill {name}")
    def run(
        *,
        folder: Folder = FOLDER,
        rate: Rate = 400,
        moment: When = Moment.ANY,
        lake: Place = LakePlace.FOLDER,
        json_only: AsJson = False,
    ) -> None:
        with errors_as_messages():
            settings = DrillSettings(records_per_s=rate, moment=moment, lake=lake)
            outcomes, peak_bytes = _run_drills(drills, folder, settings, reporter(quiet=json_only))
        if json_only:
            typer.echo(json.dumps([as_json(outcome) for outcome in outcomes], indent=2))
        else:
            for outcome in outcomes:
                console.print("", drill_table(outcome))
            console.print(f"\nthe memory of all servers at its peak: {peak_bytes / 2**30:.1f} GiB")
        raise typer.Exit(0 if all(outcome.passed for outcome in outcomes) else 1)


for _name, (_summary, _drills) in _COMMANDS.items():
    _add(_name, _summary, _drills)


def _run_drills(drills: Sequence[Drill], folder: Path, settings: DrillSettings, say: Say) -> tuple[list[Outcome], int]:
    empty(folder)
    folder = folder.absolute()
    with (
        drill_stack(folder, settings, say) as stack,
        open_environment(stack, folder / "ingest", settings, say) as environment,
    ):
        outcomes = [run_drill(drill, environment) for drill in drills]
        return outcomes, environment.peak_memory_bytes


def reporter(*, quiet: bool) -> Say:
    """Prints each event with the seconds since now; on standard error when standard output is for a program."""
    began, out = time.monotonic(), errors if quiet else console
    return lambda text: out.print(f"[dim]{time.monotonic() - began:6.1f} s[/dim]  {text}")


@contextmanager
def errors_as_messages() -> Iterator[None]:
    """Exit status 2 for an error, 130 for a signal, which first stops every server."""
    try:
        with raise_on_signals((signal.SIGTERM, signal.SIGHUP), KeyboardInterrupt()):
            yield
    except (
        CloudError,
        DrillError,
        LocalStackError,
        ReplicationError,
        SettingsError,
        ValidationError,
        pulsar.PulsarException,
        OSError,
    ) as error:
        errors.print(str(error), style="red", markup=False, soft_wrap=True)
        raise typer.Exit(2) from error
    except KeyboardInterrupt as interrupt:
        errors.print("interrupted; every server was stopped")
        raise typer.Exit(130) from interrupt
