"""`waybill drill hq-loss | region-loss | link-cut | failback | sweep | canary`: real runs that lose something."""

from __future__ import annotations

import dataclasses
import json
import math
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
from pydantic import ValidationError
from rich.console import Console
from rich.table import Table
from rich.text import Text

from cloud_jobs.errors import CloudError
from deploy.canary.config import Hop
from deploy.drill.canary_drill import (
    CanaryFault,
    FaultOutcome,
    canary_environment,
    chosen_faults,
    faults_as_json,
    faults_table,
    run_faults,
    small_topology,
)
from deploy.drill.drills import Outcome, run_drill
from deploy.drill.environment import (
    Drill,
    DrillError,
    DrillSettings,
    FleetSettings,
    Moment,
    Say,
    drill_stack,
    open_environment,
)
from deploy.drill.findings import FIRST_WITHIN_S, AlertAudit
from deploy.local import LakePlace, LocalStack, LocalStackError, PulsarSettings, StackSettings, empty
from geo.replication import ReplicationError
from waybill.daemon.logs import LogSettings, start_logging
from waybill.daemon.signals import raise_on_signals
from waybill.settings import SettingsError

# The results of a drill as a table and as JSON.

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


# Losses of the centre by micro-batch length × snapshot period × moment of the kill, each with a failback.

TRIGGERS_S = (0.5, 1.0, 3.0)
SNAPSHOTS_S = (0.5, 1.0, 3.0)
MOMENTS = tuple(Moment)


class SweepPoint(NamedTuple):
    """One run of the sweep."""

    snapshot_period_s: float
    trigger_s: float
    moment: Moment


class SweepResult(NamedTuple):
    """What came of a point: the two drills, or why it could not be run."""

    point: SweepPoint
    outcomes: tuple[Outcome, ...]
    error: str = ""

    @property
    def passed(self) -> bool:
        """Whether it was run and every figure holds."""
        return not self.error and all(outcome.found.passed for outcome in self.outcomes)


def points(snapshots_s: Sequence[float], triggers_s: Sequence[float], moments: Sequence[Moment]) -> list[SweepPoint]:
    """Every combination; those of one stack, and of one ingest on it, stand together."""
    return [SweepPoint(*one) for one in product(snapshots_s, triggers_s, moments)]


def sweep(folder: Path, settings: DrillSettings, todo: Sequence[SweepPoint], say: Say) -> Iterator[SweepResult]:
    """Runs the points and gives each result when it is there; all are kept in `runs.jsonl` in the folder.

    A stack starts anew for each snapshot period, an ingest for each micro-batch length; where one of them fails, its
    other points are not run, and say so.
    """
    folder.mkdir(parents=True, exist_ok=True)
    # it is about records and the moment of a loss: what a drill takes longer for alerts would be taken 72 times
    settings = settings.model_copy(update={"alerts": False})
    with (folder / "runs.jsonl").open("w", encoding="utf-8") as kept:
        for result in _on_stacks(folder, settings, todo, say):
            kept.write(json.dumps(_line(result)) + "\n")
            # A sweep takes an hour: one that is interrupted leaves the results so far.
            kept.flush()
            yield result


def _on_stacks(folder: Path, settings: DrillSettings, todo: Sequence[SweepPoint], say: Say) -> Iterator[SweepResult]:
    for snapshot_s in dict.fromkeys(point.snapshot_period_s for point in todo):
        mine = [point for point in todo if point.snapshot_period_s == snapshot_s]
        place = folder / f"snapshot-{snapshot_s:g}"
        empty(place)
        done = 0
        try:
            for result in _on_stack(place, settings, mine, say):
                done += 1
                yield result
        except (DrillError, LocalStackError, ReplicationError) as error:
            say(f"this stack is given up: {error}")
            yield from (SweepResult(point, (), str(error).splitlines()[0]) for point in mine[done:])


def _on_stack(place: Path, settings: DrillSettings, mine: Sequence[SweepPoint], say: Say) -> Iterator[SweepResult]:
    settings = settings.model_copy(update={"snapshot_period_s": mine[0].snapshot_period_s})
    with drill_stack(place, settings, say) as stack:
        for trigger_s in dict.fromkeys(point.trigger_s for point in mine):
            settings = settings.model_copy(update={"trigger_s": trigger_s})
            with open_environment(stack, place / f"ingest-{trigger_s:g}", settings, say) as environment:
                for point in mine:
                    if point.trigger_s == trigger_s:
                        say(
                            f"snapshots every {point.snapshot_period_s:g} s, micro-batches of {trigger_s:g} s, "
                            f"killed when a batch is: {point.moment}"
                        )
                        environment.settings = settings.model_copy(update={"moment": point.moment})
                        yield SweepResult(
                            point, (run_drill(Drill.HQ_LOSS, environment), run_drill(Drill.FAILBACK, environment))
                        )


