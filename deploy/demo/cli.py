"""`waybill demo`: runs the scenario with visible progress and prints the tables; exits with 0 only if all is true."""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import ValidationError
from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, Task, TaskID, TextColumn
from rich.text import Text

from cloud_jobs.billing.certificates import CertificateState
from cloud_jobs.billing.units import amount_text
from cloud_jobs.errors import CloudError
from cloud_jobs.explain.issued_line import ExplainedLine
from cloud_jobs.reconcile import Station
from cloud_jobs.terminal import Column, FittedTable
from deploy.canary.status import status_table
from deploy.demo.audit import Audit, DeviceAudit, DocumentAudit
from deploy.demo.plan import DemoError, DemoSettings, plan_demo, write_topology
from deploy.demo.processes import LockedOut
from deploy.demo.scenario import DemoScenario
from deploy.local import LakePlace, LocalStack, LocalStackError, SparkClusterSettings, StackSettings, empty
from geo.replication import ReplicationError
from simulator import SimulatorError
from simulator.truth import TruthError
from waybill.daemon.logs import LogSettings, start_logging
from waybill.daemon.signals import raise_on_signals
from waybill.identity.errors import IdentityError

# The progress line of the demo.


class _StepTime(ProgressColumn):
    """How long this step has taken. Rich's own stops where all is counted, though not all is over."""

    def render(self, task: Task) -> Text:
        return Text(str(timedelta(seconds=int(task.elapsed or 0))), style="progress.elapsed")


class ProgressLine:
    """One line at the end of the screen; each step begins its timer anew."""

    def __init__(self, progress: Progress, first: str) -> None:
        self._progress = progress
        self._what, self._task = first, self._begin(first)

    @classmethod
    @contextmanager
    def on(cls, console: Console, first: str) -> Iterator[ProgressLine]:
        """On a console; nothing is left of it."""
        columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), _StepTime())
        with Progress(*columns, console=console, transient=True) as progress:
            yield cls(progress, first)

    @property
    def console(self) -> Console:
        """Where lines are printed that stay."""
        return self._progress.console

    def show(self, what: str, done: float, total: float) -> None:
        """What is waited for, and how much of it is there; `total` 0: nobody knows."""
        if what != self._what:
            self._progress.remove_task(self._task)
            self._what, self._task = what, self._begin(what)
        if total:
            self._progress.update(self._task, completed=done, total=total)

    def _begin(self, what: str) -> TaskID:
        return self._progress.add_task(what, total=None)


# The demo's results as tables.

_NUMBERS = ("made", "stored", "forwarded", "ingested", "lost", "unexpected")


def records_table(audit: Audit) -> FittedTable:
    """How many records there were at each station, for each region and in all."""
    redelivered = sum(device.redelivered for device in audit.devices)
    caption = (
        f"duplicates removed: {redelivered:,} redelivered by the vehicles' own brokers, "
        f"{audit.duplicates_removed:,} at the centre; in conflict: {audit.conflicts}; malformed: {audit.malformed}"
    )
    columns = ("region", *_NUMBERS, "equal to the truth")
    table = _table("Records, from the vehicle to the table", *columns, caption=caption)
    regions = sorted({device.region for device in audit.devices})
    for region in regions:
        mine = [device for device in audit.devices if device.region == region]
        table.add(region, *_sums(mine), _verdict(all(device.equal for device in mine)))
    table.add_section()
    table.add("all", *_sums(audit.devices), _verdict(all(device.equal for device in audit.devices)))
    return table


def completeness_table(audit: Audit) -> FittedTable:
    """The certificate of each device."""
    table = _table(
        "Completeness of each device", "device", "made", "received", "declared lost", "missing", "state", "equal"
    )
    for device in audit.devices:
        numbers = (f"{value:,}" for value in (device.made, device.received, device.declared, device.missing))
        table.add(device.name, *numbers, device.state, _verdict(device.equal))
    return table


