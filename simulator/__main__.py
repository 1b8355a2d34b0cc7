"""fleet-simulator: makes a scenario, drives its fleet, and computes what is true of it."""

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import ValidationError
from rich.console import Console, Group, RenderableType
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from simulator.drive import drive as drive_fleet
from simulator.errors import ScenarioError, SimulatorError
from simulator.fleet import START, generated_scenario, recorded_scenario
from simulator.folder import read_folder, write_folder
from simulator.publisher import BrokerAddress, PublishSettings, Summary, publish
from simulator.publisher import Progress as Published
from simulator.replay import Recording, read_recording
from simulator.scenario import Faults, GpsNoise, Scenario
from simulator.truth import TrueOwed, Truth, TruthError
from simulator.truth.contracts import exponent
from waybill.daemon.process import add_version_option
from waybill.settings import read_file

# Command line options with several values: brokers and faults.


def parse_address(text: str) -> BrokerAddress:
    """HOST:PORT as an address. Raises SimulatorError."""
    # From the right: the host may be an IPv6 address, which has colons too.
    host, _, port = text.rpartition(":")
    # isdigit() alone also takes characters, such as a raised 2, that int() refuses.
    if not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65_536:
        raise SimulatorError(f"{text!r} is not a valid HOST:PORT")
    return BrokerAddress(host, int(port))


def parse_brokers(given: Sequence[str], file: Path | None) -> dict[str, BrokerAddress]:
    """Brokers by device from `DEVICE=HOST:PORT` words and a JSON file {device: "HOST:PORT"}; words win."""
    brokers: dict[str, BrokerAddress] = {}
    if file is not None:
        try:
            content = json.loads(read_file(file))
            brokers.update((str(device), parse_address(str(address))) for device, address in content.items())
        except (OSError, ValueError, AttributeError, RecursionError) as error:
            raise SimulatorError(f"{file}: cannot be read as {{device: HOST:PORT}}: {error}") from error
    for word in given:
        device, equals, address = word.partition("=")
        if not equals or not device:
            raise SimulatorError(f"{word!r} is not a valid DEVICE=HOST:PORT")
        brokers[device] = parse_address(address)
    return brokers


def parse_noise(text: str) -> GpsNoise | None:
    """`4` or `4,60` (metres, seconds) as noise; empty: none. Raises ScenarioError."""
    words = [word.strip() for word in text.split(",")] if text.strip() else []
    if not words:
        return None
    try:
        return GpsNoise.model_validate(dict(zip(("sigma_m", "tau_s"), words, strict=len(words) > 2)))
    except ValueError as error:
        raise ScenarioError(
            f"--gps-noise {text!r}: give metres up to 50 and, after a comma, the seconds of its memory: 4,60"
        ) from error


def parse_faults(text: str) -> Faults:
    """`duplicates=0.01,wrong_clocks=2,late=1` as Faults; empty: none. Raises ScenarioError."""
    given: dict[str, str] = {}
    for word in filter(None, (word.strip() for word in text.split(","))):
        name, equals, value = word.partition("=")
        if not equals:
            raise ScenarioError(f"{word!r} is not a valid FAULT=NUMBER; faults are {', '.join(Faults.model_fields)}")
        given[name.strip()] = value.strip()
    try:
        return Faults.model_validate(given)
    except ValidationError as error:
        raise ScenarioError(f"faults {text!r}: {error.errors()[0]['msg']}") from error


# Output as tables and JSON.

KINDS = ("position", "signal", "event", "canary", "raw")


def scenario_table(scenario: Scenario, recording: Recording | None) -> RenderableType:
    """What a scenario holds."""
    table = Table(title="Scenario", show_header=False)
    hours = scenario.duration_s / 3600
    table.add_row("seed", str(scenario.seed))
    pace = "fixes as recorded" if scenario.track else f"a fix every {scenario.interval_s} s"
    table.add_row("drives", f"{scenario.start:%Y-%m-%d %H:%M:%S} UTC, {hours:.2f} h, {pace}")
    for region in scenario.regions:
        own = sum(vehicle.region == region.id for vehicle in scenario.vehicles)
        table.add_row(f"region {region.id}", f"{own} vehicles, {region.city}")
    for account in scenario.accounts:
        table.add_row(
            f"account {account.id}", f"{len(account.vehicles)} vehicles, {account.tariff} in {account.currency}"
        )
    table.add_row("zones", ", ".join(fence.id for fence in scenario.fences))
    faults = ", ".join(f"{name}={value}" for name, value in scenario.faults if value)
    if faults:
        table.add_row("faults", faults)
    if recording is not None:
        used = sum(len(fixes) for fixes in recording.fixes.values())
        table.add_row("recording", f"{used} of {recording.rows} rows of {len(recording.fixes)} vehicles are used")
        for reason, count in sorted(recording.left_out.items()):
            table.add_row("left out", f"{count} rows: {reason}")
    return table


def scenario_json(scenario: Scenario, recording: Recording | None, files: list[str]) -> dict[str, Any]:
    """What a scenario holds, for programs."""
    summary: dict[str, Any] = {
        "files": files,
        "vehicles": len(scenario.vehicles),
        "start": scenario.start.isoformat(),
        "duration_s": scenario.duration_s,
    }
    if recording is not None:
        summary["recording"] = {"rows": recording.rows, "left_out": dict(recording.left_out)}
    return summary