def sweep_table(results: Sequence[SweepResult]) -> Table:
    """One row a loss of the centre; of the failback after it, only whether it held."""
    table = Table(title="The centre lost, again and again", title_justify="left", caption_justify="left")
    words = (
        "snap",
        "batch",
        "killed when",
        "records",
        "lost",
        "RPO",
        "in table twice",
        "read again",
        "at most",
        "first",
        "last",
        "back",
        "holds",
    )
    for column in words:
        table.add_column(column, justify="left" if column == "killed when" else "right")
    for result in results:
        table.add_row(*_row(result))
    passed = sum(result.passed for result in results)
    table.caption = f"{passed} of {len(results)} hold"
    return table


def _row(result: SweepResult) -> list[str]:
    point = [f"{result.point.snapshot_period_s:g} s", f"{result.point.trigger_s:g} s", result.point.moment.value]
    if result.error:
        return [*point, *[""] * 8, "not run", "NO"]
    loss, back = (outcome.found for outcome in result.outcomes)
    return [
        *point,
        f"{loss.acknowledged:,}",
        f"{loss.lost:,}",
        f"{loss.not_replicated:,}",
        f"{loss.duplicates_in_table:,}",
        f"{loss.duplicates_before:,}",
        f"{loss.duplicates_bound:,}",
        f"{loss.first_through_s:.1f} s",
        f"{loss.last_through_s:.1f} s",
        "holds" if back.passed else "NO",
        "yes" if result.passed else "NO",
    ]