def verdict_table(audit: Audit) -> FittedTable:
    """Each statement, and whether it holds."""
    table = _table("Against the independent truth", "what", "found", "holds")
    devices, faults = audit.devices, audit.faults
    rows: list[tuple[str, str, bool]] = [
        (
            "each fault of the drive happened, and lasted",
            "nothing is known of them" if faults is None else faults.found,
            faults is not None and faults.holds,
        ),
        (
            "no record lost",
            f"{sum(device.lost for device in devices)} lost",
            all(not device.lost for device in devices),
        ),
        (
            "no record counted twice",
            f"{sum(device.unexpected for device in devices)} too many",
            all(not device.unexpected for device in devices),
        ),
        (
            "every device complete",
            f"{sum(device.state is CertificateState.COMPLETE for device in devices)} of {len(devices)}",
            all(device.state is CertificateState.COMPLETE for device in devices),
        ),
        ("nothing in quarantine", f"{audit.conflicts + audit.malformed}", not audit.conflicts + audit.malformed),
        (
            "usage equal in every quarter of an hour and zone",
            f"{audit.usage_quarters:,} quarters, {audit.usage_differing} differ",
            not audit.usage_differing,
        ),
    ]
    rows.append(("a silent vehicle kept its bill provisional", audit.reason or "it did not", bool(audit.reason)))
    rows += [(f"{_name(one)} equal to the last minor unit", _gross(one), one.equal) for one in audit.documents]
    rows += [
        (
            f"{one.payer} was asked for all that it owes, and no more",
            f"{amount_text(one.posted_minor, one.currency)} {one.currency}",
            one.equal,
        )
        for one in audit.posted
    ]
    if (noise := audit.noise) is not None:
        rows.append(("billed as driven without the receivers' noise", noise.found, noise.holds))
    if (proof := audit.proof) is not None:
        counted = f"{len(proof.reconciled.comparisons)} comparisons, {proof.reconciled.outcome.value}"
        line = proof.explained
        rows += [
            (" = ".join(Station), counted, proof.stations_agree),
            (f"line {line.line} of {line.number} computed again", _charged(line), proof.line_agrees),
        ]
    if (alerts := audit.alerts) is not None:
        rows.append(("each alert has its verdict", alerts.found, alerts.holds))
    if (canary := audit.canary) is not None:
        rows.append(("each hop that the canary watches is green", canary.found, canary.holds))
    if (locked_out := audit.locked_out) is not None:
        rows.append(("a revoked vehicle lost its session and got no other", locked_out.found, locked_out.holds))
    for what, figure, holds in rows:
        table.add(what, figure, _verdict(holds))
    return table


def alerts_table(audit: Audit) -> FittedTable:
    """The alerts: their kinds, how long they took, what became of them."""
    table = _table("Alerts, and what the centre says of them", "what", "found")
    if (found := audit.alerts) is not None:
        table.add("alerts", ", ".join(f"{count} {kind}" for kind, count in sorted(found.by_kind.items())))
        for where, (median_ms, p99_ms) in (
            ("raised in the region", found.region_ms),
            ("at the centre", found.centre_ms),
        ):
            # from the vehicle to that topic it is the time of its link, which the demo cuts
            table.add(f"{where}, after the batch was in the region's topic", f"p50 {median_ms} ms, p99 {p99_ms} ms")
        table.add("verdicts", ", ".join(f"{count} {kind}" for kind, count in found.verdicts.items()))
    return table


def as_json(audit: Audit) -> dict[str, Any]:
    """The findings for programs."""
    return {
        "equal": audit.equal,
        "records": {name: sum(getattr(one, name) for one in audit.devices) for name in _NUMBERS},
        "faults": None if audit.faults is None else asdict(audit.faults) | {"holds": audit.faults.holds},
        "redelivered": sum(one.redelivered for one in audit.devices),
        "duplicates_removed": audit.duplicates_removed,
        "conflicts": audit.conflicts,
        "malformed": audit.malformed,
        "devices": {one.device: {"state": one.state, "equal": one.equal} for one in audit.devices},
        "usage": {"quarters": audit.usage_quarters, "differing": audit.usage_differing},
        "not_final_at_first": audit.reason,
        "reconciled": None if audit.proof is None else audit.proof.reconciled.outcome.value,
        "explained": None if audit.proof is None else audit.proof.line_agrees,
        "locked_out": _locked_out_values(audit.locked_out),
        "alerts": None if audit.alerts is None else asdict(audit.alerts),
        "noise": None if audit.noise is None else asdict(audit.noise) | {"holds": audit.noise.holds},
        "canary": None if audit.canary is None else audit.canary.values(),
        "documents": [_document_values(one) for one in audit.documents],
        "posted": {
            one.payer: {"currency": one.currency, "gross_minor": one.posted_minor, "truth_minor": one.owed_minor}
            for one in audit.posted
        },
    }


