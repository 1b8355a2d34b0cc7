"""fleet-simulator: makes a scenario, drives its fleet, and computes what is true of it."""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from simulator import reports
from simulator.drive import drive as drive_fleet
from simulator.errors import SimulatorError
from simulator.fleet import START, generated_scenario, recorded_scenario
from simulator.folder import read_folder, write_folder
from simulator.options import parse_brokers, parse_faults, parse_noise
from simulator.publisher import Progress as Published
from simulator.publisher import PublishSettings, publish
from simulator.replay import read_recording
from simulator.scenario import Scenario
from simulator.truth import Truth, TruthError
from waybill.daemon.process import add_version_option

app = typer.Typer(
    rich_markup_mode=None,
    help="A fleet that drives, publishes to its local MQTT brokers, and knows exactly what it should be billed.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)

add_version_option(app, "fleet-simulator")
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON to standard output instead of tables.")]
ScenarioOption = Annotated[Path, typer.Option("--scenario", help="Folder that `scenario` wrote.")]


@app.command()
def scenario(
    *,
    out: Annotated[Path, typer.Option(help="Folder to write the scenario to.")],
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same fleet.")] = 7,
    vehicles: Annotated[int, typer.Option(min=1, max=10_000)] = 20,
    regions: Annotated[str, typer.Option(help="Regions, separated by commas: eu, us, ap.")] = "eu,us",
    start: Annotated[str, typer.Option(help="Device time at which the fleet starts, ISO 8601.")] = START.isoformat(),
    duration: Annotated[int, typer.Option(min=60, help="Seconds of driving.")] = 7200,
    interval: Annotated[int, typer.Option(min=1, max=300, help="Seconds between two fixes.")] = 10,
    replay: Annotated[Path | None, typer.Option(help="Repeat this recorded track (CSV) instead.")] = None,
    faults: Annotated[str, typer.Option(help="For instance duplicates=0.01,wrong_clocks=2,late=1.")] = "",
    gps_noise: Annotated[
        str, typer.Option(help="Noise of the receivers: SIGMA[,TAU], metres and seconds of memory.")
    ] = "",
    as_json: JsonOption = False,
) -> None:
    """Write a scenario: its fences, vehicles, accounts, tariffs and contracts.

    Example: fleet-simulator scenario --out scenario --vehicles 5
    """
    with _errors_as_messages():
        names = tuple(name.strip() for name in regions.split(",") if name.strip())
        struck, noise = parse_faults(faults), parse_noise(gps_noise)
        recording = track = None
        if replay is not None and noise is not None:
            raise SimulatorError("--gps-noise goes with a generated fleet: a recorded track has its own noise")
        if replay is not None:
            recording = read_recording(replay)
            made, track = recorded_scenario(recording, seed=seed, regions=names, faults=struck)
        else:
            made = generated_scenario(
                seed=seed,
                vehicles=vehicles,
                regions=names,
                start=_instant(start),
                duration_s=duration,
                interval_s=interval,
                faults=struck,
                gps_noise=noise,
            )
        files = [str(path) for path in write_folder(out, made, track)]
        if as_json:
            _print_json(reports.scenario_json(made, recording, files))
        else:
            Console().print(reports.scenario_table(made, recording))


@app.command()
def drive(
    *,
    folder: ScenarioOption,
    broker: Annotated[list[str] | None, typer.Option(help="DEVICE=HOST:PORT of a vehicle's broker; repeat.")] = None,
    brokers: Annotated[Path | None, typer.Option(help='JSON file {"DEVICE": "HOST:PORT"}.')] = None,
    speedup: Annotated[float, typer.Option(help="Seconds of driving in one second.")] = 60.0,
    within: Annotated[float | None, typer.Option(help="Fit the drive into this many seconds instead.")] = None,
    journal: Annotated[Path | None, typer.Option(help="Journal to write; default made.jsonl in the folder.")] = None,
    timeout: Annotated[float, typer.Option(help="Seconds without progress of a vehicle before giving up.")] = 60.0,
    as_json: JsonOption = False,
) -> None:
    """Drive the fleet: every vehicle publishes to its own broker; writes the journal of the records made.

    Example: fleet-simulator drive --scenario scenario --brokers brokers.json --within 60
    """
    with _errors_as_messages():
        made, track = read_folder(folder)
        settings = PublishSettings(speedup=made.duration_s / within if within else speedup, timeout_s=timeout)
        addresses = parse_brokers(broker or [], brokers)
        # Before the journal is opened, which empties it: a drive that cannot start must not cost the last one its
        # truth.
        missing = [vehicle.device for vehicle in made.vehicles if vehicle.device not in addresses]
        if missing:
            raise SimulatorError(f"no local broker is given for {', '.join(missing)}: use --broker or --brokers")
        path = journal or folder / "made.jsonl"
        with (
            path.open("w", encoding="utf-8") as lines,
            path.with_name("driven.jsonl").open("w", encoding="utf-8") as driven,
            _progress(made) as on_progress,
        ):
            messages = drive_fleet(made, track)
            summary = publish(messages, addresses, settings, journal=lines, driven=driven, on_progress=on_progress)
        if as_json:
            _print_json({**summary._asdict(), "complete": summary.complete})
        else:
            Console().print(reports.summary_table(summary))


@app.command()
def truth(
    *,
    folder: ScenarioOption,
    journal: Annotated[str, typer.Option(help="Journal, a name in the folder or a path.")] = "made.jsonl",
    as_json: JsonOption = False,
) -> None:
    """Show which records exist, what was used and what each account owes.

    Example: fleet-simulator truth --scenario scenario
    """
    with _errors_as_messages():
        truth = Truth.from_folder(folder, Path(journal).absolute() if "/" in journal else journal)
        if as_json:
            _print_json(reports.truth_json(truth))
        else:
            Console().print(reports.truth_tables(truth))


@contextmanager
def _errors_as_messages() -> Iterator[None]:
    try:
        yield
    except (SimulatorError, TruthError, OSError) as error:
        Console(stderr=True).print(f"[red]error:[/red] {error}", highlight=False, soft_wrap=True)
        raise typer.Exit(1) from error


@contextmanager
def _progress(made: Scenario) -> Iterator[Callable[[Published], None]]:
    columns = (
        TextColumn("driving"),
        BarColumn(),
        TextColumn("{task.completed:,.0f} of {task.total:,.0f} s"),
        TextColumn("{task.fields[counts]}"),
        TimeRemainingColumn(),
    )
    # On standard error: standard output may be JSON for a program.
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("driving", total=made.duration_s, counts="")

        def on_progress(published: Published) -> None:
            counts = f"{published.made:,} made, {published.acknowledged:,} acknowledged"
            bar.update(task, completed=published.driven_s, counts=counts)

        yield on_progress


def _instant(text: str) -> datetime:
    try:
        instant = datetime.fromisoformat(text)
    except ValueError as error:
        raise SimulatorError(f"--start {text!r} is not a valid ISO 8601 time") from error
    # Read in the zone of this machine, the same command would give another fleet elsewhere.
    if instant.tzinfo is None:
        raise SimulatorError(f"--start {text!r} needs an offset, for instance {text}+00:00")
    return instant


def _print_json(content: object) -> None:
    sys.stdout.write(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    app()
