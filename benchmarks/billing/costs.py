"""What billing costs. Each command is a process of its own, with Spark on two cores of this machine."""

import json
import resource
import shutil
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import psutil
import pyarrow as pa

from benchmarks.billing.fleets import (
    DAYS,
    FIRST_DAY,
    FleetSize,
    Past,
    add_visits,
    billable_lake,
    contracts,
    metered_lake,
    usage,
)
from benchmarks.harness import Figure, limited, peak_mib
from benchmarks.lakes import built, new_lake, unsynced
from cloud_jobs.billing.contracts import Tariff, TariffSpan
from cloud_jobs.billing.contracts.published import EVER
from cloud_jobs.billing.rating import PriceBooks, cells_of_usage, rate
from cloud_jobs.billing.rating.pools import PriceBook
from cloud_jobs.billing.register.close import close_period, gc_disabled
from cloud_jobs.billing.register.closer import ClosingRun
from cloud_jobs.billing.register.operations import Clerk, commit_to, issue_period
from cloud_jobs.billing.register.tables import Register
from cloud_jobs.billing.units import Meter
from cloud_jobs.lake.data_files import DataFile, write_data_files
from cloud_jobs.lake.schemas import TABLES
from cloud_jobs.lake.snapshots import take_snapshot
from cloud_jobs.lake.tables import Lake
from geo.reference.messages import MAX_BYTES
from tests.cloud_jobs.billing.contracts import makers

_PAUSE_S = 0.2


class CommandCost(NamedTuple):
    """Seconds in all and of cores, and the most MiB: its own, and of the largest Python process below it."""

    seconds: float
    cpu_s: float
    own_mib: float
    worker_mib: float


def ran(arguments: Sequence[str], output: Path) -> CommandCost:
    """Runs a module of the project by this interpreter; what it prints goes to a file."""
    own = worker = 0.0
    before = _worked_s()
    with output.open("wb") as file:
        began = time.perf_counter()
        process = subprocess.Popen([sys.executable, "-m", *arguments], stdout=file)
        root = psutil.Process(process.pid)
        while process.poll() is None:
            with suppress(psutil.Error, OSError):
                own = max(own, peak_mib(process.pid))
                below = [one.pid for one in root.children(recursive=True) if one.name() != "java"]
                worker = max(worker, *map(peak_mib, below), 0.0)
            time.sleep(_PAUSE_S if time.perf_counter() - began > 1 else _PAUSE_S / 10)
        seconds = time.perf_counter() - began
    assert process.returncode == 0, f"{arguments} ended with {process.returncode}"
    return CommandCost(seconds, _worked_s() - before, own, worker)


def _worked_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def imported_mib(module: str) -> float:
    """MiB of a process that only imports a module, and so what is held before any work is done."""
    program = f"import {module}; from benchmarks.harness import peak_mib; print(peak_mib())"
    return float(subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, text=True).stdout)


GROUP = 500
FULL_DEVICES = 1_000_000
RATING_S = 300


def rating(asked: Namespace) -> Iterator[Figure]:
    """Seconds of one core from rows of usage to charges; payers in groups, as a task of the closing rates them."""
    fleet, random = FleetSize(asked.payers, asked.devices, asked.rows), np.random.default_rng(1)
    spent, charges, books = 0.0, 0, PriceBooks()
    for first in range(0, asked.payers, GROUP):
        payers = min(GROUP, asked.payers - first)
        agreed = contracts(fleet, first, payers, daily_cap=asked.daily_cap)
        table = pa.concat_tables(usage(fleet, first * asked.devices, (first + payers) * asked.devices))
        table = table.take(pa.array(random.permutation(table.num_rows)))
        with gc_disabled():
            began = time.process_time()
            found = cells_of_usage(agreed, table)
            rated = [rate(contract, *of, books) for contract, of in zip(agreed, found, strict=True)]
            spent += time.process_time() - began
        charges += sum(len(one.charges) for one in rated)
    size = f"{asked.payers:,} payers, {fleet.all_devices:,} devices, {fleet.all_rows:,} rows: {charges:,} charges"
    yield Figure(f"rating, one core; {size}", f"{spent:.1f} s, {spent / fleet.all_rows * 1e6:.1f} s for a million rows")
    full = spent * FULL_DEVICES / fleet.all_devices
    yield limited(f"{FULL_DEVICES:,} devices, by the ratio", full, "<", RATING_S, "{:.1f} s of a core")
    yield Figure("largest resident memory", f"{peak_mib():.0f} MiB")