def _locked_out_values(found: LockedOut | None) -> dict[str, Any] | None:
    if found is None:
        return None
    return {"device": found.device, "after_s": found.after_s, "refused_in": list(found.refused_in)}


def _document_values(document: DocumentAudit) -> dict[str, Any]:
    issued, true = document.issued, document.truth
    return {
        "number": None if issued is None else issued.number,
        "type": None if issued is None else issued.type.heading.lower(),
        "payer": None if issued is None else issued.key.payer,
        "currency": None if issued is None else issued.currency,
        "gross_minor": None if issued is None else issued.gross_minor,
        "truth_minor": None if true is None else true.gross_minor,
        "charges": document.charges,
        "differing_charges": document.differing_charges,
        "equal": document.equal,
    }


def _name(document: DocumentAudit) -> str:
    if document.issued is not None:
        return f"{document.issued.type.heading.lower()} {document.issued.number}"
    assert document.truth is not None, "one of both is there"
    return f"a {document.truth.kind} that was not issued to {document.truth.payer},"


def _gross(document: DocumentAudit) -> str:
    one = document.issued or document.truth
    assert one is not None, "one of both is there"
    return f"{amount_text(one.gross_minor, one.currency)} {one.currency}"


def _charged(line: ExplainedLine) -> str:
    return f"{amount_text(line.explanation.charge.amount_minor, line.currency)} {line.currency}"


def _table(title: str, *columns: str, caption: str = "") -> FittedTable:
    folds, words = {"what", "found", "state"}, {"region", "device", "what", "found", "state"}
    made = (Column(name, right=name not in words, folds=name in folds) for name in columns)
    return FittedTable(*made, title=title, caption=caption)


def _sums(devices: Iterable[DeviceAudit]) -> list[str]:
    devices = list(devices)
    return [f"{sum(getattr(one, name) for one in devices):,}" for name in _NUMBERS]


def _verdict(holds: bool) -> Text:
    return Text("yes", style="green") if holds else Text("NO", style="bold red")


# A pipe or a file has no width of its own; the tables need this much.
_WIDTH = None if sys.stdout.isatty() else 120
console = Console(highlight=False, width=_WIDTH)
errors = Console(stderr=True, highlight=False)


def demo(
    *,
    vehicles: Annotated[int, typer.Option(help="Number of vehicles.")] = 20,
    seed: Annotated[int, typer.Option(help="The seed of the fleet.")] = 7,
    drive_s: Annotated[float, typer.Option(help="Duration of the drive in seconds.")] = 45.0,
    timeout_s: Annotated[float, typer.Option(help="Seconds without progress before the demo fails.")] = 300.0,
    folder: Annotated[Path, typer.Option(help="Folder of the servers and tables; emptied first.")] = Path("var/demo"),
    lake: Annotated[
        LakePlace, typer.Option(help="`s3`: the tables are on an S3 server of the stack.")
    ] = LakePlace.FOLDER,
    spark_cluster: Annotated[
        bool, typer.Option("--spark-cluster", help="Run the jobs on a Spark cluster of a master and two workers.")
    ] = False,
    insecure: Annotated[
        bool,
        typer.Option("--insecure", help="Servers without TLS and authentication, open to everybody on this machine."),
    ] = False,
    as_json_text: Annotated[bool, typer.Option("--json", help="The findings as one JSON object.")] = False,
) -> None:
    """Run Waybill from vehicles to checked invoices on real servers, with a cut uplink and a killed agent.

    Exit status: 0 all equals the truth, 1 something differs, 2 could not run.

    Example: waybill demo --vehicles 5 --drive-s 20
    """
    began = time.monotonic()
    # What is printed are the findings; what goes wrong on the way is said beside them.
    start_logging(LogSettings(level="warning"))
    try:
        settings = DemoSettings(vehicles=vehicles, seed=seed, drive_s=drive_s, timeout_s=timeout_s)
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
