"""`waybill demo`: runs the scenario with visible progress and prints the tables; exits with 0 only if all is true."""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer
from pydantic import ValidationError
from rich.console import Console

from cloud_jobs.errors import CloudError
from deploy.canary.status import status_table
from deploy.demo.audit import Audit
from deploy.demo.errors import DemoError
from deploy.demo.plan import DemoSettings, plan_demo, write_topology
from deploy.demo.progress_line import ProgressLine
from deploy.demo.report import alerts_table, as_json, completeness_table, records_table, verdict_table
from deploy.demo.scenario import DemoScenario
from deploy.local import LakePlace, LocalStack, LocalStackError, SparkClusterSettings, StackSettings, empty
from geo.replication import ReplicationError
from simulator import SimulatorError
from simulator.truth import TruthError
from waybill.daemon.logs import LogSettings, start_logging
from waybill.daemon.signals import raise_on_signals
from waybill.identity.errors import IdentityError

# A pipe or a file has no width of its own; the tables need this much.
_WIDTH = None if sys.stdout.isatty() else 120
console = Console(highlight=False, width=_WIDTH)
errors = Console(stderr=True, highlight=False)


def demo(
    *,
    replay: Annotated[Path | None, typer.Option(help="A recorded track (CSV) instead of the seeded fleet.")] = None,
    vehicles: Annotated[int, typer.Option(help="How many vehicles drive.")] = 20,
    seed: Annotated[int, typer.Option(help="The seed of the fleet.")] = 7,
    drive_s: Annotated[float, typer.Option(help="How long the drive takes, in seconds.")] = 45.0,
    timeout_s: Annotated[
        float, typer.Option(help="How long something may stand still before the demo is given up, in seconds.")
    ] = 300.0,
    folder: Annotated[Path, typer.Option(help="Where the servers and tables live; emptied first.")] = Path("var/demo"),
    lake: Annotated[
        LakePlace, typer.Option(help="`s3`: the tables are on an S3 server of the stack.")
    ] = LakePlace.FOLDER,
    spark_cluster: Annotated[
        bool, typer.Option("--spark-cluster", help="Run the jobs on a Spark cluster of a master and two workers.")
    ] = False,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Servers that are open to everybody on this machine, in plain text.")
    ] = False,
    as_json_text: Annotated[bool, typer.Option("--json", help="The findings as one JSON object.")] = False,
) -> None:
    """From vehicles to checked invoices and a credit note on real servers, with a cut uplink and a killed agent.

    Exit status: 0 all equal to the truth, 1 something differs, 2 it could not be run.

    Example: waybill demo --vehicles 5 --drive-s 20
    """
    began = time.monotonic()
    # What is printed are the findings; what goes wrong on the way is said beside them.
    start_logging(LogSettings(level="warning"))
    try:
        settings = DemoSettings(replay=replay, vehicles=vehicles, seed=seed, drive_s=drive_s, timeout_s=timeout_s)
        with raise_on_signals((signal.SIGTERM, signal.SIGHUP), KeyboardInterrupt()):
            size = StackSettings(lake=lake, spark=SparkClusterSettings() if spark_cluster else None, insecure=insecure)
            audit, memory = _run(folder, settings, size, quiet=as_json_text)
    except (
        CloudError,
        DemoError,
        IdentityError,
        LocalStackError,
        ReplicationError,
        SimulatorError,
        TruthError,
        ValidationError,
        OSError,
    ) as error:
        errors.print(str(error), style="red", markup=False, soft_wrap=True)
        raise typer.Exit(2) from error
    except KeyboardInterrupt as interrupt:
        errors.print("interrupted; every server was stopped")
        raise typer.Exit(130) from interrupt
    if as_json_text:
        typer.echo(json.dumps(as_json(audit) | {"seconds": round(time.monotonic() - began, 1)}, indent=2))
    else:
        _print(audit, folder, lake)
        console.print(
            f"\n{time.monotonic() - began:.0f} s from start to verdict; the stack's memory at its peak: "
            f"{memory / 2**30:.1f} GiB"
        )
    raise typer.Exit(0 if audit.equal else 1)


def _run(folder: Path, settings: DemoSettings, size: StackSettings, *, quiet: bool) -> tuple[Audit, int]:
    # Before anything is deleted or started: a recording that cannot be read costs nothing.
    planned = plan_demo(settings)
    empty(folder)
    began = time.monotonic()
    with ProgressLine.on(errors if quiet else console, "starting Pulsar, Mosquitto and the links") as line:

        def say(text: str) -> None:
            line.console.print(f"[dim]{time.monotonic() - began:6.1f} s[/dim]  {text}")

        topology = write_topology(folder, planned.scenario)
        with LocalStack(folder, topology=topology, settings=size) as stack:
            beside = "" if stack.spark is None else f", a Spark cluster of {len(stack.spark.workers)} workers"
            beside += "" if stack.object_store is None else ", an S3 server for the lake"
            say(f"{len(stack.servers)} servers are up: Pulsar eu, us and hq, replication applied{beside}")
            scenario = DemoScenario(stack, planned, say, line.console.print, line.show)
            found = scenario.run()
            return found, scenario.peak_memory_bytes


def _print(audit: Audit, folder: Path, place: LakePlace) -> None:
    console.print()
    console.print(records_table(audit), "", completeness_table(audit), "", alerts_table(audit), "")
    if audit.canary is not None and audit.canary.status is not None:
        console.print(status_table(audit.canary.status), "")
    console.print(verdict_table(audit))
    # an S3 server of the stack has ended with it
    if place is LakePlace.FOLDER:
        issued = [one.issued.number for one in audit.documents if one.issued]
        shown = [f"bill show {number}" for number in issued[:1]]
        proven = () if audit.proof is None else audit.proof.commands
        print_next_commands(folder, ["bill list", *shown, *proven])


def print_next_commands(folder: Path, commands: Iterable[str]) -> None:
    """How to go on. The commands are not wrapped: one that is cannot be copied."""
    console.print("\nThe register is still there:")
    for command in commands:
        console.print(f"  .venv/bin/waybill {command} --lake {folder}/lake", soft_wrap=True)
