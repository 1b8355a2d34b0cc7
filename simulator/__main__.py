"""fleet-simulator: writes a scenario, drives its fleet, and computes the correct results. All output is JSON."""

import json
import sys
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from simulator.drive import drive as drive_fleet
from simulator.errors import SimulatorError
from simulator.fleet import START, generated_scenario
from simulator.folder import read_folder, write_folder
from simulator.publisher import BrokerAddress, PublishSettings, publish
from simulator.scenario import Faults, GpsNoise
from simulator.truth import Truth, TruthError
from waybill.daemon.process import add_version_option, errors_as_messages
from waybill.settings import read_file

KINDS = ("position", "signal", "event", "canary", "raw")


def read_brokers(path: Path) -> dict[str, BrokerAddress]:
    """Broker addresses by device from a JSON file {device: "HOST:PORT"}. Raises SimulatorError."""
    try:
        brokers = {}
        for device, address in json.loads(read_file(path)).items():
            # From the right: the host may be an IPv6 address, which has colons too.
            host, _, port = address.rpartition(":")
            if not host:
                raise ValueError(f"{address!r} is not HOST:PORT")
            brokers[device] = BrokerAddress(host, int(port))
    except (OSError, ValueError, AttributeError, RecursionError) as error:
        raise SimulatorError(f'{path}: cannot be read as {{"DEVICE": "HOST:PORT"}}: {error}') from error
    return brokers


app = typer.Typer(
    rich_markup_mode=None,
    help="Simulate a fleet that publishes to local MQTT brokers, and compute its correct bill.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)

add_version_option(app, "fleet-simulator")
ScenarioOption = Annotated[Path, typer.Option("--scenario", help="Folder that `scenario` wrote.")]


@app.command()
def scenario(
    *,
    out: Annotated[Path, typer.Option(help="Folder to write the scenario to.")],
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same fleet.")] = 7,
    vehicles: Annotated[int, typer.Option(min=1, max=10_000)] = 20,
    regions: Annotated[str, typer.Option(help="Regions, separated by commas: eu, us, ap.")] = "eu,us",
    start: Annotated[
        datetime, typer.Option(formats=["%Y-%m-%dT%H:%M:%S%z"], help="Device time of the start, with an offset.")
    ] = START,
    duration: Annotated[int, typer.Option(min=60, help="Seconds of driving.")] = 7200,
    interval: Annotated[int, typer.Option(min=1, max=300, help="Seconds between two fixes.")] = 10,
    duplicates: Annotated[float, typer.Option(min=0, max=0.5, help="Share of messages that are sent twice.")] = 0,
    dirty: Annotated[float, typer.Option(min=0, max=1, help="Share of positions in an unusual form.")] = 0,
    wrong_clocks: Annotated[int, typer.Option(min=0, help="Vehicles with a wrong clock.")] = 0,
    late: Annotated[int, typer.Option(min=0, help="Vehicles that send everything at the end.")] = 0,
    gps_noise: Annotated[float, typer.Option(min=0, max=50, help="Noise of the receivers in metres.")] = 0,
) -> None:
    """Write a scenario: fences, vehicles, accounts, tariffs and contracts.

    Example: fleet-simulator scenario --out scenario --vehicles 5
    """
    with errors_as_messages("fleet-simulator", SimulatorError, TruthError):
        made = generated_scenario(
            seed=seed,
            vehicles=vehicles,
            regions=tuple(name.strip() for name in regions.split(",") if name.strip()),
            start=start,
            duration_s=duration,
            interval_s=interval,
            faults=Faults(duplicates=duplicates, dirty=dirty, wrong_clocks=wrong_clocks, late=late),
            gps_noise=GpsNoise(sigma_m=gps_noise) if gps_noise else None,
        )
        files = [str(path) for path in write_folder(out, made)]
        _print_json({"files": files, "vehicles": len(made.vehicles), "start": start.isoformat()})


@app.command()
def drive(
    *,
    folder: ScenarioOption,
    brokers: Annotated[Path, typer.Option(help='JSON file {"DEVICE": "HOST:PORT"}.')],
    within: Annotated[float | None, typer.Option(min=1, help="Seconds. Default: 1/60 of the drive.")] = None,
) -> None:
    """Drive the fleet: each vehicle publishes to its own broker. Write the journal of records, `made.jsonl`.

    Example: fleet-simulator drive --scenario scenario --brokers brokers.json --within 60
    """
    with errors_as_messages("fleet-simulator", SimulatorError, TruthError):
        made = read_folder(folder)
        settings = PublishSettings(speedup=made.duration_s / within if within else 60.0)
        addresses = read_brokers(brokers)
        # Checked first: opening the journal empties it, and a drive that cannot start must not destroy the last one.
        if missing := [vehicle.device for vehicle in made.vehicles if vehicle.device not in addresses]:
            raise SimulatorError(f"{brokers} has no broker for {', '.join(missing)}")
        with (
            (folder / "made.jsonl").open("w", encoding="utf-8") as journal,
            (folder / "driven.jsonl").open("w", encoding="utf-8") as driven,
        ):
            summary = publish(drive_fleet(made), addresses, settings, journal=journal, driven=driven)
        _print_json({**summary._asdict(), "complete": summary.complete})


@app.command()
def truth(*, folder: ScenarioOption) -> None:
    """Print all records, their usage and the amount that each account owes.

    Example: fleet-simulator truth --scenario scenario
    """
    with errors_as_messages("fleet-simulator", SimulatorError, TruthError):
        _print_json(truth_json(Truth.from_folder(folder)))


def truth_json(truth: Truth) -> dict[str, Any]:
    """Record counts by device and kind, usage rows, and what each payer owes."""
    owed: dict[str, Any] = {}
    for payer in truth.payers:
        one = truth.owed(payer)
        charges = []
        for charge in one.charges:
            amounts = {"quantity": charge.quantity, "free": charge.free, "amount_minor": charge.amount_minor}
            charges.append({**charge.about._asdict(), **amounts})
        sums = {"currency": one.currency, "net_minor": one.net_minor, "gross_minor": one.gross_minor}
        owed[payer] = {**sums, "charges": charges}
    return {
        "records": {device: _counts(truth, device) for device in truth.devices},
        "usage": [{**row._asdict(), "quarter": row.quarter.isoformat()} for row in truth.usage()],
        "owed": owed,
    }


def _counts(truth: Truth, device: str) -> dict[str, int]:
    records = truth.records(device)
    counts = {kind: sum(count for made, count in records.items() if made.kind == kind) for kind in KINDS}
    return {**counts, "all": records.total()}


def _print_json(content: object) -> None:
    sys.stdout.write(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    app()
