"""`waybill drill hq-loss | region-loss | link-cut | failback | sweep | canary`: real runs that lose something."""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
from pydantic import ValidationError
from rich.console import Console

from cloud_jobs.errors import CloudError
from deploy.canary.hops import Hop
from deploy.drill.canary_drill import CanaryFault, FaultOutcome, chosen_faults, faults_as_json, faults_table, run_faults
from deploy.drill.canary_environment import canary_environment, small_topology
from deploy.drill.drills import Outcome, run_drill
from deploy.drill.environment import Say, drill_stack, open_environment
from deploy.drill.errors import DrillError
from deploy.drill.report import as_json, drill_table
from deploy.drill.settings import Drill, DrillSettings, FleetSettings, Moment
from deploy.drill.sweep import MOMENTS, SNAPSHOTS_S, TRIGGERS_S, points, sweep, sweep_table
from deploy.local import LakePlace, LocalStack, LocalStackError, PulsarSettings, StackSettings, empty
from geo.replication import ReplicationError
from waybill.daemon.logs import LogSettings, start_logging
from waybill.daemon.signals import raise_on_signals
from waybill.settings import SettingsError

_WIDTH = None if sys.stdout.isatty() else 120
console = Console(highlight=False, width=_WIDTH)
errors = Console(stderr=True, highlight=False, width=_WIDTH)

app = typer.Typer(
    rich_markup_mode=None,
    no_args_is_help=True,
    add_completion=False,
    help="Lose a cluster or a link on purpose, and count.",
)

Folder = Annotated[Path, typer.Option(help="Where the servers and tables live; emptied first.")]
Rate = Annotated[float, typer.Option("--records-per-s", help="What each region's devices send.")]
Trigger = Annotated[float, typer.Option("--trigger-s", help="Length of a micro-batch of the ingest.")]
Snapshot = Annotated[float, typer.Option("--snapshot-period-s", help="Time between two snapshots of the cursors.")]
When = Annotated[Moment, typer.Option("--moment", help="When the cluster is killed, seen from a micro-batch.")]
AsJson = Annotated[bool, typer.Option("--json", help="The figures as JSON instead of a table.")]
Place = Annotated[LakePlace, typer.Option("--lake", help="`s3`: the tables are on an S3 server of the stack.")]
FOLDER = Path("var/drill")


class _Command(NamedTuple):
    """A command that runs drills, one after the other, on one stack."""

    name: str
    help: str
    drills: Sequence[Drill]


_EXIT_STATUS = "Exit status: 0 all figures hold, 1 one does not, 2 it could not be run."
_COMMANDS = (
    _Command(
        "hq-loss",
        "Kill the centre while the ingest reads it; the ingest goes on at the standby.",
        [Drill.HQ_LOSS],
    ),
    _Command(
        "region-loss",
        "Kill a region's cluster; its devices go to the next region. At the end it comes back with its disks.",
        [Drill.REGION_LOSS],
    ),
    _Command(
        "link-cut",
        "Cut the link between a region and the centre for a while, and heal it.",
        [Drill.LINK_CUT],
    ),
    _Command(
        "failback",
        "Kill the centre, start it again, and order the ingest back to it: both drills, one after the other.",
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
    """Lose the centre and take it back for every combination: 36 runs, about an hour on two cores.

    Every run is also kept as a line of runs.jsonl in the folder.

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
    fault: Annotated[list[CanaryFault] | None, typer.Option(help="What is broken; may be repeated.")] = None,
    hop: Annotated[
        list[Hop] | None, typer.Option(help="Which hops are watched; may be repeated. Only the jobs they need run.")
    ] = None,
    json_only: AsJson = False,
) -> None:
    """Break one part after the other, and see a canary find each fault at its own hop, and its repair.

    Exit status: 0 each was red within 60 s at its own hop alone, and green again; 1 one was not; 2 it could not be run.

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
