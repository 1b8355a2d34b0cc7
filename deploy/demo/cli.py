"""`waybill demo`: runs the scenario and prints the comparison; exits with 0 only if everything equals the truth."""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import ValidationError
from rich.console import Console
from rich.text import Text

from cloud_jobs.errors import CloudError
from cloud_jobs.terminal import Column, FittedTable
from deploy.demo.audit import Audit, DocumentAudit
from deploy.demo.plan import DemoError, DemoSettings, plan_demo, write_topology
from deploy.demo.scenario import DemoScenario
from deploy.local import LakePlace, LocalStack, LocalStackError, StackSettings, empty
from gateway.canary.status import status_table
from geo.replication import ReplicationError
from simulator import SimulatorError
from simulator.truth import TruthError
from waybill.daemon.logs import LogSettings, start_logging
from waybill.daemon.signals import raise_on_signals
from waybill.identity.errors import IdentityError

# The demo's results as a table and as JSON.

_COUNTS = ("made", "stored", "forwarded", "ingested", "lost", "unexpected")


def verdict_table(audit: Audit) -> FittedTable:
    columns = (Column("what", folds=True), Column("found", folds=True), Column("holds", right=True))
    table = FittedTable(*columns, title="Against the independent truth")
    for what, found, holds in audit.verdicts:
        table.add(what, found, Text("yes", style="green") if holds else Text("NO", style="bold red"))
    return table


def as_json(audit: Audit) -> dict[str, Any]:
    status = audit.canary.status
    return {
        "equal": audit.equal,
        "verdicts": [one._asdict() for one in audit.verdicts],
        "records": {name: sum(getattr(one, name) for one in audit.devices) for name in _COUNTS},
        "devices": {one.device: {"state": one.state, "equal": one.equal} for one in audit.devices},
        "not_final_at_first": audit.reason,
        "reconciled": audit.proof.reconciled.outcome.value,
        "explained": audit.proof.line_agrees,
        "canary": {"green": audit.canary.holds, "status": status.model_dump(mode="json") if status else None},
        "documents": [_document_values(one) for one in audit.documents],
        "posted": {
            one.payer: {"currency": one.currency, "gross_minor": one.posted_minor, "truth_minor": one.owed_minor}
            for one in audit.posted
        },
    }


def _document_values(document: DocumentAudit) -> dict[str, Any]:
    issued, true = document.issued, document.truth
    facts: dict[str, Any] = {
        "truth_minor": None if true is None else true.gross_minor,
        "charges": document.charges,
        "differing_charges": document.differing_charges,
        "equal": document.equal,
    }
    if issued is None:
        return facts
    return facts | {
        "number": issued.number,
        "type": issued.type.heading.lower(),
        "payer": issued.key.payer,
        "currency": issued.currency,
        "gross_minor": issued.gross_minor,
    }


# A pipe or a file has no width of its own; the tables need this much.
_WIDTH = None if sys.stdout.isatty() else 120
console = Console(highlight=False, width=_WIDTH)
errors = Console(stderr=True, highlight=False)


def demo(
    *,
    vehicles: Annotated[int, typer.Option(help="Number of vehicles.")] = 20,
    seed: Annotated[int, typer.Option(help="The seed of the fleet.")] = 7,
    drive_s: Annotated[float, typer.Option(help="Duration of the drive in seconds.")] = 45.0,
    timeout_s: Annotated[float, typer.Option(help="Seconds without progress before the demo fails.")] = 600.0,
    folder: Annotated[Path, typer.Option(help="Folder of the servers and tables; emptied first.")] = Path("var/demo"),
    lake: Annotated[
        LakePlace, typer.Option(help="`s3`: the tables are on an S3 server of the stack.")
    ] = LakePlace.FOLDER,
    spark_cluster: Annotated[
        bool, typer.Option("--spark-cluster", help="Run the jobs on a Spark cluster of a master and two workers.")
    ] = False,
    as_json_text: Annotated[bool, typer.Option("--json", help="The findings as one JSON object.")] = False,
) -> None:
    """Run Waybill from vehicles to checked invoices on real servers, with a cut uplink and a killed agent.

    Exit status: 0 all results are correct, 1 a result differs, 2 could not run.

    Example: waybill demo --vehicles 5 --drive-s 20
    """
    began = time.monotonic()
    # Standard output has the findings; warnings go to the log.
    start_logging(LogSettings(level="warning"))
    try:
        settings = DemoSettings(vehicles=vehicles, seed=seed, drive_s=drive_s, timeout_s=timeout_s)
        with raise_on_signals((signal.SIGTERM, signal.SIGHUP), KeyboardInterrupt()):
            size = StackSettings(lake=lake, spark=spark_cluster)
            audit = _run(folder, settings, size, quiet=as_json_text)
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
        console.print(f"\n{time.monotonic() - began:.0f} s from start to verdict")
    raise typer.Exit(0 if audit.equal else 1)


def _run(folder: Path, settings: DemoSettings, size: StackSettings, *, quiet: bool) -> Audit:
    planned = plan_demo(settings)
    empty(folder)
    began, out = time.monotonic(), errors if quiet else console
    with out.status("starting Pulsar, Mosquitto and the links") as line:

        def say(text: str) -> None:
            out.print(f"[dim]{time.monotonic() - began:6.1f} s[/dim]  {text}")

        def show(what: str, done: float, total: float) -> None:
            line.update(f"{what}: {done:,.0f} of {total:,.0f}" if total else what)

        with LocalStack(folder, topology=write_topology(folder, planned.scenario), settings=size) as stack:
            say(f"{len(stack.servers)} servers are up: Pulsar eu, us and hq, replication applied")
            return DemoScenario(stack, planned, say, show).run()


def _print(audit: Audit, folder: Path, place: LakePlace) -> None:
    console.print()
    if audit.canary.status is not None:
        console.print(status_table(audit.canary.status), "")
    console.print(verdict_table(audit))
    # an S3 server of the stack has ended with it
    if place is LakePlace.FOLDER:
        issued = [one.issued.number for one in audit.documents if one.issued]
        print_next_commands(folder, ["bill list", f"bill show {issued[0]}", *audit.proof.commands])
        console.print(f"\nSee the drive and its bill:\n  .venv/bin/waybill console --config {folder}/cloud.toml --open")


def print_next_commands(folder: Path, commands: Iterable[str]) -> None:
    """The commands are not wrapped: a wrapped one cannot be copied."""
    console.print("\nThe register is still there:")
    for command in commands:
        console.print(f"  .venv/bin/waybill {command} --lake {folder}/lake", soft_wrap=True)
