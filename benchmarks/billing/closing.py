"""What a month costs from rows of usage to numbered invoices: what `cloud-jobs close` runs, and `waybill bill issue`.

Each command is a process of its own, with Spark on two cores of this machine.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

from benchmarks.billing.lakes import FleetSize, billable_lake
from benchmarks.billing.processes import Ran, imported_mib, ran
from benchmarks.harness import Figure

FULL = FleetSize(payers=100_000, devices=10, rows=30)
"""A million devices."""
PARTS = 5
"""The smaller one of two sizes is so small a part of the larger one."""
LIMIT_S = 600
MEMORY_MIB = 300
SHOW_S = 1
REGISTER = ("waybill", "bill")
_PERIOD = ("--period", "2026-03")
_SETTINGS = """
lake = "{lake}"
checkpoints = "{lake}-checkpoints"

[[clusters]]
name = "hq"
service_url = "pulsar://127.0.0.1:6650"
admin_url = "http://127.0.0.1:8080"

[spark]
master = "local[2]"
"""


def month(folder: Path, fleet: FleetSize) -> Iterator[Figure]:
    """Closing and issue of a month: of FULL, or of a fifth of a smaller fleet and of all of it, and what follows."""
    taken: list[tuple[int, float]] = []
    is_full = fleet.all_devices >= FULL.all_devices
    for payers in (fleet.payers,) if is_full else (max(fleet.payers // PARTS, 1), fleet.payers):
        some = fleet._replace(payers=payers)
        lake, closed, issued = closed_and_issued(folder / f"{payers}", some)
        shutil.rmtree(lake)
        taken.append((some.all_devices, closed.seconds + issued.seconds))
        size = f"{some.payers:,} payers, {some.all_devices:,} devices, {some.all_rows:,} rows"
        for name, took in (("close", closed), ("issue", issued)):
            a_million = took.seconds / some.all_rows * 1e6
            # nobody waits for Spark's processes, so what cores worked for them is not known
            worked = "" if took.jvm_mib else f" ({took.cpu_s:.1f} s of cores)"
            spent = f"{took.seconds:.1f} s{worked}, {a_million:.1f} s for a million rows"
            yield Figure(f"{name}; {size}", "", f"{spent}; {_held(took)}")
    (few, less), (many, more) = taken[0], taken[-1]
    full, what = more, "both"
    if not is_full:
        # what each device takes, and what a run takes whatever is in it
        each = (more - less) / max(many - few, 1)
        full, what = less + each * (FULL.all_devices - few), "both, not run: on the line through the two sizes"
    # with few payers, or much other work, the larger size may take no longer than the smaller one
    answer = f"{full:.0f} s" if full >= more else "not known: these sizes are too small to say"
    yield Figure(f"{what}; {FULL.payers:,} payers, {FULL.all_devices:,} devices", f"< {LIMIT_S} s", answer)


def large_account(folder: Path, fleet: FleetSize) -> Iterator[Figure]:
    """One payer with many devices: what each process holds above one that imported the same and did nothing."""
    lake, closed, issued = closed_and_issued(folder, fleet)
    number = json.loads((folder / "issued.json").read_bytes())["documents"][0]["number"]
    shown = ran([*REGISTER, "show", number, "--lake", str(lake), "--json"], folder / "shown.json")
    # a clerk's command imports less than its module would by itself: it starts without pandas
    register = ran([*REGISTER, "show", "--help"], folder / "help.txt").own_mib
    job = imported_mib("cloud_jobs.jobs", folder)
    asked = f"at most {MEMORY_MIB} MiB above the import"
    for name, mib, empty, seconds in (
        ("close, driver", closed.own_mib, job, closed.seconds),
        ("close, worker", closed.worker_mib, job, closed.seconds),
        ("issue", issued.own_mib, register, issued.seconds),
        ("show", shown.own_mib, register, shown.seconds),
    ):
        what = f"{name}; one payer, {fleet.devices:,} devices"
        yield Figure(what, asked, f"{mib - empty:.0f} MiB ({mib:.0f} in all), {seconds:.1f} s with start")


def closed_and_issued(folder: Path, fleet: FleetSize) -> tuple[Path, Ran, Ran]:
    """The folder of a new lake, and what closing and issue of its month took; what they printed is in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    lake, settings = folder / "lake", folder / "cloud.toml"
    billable_lake(lake, fleet)
    settings.write_text(_SETTINGS.format(lake=lake), encoding="utf-8")
    closed = ran(["benchmarks.billing.close_of_usage", str(settings), _PERIOD[1]], folder / "closed.txt")
    issued = ran([*REGISTER, "issue", "--lake", str(lake), *_PERIOD, "--json"], folder / "issued.json")
    documents = json.loads((folder / "issued.json").read_bytes())["documents"]
    assert len(documents) == fleet.payers, f"{len(documents)} of {fleet.payers} invoices"
    return lake, closed, issued


def _held(took: Ran) -> str:
    held = [f"process {took.own_mib:.0f} MiB"]
    held += [f"largest Python worker {took.worker_mib:.0f} MiB"] if took.worker_mib else []
    held += [f"JVM {took.jvm_mib:.0f} MiB"] if took.jvm_mib else []
    return ", ".join(held)