def summary_table(summary: Summary) -> RenderableType:
    """What was published."""
    table = Table(title="Published to the local brokers")
    table.add_column("vehicle")
    table.add_column("records", justify="right")
    for device, made in summary.by_device.items():
        table.add_row(device, f"{made:,}")
    table.add_section()
    for what, count in (
        ("made", summary.made),
        ("acknowledged", summary.acknowledged),
        ("refused at first: no subscriber", summary.refused_at_first),
        ("reconnects", summary.reconnects),
        ("maybe held twice", summary.maybe_doubled),
    ):
        table.add_row(what, f"{count:,}")
    table.add_row("seconds", f"{summary.seconds:.1f}")
    return table


def truth_json(truth: Truth) -> dict[str, Any]:
    """The truth for programs: counts by device and kind, usage rows and what each payer owes."""
    return {
        "records": {device: _counts(truth, device) for device in truth.devices},
        "usage": [{**row._asdict(), "quarter": row.quarter.isoformat()} for row in truth.usage()],
        "owed": {payer: _owed_json(truth.owed(payer)) for payer in truth.payers},
    }


def truth_tables(truth: Truth) -> RenderableType:
    """The truth for people."""
    return Group(_records_table(truth), *(_owed_table(truth.owed(payer)) for payer in truth.payers))


def _counts(truth: Truth, device: str) -> dict[str, int]:
    records = truth.records(device)
    counts = {kind: sum(count for made, count in records.items() if made.kind == kind) for kind in KINDS}
    return {**counts, "all": records.total()}


def _owed_json(owed: TrueOwed) -> dict[str, Any]:
    charges = [{**one.about._asdict(), **one._asdict()} for one in owed.charges]
    for charge in charges:
        del charge["about"]
    return {
        "currency": owed.currency,
        "net_minor": owed.net_minor,
        "gross_minor": owed.gross_minor,
        "charges": charges,
    }


def _records_table(truth: Truth) -> Table:
    table = Table(title="Records that exist")
    table.add_column("vehicle")
    for kind in (*KINDS, "all"):
        table.add_column(kind, justify="right")
    for device in truth.devices:
        table.add_row(device, *(f"{count:,}" for count in _counts(truth, device).values()))
    return table


def _owed_table(owed: TrueOwed) -> Table:
    table = Table(title=f"{owed.payer} owes {money(owed.gross_minor, owed.currency)} with tax")
    for heading in ("account", "vehicle", "for", "zone", "price"):
        table.add_column(heading)
    table.add_column("quantity", justify="right")
    table.add_column("amount", justify="right")
    for charge in owed.charges:
        about = charge.about
        what = about.meter if about.kind == "usage" else about.kind
        # "" is outside all zones of what is metered in zones, and nothing of the rest.
        words = (about.account, about.device, what, about.zone, about.price)
        table.add_row(*words, f"{charge.quantity:,}", money(charge.amount_minor, owed.currency))
    return table


def money(amount_minor: int, currency: str) -> str:
    """An amount in minor units as people write it."""
    decimals = exponent(currency)
    return f"{Decimal(amount_minor).scaleb(-decimals):,.{decimals}f} {currency}"


app = typer.Typer(
    rich_markup_mode=None,
    help="Simulate a fleet that publishes to local MQTT brokers, and compute its correct bill.",
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
    """Write a scenario: fences, vehicles, accounts, tariffs and contracts.

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
            _print_json(scenario_json(made, recording, files))
        else:
            Console().print(scenario_table(made, recording))


@app.command()
def drive(
    *,
    folder: ScenarioOption,
    broker: Annotated[list[str] | None, typer.Option(help="DEVICE=HOST:PORT of a vehicle's broker; repeat.")] = None,
    brokers: Annotated[Path | None, typer.Option(help='JSON file {"DEVICE": "HOST:PORT"}.')] = None,
    speedup: Annotated[float, typer.Option(help="Seconds of driving in one second.")] = 60.0,
    within: Annotated[float | None, typer.Option(help="Fit the drive into this many seconds instead.")] = None,
    journal: Annotated[Path | None, typer.Option(help="Journal to write; default made.jsonl in the folder.")] = None,
    timeout: Annotated[
        float, typer.Option(help="Seconds without progress of a vehicle before the drive fails.")
    ] = 60.0,
    as_json: JsonOption = False,
) -> None:
    """Drive the fleet: each vehicle publishes to its own broker. Write the journal of records.

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
            Console().print(summary_table(summary))


@app.command()
def truth(
    *,
    folder: ScenarioOption,
    journal: Annotated[str, typer.Option(help="Journal, a name in the folder or a path.")] = "made.jsonl",
    as_json: JsonOption = False,
) -> None:
    """Show the existing records, their usage and what each account owes.

    Example: fleet-simulator truth --scenario scenario
    """
    with _errors_as_messages():
        truth = Truth.from_folder(folder, Path(journal).absolute() if "/" in journal else journal)
        if as_json:
            _print_json(truth_json(truth))
        else:
            Console().print(truth_tables(truth))


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