def price_table(segments: int, classes: int) -> Iterator[Figure]:
    """A price list with an amount for each segment and class: its size, and the time until each has a price."""
    amounts = [{f"seg-{at}": f"0.{at % 900 + of:03}" for at in range(segments)} for of in range(classes)]
    prices = [
        {"meter": "crossing", "unit": "each", "devices": {"class": str(of)}, "amounts": amounts[of]}
        for of in range(classes)
    ]
    made = makers.tariff(*prices, currency="EUR")
    body = json.dumps(made, separators=(",", ":"))
    yield limited(f"publication; {classes} classes x {segments:,} segments", len(body), "<=", MAX_BYTES, "{:,} bytes")
    before, began = peak_mib(), time.process_time()
    read = Tariff.model_validate_json(body)
    yield Figure("read and checked", f"{time.process_time() - began:.1f} s, {peak_mib() - before:.0f} MiB")
    agreed = contracts(FleetSize(1, 1, 1), 0, 1, daily_cap=False)[0]
    began = time.process_time()
    book = PriceBook((TariffSpan(0, EVER, read),), agreed)
    found = [book.price(0, Meter.CROSSING, zone, "", (("class", "0"),)) for zone in amounts[0]]
    assert None not in found
    yield Figure(f"prices of {segments:,} segments found", f"{time.process_time() - began:.1f} s")