def _line(result: SweepResult) -> dict[str, Any]:
    return {
        **result.point._asdict(),
        "error": result.error,
        "passed": result.passed,
        "drills": [as_json(outcome) for outcome in result.outcomes],
    }


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
Trigger = Annotated[float, typer.Option("--trigger-s", help="Length of a micro-batch of the ingest.")]
Snapshot = Annotated[float, typer.Option("--snapshot-period-s", help="Time between two snapshots of the cursors.")]
When = Annotated[Moment, typer.Option("--moment", help="When the cluster is killed, relative to a micro-batch.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Place = Annotated[LakePlace, typer.Option("--lake", help="`s3`: the tables are on an S3 server of the stack.")]
FOLDER = Path("var/drill")


class _Command(NamedTuple):
    """A command that runs drills, one after the other, on one stack."""

    name: str
    help: str
    drills: Sequence[Drill]


_EXIT_STATUS = "Exit status: 0 passed, 1 failed, 2 could not run."
_COMMANDS = (
    _Command(
        "hq-loss",
        "Kill the centre during the ingest, which continues at the standby.",
        [Drill.HQ_LOSS],
    ),
    _Command(
        "region-loss",
        "Kill a region's cluster: its devices move to the next region. At the end the cluster returns with its disks.",
        [Drill.REGION_LOSS],
    ),
    _Command(
        "link-cut",
        "Cut the link between a region and the centre, and restore it later.",
        [Drill.LINK_CUT],
    ),
    _Command(
        "failback",
        "Kill the centre, start it again, and move the ingest back to it.",
        [Drill.HQ_LOSS, Drill.FAILBACK],
    ),
)


def _add(command: _Command) -> None:
    @app.command(command.name, help=f"{command.help}\n\n{_EXIT_STATUS}\n\nExample: waybill drill {command.name}")
    def run(
        *,
        folder: Folder = FOLDER,
        rate: Rate = 400,
        trigger_s: Trigger = 1.0,
        snapshot_period_s: Snapshot = 1.0,
        moment: When = Moment.ANY,
        lake: Place = LakePlace.FOLDER,
        json_only: AsJson = False,
    ) -> None:
        with errors_as_messages():
            settings = DrillSettings(
                fleet=FleetSettings(records_per_s=rate),
                trigger_s=trigger_s,
                snapshot_period_s=snapshot_period_s,
                moment=moment,
                lake=lake,
            )
            began = time.monotonic()
            outcomes, peak_bytes = _run_drills(command.drills, folder, settings, reporter(quiet=json_only))
        if json_only:
            shown: Any = [as_json(outcome) for outcome in outcomes]
            typer.echo(json.dumps(shown if len(shown) > 1 else shown[0], indent=2))
        else:
            for outcome in outcomes:
                console.print("", drill_table(outcome))
            console.print(
                f"\n{time.monotonic() - began:.0f} s in all; the memory of all servers at its peak: "
                f"{peak_bytes / 2**30:.1f} GiB"
            )
        raise typer.Exit(0 if all(outcome.passed for outcome in outcomes) else 1)


for _command in _COMMANDS:
    _add(_command)


@app.command("sweep")
def run_sweep(
    *,
    folder: Folder = FOLDER,
    rate: Rate = 400,
    trigger_s: Annotated[list[float] | None, typer.Option(help="Lengths of a micro-batch; may be repeated.")] = None,
    snapshot_period_s: Annotated[list[float] | None, typer.Option(help="Snapshot periods; may be repeated.")] = None,
    moment: Annotated[list[Moment] | None, typer.Option(help="Moments of the kill; may be repeated.")] = None,
    lake: Place = LakePlace.FOLDER,
    json_only: AsJson = False,
) -> None:
    """Run the drill failback for every combination: 36 runs, about an hour on two cores.

    Each run adds a line to runs.jsonl in the folder.

    Example: waybill drill sweep --trigger-s 1 --snapshot-period-s 1 --moment planned
    """
    todo = points(snapshot_period_s or SNAPSHOTS_S, trigger_s or TRIGGERS_S, moment or MOMENTS)
    with errors_as_messages():
        empty(folder)
        settings = DrillSettings(
            fleet=FleetSettings(records_per_s=rate), steady_s=3, after_s=3, lake=lake, alerts=False
        )
        results = list(sweep(folder.absolute(), settings, todo, reporter(quiet=json_only)))
    if json_only:
        typer.echo((folder / "runs.jsonl").read_text(encoding="utf-8"), nl=False)
    else:
        console.print("", sweep_table(results))
    raise typer.Exit(0 if all(result.passed for result in results) else 1)


@app.command("canary")
def run_canary_drill(
    *,
    folder: Folder = FOLDER,
    fault: Annotated[list[CanaryFault] | None, typer.Option(help="The fault; may be repeated.")] = None,
    hop: Annotated[
        list[Hop] | None, typer.Option(help="The watched hops; may be repeated. Only the jobs they need run.")
    ] = None,
    json_only: AsJson = False,
) -> None:
    """Break one part after another and check that a canary finds each fault and its repair at the right hop.

    Exit status: 0 each fault turned only its own hop red within 60 s, and green again; 1 one did not; 2 could not run.

    Example: waybill drill canary --fault cut-link --fault tariff
    """
    with errors_as_messages():
        watched = tuple(one for one in Hop if not hop or one in hop)
        # before anything is deleted or started
        faults = chosen_faults(fault or (), watched)
        outcomes = _run_canary_drill(folder, faults, watched, reporter(quiet=json_only))
    if json_only:
        typer.echo(json.dumps(faults_as_json(outcomes), indent=2))
    else:
        console.print("", faults_table(outcomes))
    raise typer.Exit(0 if all(one.passed for one in outcomes) else 1)


def _run_canary_drill(
    folder: Path, faults: Sequence[CanaryFault], watched: Sequence[Hop], say: Say
) -> list[FaultOutcome]:
    empty(folder)
    folder = folder.absolute()
    start_logging(LogSettings(level="warning"))
    say("starting clusters eu and hq")
    settings = StackSettings(pulsar=PulsarSettings(heap_mb=DrillSettings().heap_mb, direct_mb=256))
    with LocalStack(folder, topology=small_topology(folder / "one-region.toml"), settings=settings) as stack:
        say(f"{len(stack.servers)} servers are up, replication is applied")
        with canary_environment(stack, folder / "canary", watched, say) as environment:
            return run_faults(environment, faults, watched)


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
    """Says what happens with the seconds since now; on standard error when standard output is for a program."""
    began, out = time.monotonic(), errors if quiet else console
    return lambda text: out.print(f"[dim]{time.monotonic() - began:6.1f} s[/dim]  {text}")


@contextmanager
def errors_as_messages() -> Iterator[None]:
    """What stops a drill is said in words; a signal stops every server first. Exit status 2, or 130 for a signal."""
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
        OSError,
    ) as error:
        errors.print(str(error), style="red", markup=False, soft_wrap=True)
        raise typer.Exit(2) from error
    except KeyboardInterrupt as interrupt:
        errors.print("interrupted; every server was stopped")
        raise typer.Exit(130) from interrupt