FULL = FleetSize(payers=100_000, devices=10, rows=30)
_PARTS = 5
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
    for payers in (fleet.payers,) if is_full else (max(fleet.payers // _PARTS, 1), fleet.payers):
        some = fleet._replace(payers=payers)
        lake, closed, issued = closed_and_issued(folder / f"{payers}", some)
        shutil.rmtree(lake)
        taken.append((some.all_devices, closed.seconds + issued.seconds))
        size = f"{some.payers:,} payers, {some.all_devices:,} devices, {some.all_rows:,} rows"
        for name, took in (("close", closed), ("issue", issued)):
            a_million = took.seconds / some.all_rows * 1e6
            spent = f"{took.seconds:.1f} s, {a_million:.1f} s for a million rows"
            worker = f", largest Python worker {took.worker_mib:.0f} MiB" if took.worker_mib else ""
            yield Figure(f"{name}; {size}", f"{spent}; process {took.own_mib:.0f} MiB{worker}")
    (few, less), (many, more) = taken[0], taken[-1]
    full, what = more, "both"
    if not is_full:
        # what each device takes, and what a run takes whatever is in it
        each = (more - less) / max(many - few, 1)
        full, what = less + each * (FULL.all_devices - few), "both, not run: on the line through the two sizes"
    what += f"; {FULL.payers:,} payers, {FULL.all_devices:,} devices"
    # with few payers, or much other work, the larger size may take no longer than the smaller one
    is_known = full >= more
    unknown = Figure(what, "not known: these sizes are too small to say", f"< {LIMIT_S} s")
    yield limited(what, full, "<", LIMIT_S, "{:.0f} s") if is_known else unknown


_FACTS_SHARE = 0.2


def visits(folder: Path, fleet: FleetSize) -> Iterator[Figure]:
    """A closing whose tariff sells visits and their time against one that sells usage, in this process."""
    with unsynced():
        lake = billable_lake(folder, fleet)
        times = [_closed_s(lake) for _ in range(2)]
        events = add_visits(lake, fleet)
        times.append(_closed_s(lake))
    # the first one also imports and warms up
    more = times[2] / times[1] - 1
    size = f"{fleet.all_devices:,} devices, {fleet.all_rows:,} rows of usage, {events:,} events"
    yield Figure(f"close, one core; {size}", f"{times[1]:.1f} s without visits, {times[2]:.1f} s with them")
    yield limited("visits on top of usage", more * 100, "<", _FACTS_SHARE * 100, "{:.0f} %")


def _closed_s(lake: Lake) -> float:
    now = datetime.now(UTC)
    taken = take_snapshot(lake, now)
    run, began = ClosingRun(name=str(now), snapshot=taken.number, snapshot_id=taken.id, now=now), time.process_time()
    found = close_period(lake, taken, MARCH, None, run=run, against_records=False)
    assert all(one.outcome == "final" for one in found), found[0].reasons
    return time.process_time() - began


def large_account(folder: Path, fleet: FleetSize) -> Iterator[Figure]:
    """One payer with many devices: what each process holds above one that imported the same and did nothing."""
    lake, closed, issued = closed_and_issued(folder, fleet)
    number = json.loads((folder / "issued.json").read_bytes())["documents"][0]["number"]
    shown = ran([*REGISTER, "show", number, "--lake", str(lake), "--json"], folder / "shown.json")
    # a clerk's command imports less than its module would by itself: it starts without pandas
    register = ran([*REGISTER, "show", "--help"], folder / "help.txt").own_mib
    job = imported_mib("cloud_jobs.jobs")
    asked = f"at most {MEMORY_MIB} MiB above the import"
    for name, mib, empty, seconds in (
        ("close, driver", closed.own_mib, job, closed.seconds),
        ("close, worker", closed.worker_mib, job, closed.seconds),
        ("issue", issued.own_mib, register, issued.seconds),
        ("show", shown.own_mib, register, shown.seconds),
    ):
        what = f"{name}; one payer, {fleet.devices:,} devices"
        text = f"{mib - empty:.0f} MiB ({mib:.0f} in all), {seconds:.1f} s with start"
        yield Figure(what, text, asked, mib - empty <= MEMORY_MIB)


def closed_and_issued(folder: Path, fleet: FleetSize) -> tuple[Path, CommandCost, CommandCost]:
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


EXPLAIN_S = 3
_EXPLAIN_ROUNDS = 3
MARCH: tuple[date, date] = (FIRST_DAY.date(), (FIRST_DAY + timedelta(days=DAYS - 1)).date())


def explain(folder: Path, past: Past) -> Iterator[Figure]:
    """Seconds of `explain` from the start of its process, of the line with the most hours. The lake is built once."""
    place = folder / f"explain-{past.records}-{past.commits}-{past.fences}"
    built(place, lambda empty: _invoiced(metered_lake(empty, past)))
    command = [*REGISTER, "explain", "WB-EU-00000001", "1", "--lake", str(place), "--json"]
    taken = [ran(command, place / "explained.json") for _ in range(_EXPLAIN_ROUNDS)]
    found = json.loads((place / "explained.json").read_bytes())
    assert found["agrees"] is True, found
    size = f"{past.records:,} records, {past.commits:,} commits, {past.fences:,} fences, {found['hours_in_all']} hours"
    yield _spread(f"explain; {size}", taken, EXPLAIN_S)


def _spread(what: str, taken: list[CommandCost], limit_s: float) -> Figure:
    seconds, cpu = sorted(one.seconds for one in taken), min(one.cpu_s for one in taken)
    spent = f"{seconds[0]:.2f} to {seconds[-1]:.2f} s ({cpu:.2f} s of cores), {taken[-1].own_mib:.0f} MiB"
    return Figure(what, spent, f"< {limit_s} s", seconds[-1] < limit_s)


def _invoiced(lake: Lake, *, against_records: bool = True) -> Lake:
    """Closes and issues March of the one payer, in this process. `against_records`: see `close_period`."""
    now = datetime.now(UTC)
    taken, register = take_snapshot(lake, now), Register(lake)
    run = ClosingRun(name="run", snapshot=taken.number, snapshot_id=taken.id, now=now)
    close_period(lake, taken, MARCH, None, run=run, against_records=against_records)
    clerk = Clerk(by="bench", now=now, attempt="attempt")
    done = issue_period(register, MARCH, None, clerk=clerk)
    assert len(done.documents) == 1, done.refused
    return lake


_PAYER: Final = "payer-000000"
_NUMBER: Final = "WB-EU-00000001"
_ROUNDS: Final = 5
_IN_FILE: Final = {"rated_lines": 400, "documents": 2000}
"""So many payers' rows are in one file; of `closings` all."""
_OF_RUN: Final = ("run", "attempt")
_DIGESTS: Final = ("digest", "lines_digest", "body_digest", "certificates_digest")


def _first_day(month: int) -> date:
    return date(2026 + (month + 2) // 12, (month + 2) % 12 + 1, 1)


def show(folder: Path, payers: int, months: int) -> Iterator[Figure]:
    """One payer is closed and issued; rows of the others are made of its own, with other names, numbers and months."""
    place = folder / "one"
    real, full = billable_lake(place, FleetSize(payers=1, devices=10, rows=30)), new_lake(folder / "register")
    _invoiced(real, against_records=False)
    with unsynced():
        for month in range(months):
            for table in ("rated_lines", "closings", "documents"):
                _add_month(real, full, table, month, payers)
    what = f"a register of {payers * months:,} invoices, of {payers:,} payers and {months} months"
    for name, lake in (("a register of one invoice", place), (what, folder / "register")):
        command = [*REGISTER, "show", _NUMBER, "--lake", str(lake), "--json"]
        taken = [ran(command, folder / "shown.json") for _ in range(_ROUNDS)]
        assert json.loads((folder / "shown.json").read_bytes())["invoice_number"] == _NUMBER
        yield _spread(f"show; {name}", taken, SHOW_S)


def _add_month(real: Lake, full: Lake, table: str, month: int, payers: int) -> None:
    """One commit of a table, as a run of all payers makes it; other months, which nobody opens, have a line of each."""
    own = real.rows(table)
    each = own if month == 0 else own.slice(0, 1)
    at_once = _IN_FILE.get(table, payers)

    def files(*_: object) -> list[DataFile]:
        written: list[DataFile] = []
        for begin in range(0, payers, at_once):
            # the first of the first month is the real one
            of_real = month == begin == 0
            at = np.arange(begin + of_real, min(begin + at_once, payers))
            made = pa.concat_tables(
                [*([own] if of_real else []), _of_payers(each, table, at, month, at + month * payers + 1)]
            )
            written += write_data_files(full.files(table), made, datetime.now(UTC), table=table)
        return written

    commit_to(full, table, files)


def _of_payers(each: pa.Table, table: str, at: Any, month: int, counters: Any) -> pa.Table:
    names, numbers = [f"payer-{one:06}" for one in at], [f"WB-EU-{one:08}" for one in counters]
    bits = np.random.default_rng((*counters[:1], each.num_rows)).bytes(32 * len(at) * each.num_rows).hex()
    is_month = f"month-{month}-" if month else ""
    in_row = np.repeat(np.arange(len(at)), each.num_rows)

    def column(field: pa.Field) -> Any:
        if field.name in {"number", "counter"} and table == "documents":
            return numbers if field.name == "number" else counters
        if field.name in {"first_day", "last_day"}:
            day = _first_day(month) if field.name == "first_day" else _first_day(month + 1) - timedelta(days=1)
            return pa.repeat(pa.scalar(day, field.type), len(in_row))
        if field.name in _DIGESTS:
            size = len(each[field.name][0].as_py() or "")
            return [bits[64 * row : 64 * row + size] for row in range(len(in_row))]
        own = each[field.name].to_pylist()
        if field.name in _OF_RUN:
            return [is_month + one for one in own] * len(at)
        if field.name in {"payer", "account", "head", "parties", "control_totals", "closing"}:
            return [
                one.replace(_PAYER, name).replace(_NUMBER, number)
                for name, number in zip(names, numbers, strict=True)
                for one in own
            ]
        return each[field.name].combine_chunks().take(pa.array(np.tile(np.arange(each.num_rows), len(at))))

    schema = TABLES[table].schema
    made = [(column(field), field.type) for field in schema]
    columns = [one if isinstance(one, pa.Array) else pa.array(one, kind) for one, kind in made]
    return pa.table(columns, schema=schema)
