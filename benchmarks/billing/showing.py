"""How long it takes to show one invoice in a register that has years of them, in files as closing and issue write them.

One payer is closed and issued for real; the others' rows are its own with other payers, numbers and months.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.billing.closing import REGISTER, SHOW_S, closed_and_issued
from benchmarks.billing.lakes import FleetSize
from benchmarks.billing.processes import ran
from benchmarks.centre.lakes import unsynced
from benchmarks.centre.table import Figure
from cloud_jobs.billing.register.documents_of import issued_document
from cloud_jobs.billing.register.posting import commit_made
from cloud_jobs.billing.register.tables import Register
from cloud_jobs.lake.data_files import DataFile, write_data_files
from cloud_jobs.lake.schemas import TABLES
from cloud_jobs.lake.tables import Lake

_AT_ONCE = 2000
"""So many payers' documents are in one file."""
_ROUNDS = 5


def rows(folder: Path, payers: int, months: int) -> Iterator[Figure]:
    """Seconds of `show` with the start of its process and without."""
    place, _, _ = closed_and_issued(folder, FleetSize(payers=1, devices=10, rows=30))
    number = json.loads((folder / "issued.json").read_bytes())["documents"][0]["number"]
    lake = Lake(place)
    with unsynced():
        for month in range(months):
            for table in ("rated_lines", "closings", "documents"):
                _add_month(lake, table, payers, month)
    register = Register(lake)
    taken = []
    for _ in range(_ROUNDS):
        began = time.perf_counter()
        issued_document(register, number)
        taken.append(time.perf_counter() - began)
    shown = ran([*REGISTER, "show", number, "--lake", str(place), "--json"], folder / "shown.json")
    what = f"show; a register of {payers:,} payers and {months} months"
    yield Figure(f"{what}, without the process's start", f"< {SHOW_S} s", f"{min(taken):.2f} to {max(taken):.2f} s")
    yield Figure(f"{what}, with it", f"< {SHOW_S} s", f"{shown.seconds:.2f} s, {shown.own_mib:.0f} MiB")


def _add_month(lake: Lake, table: str, payers: int, month: int) -> None:
    """One commit of a table, as a run of all payers makes it. Of the lines there is one a payer."""
    one = lake.rows(table, where=[("payer", "=", "payer-000000")]).slice(0, 1)
    first_day = date(2024 + month // 12, month % 12 + 1, 1)

    def files(_: int) -> list[DataFile]:
        written: list[DataFile] = []
        for begin in range(0, payers, _AT_ONCE):
            at = np.arange(begin, min(begin + _AT_ONCE, payers))
            made = _of_payers(one, table, at, month * payers, first_day)
            written += write_data_files(lake.files(table), made, datetime.now(UTC), table=table)
        return written

    commit_made(lake, table, files)


def _of_payers(one: pa.Table, table: str, at: Any, counted: int, first_day: date) -> pa.Table:
    schema = TABLES[table].schema
    counters = at + counted + 2
    others: dict[str, Any] = {
        "payer": [f"other-{number:06}" for number in at],
        "number": [f"WB-EU-{counter:08}" for counter in counters] if table == "documents" else at * 0 + 1,
        "counter": counters,
        "first_day": [first_day] * len(at),
        "last_day": [first_day + timedelta(days=27)] * len(at),
        "run": [f"run-{first_day}"] * len(at),
        "attempt": [f"attempt-{first_day}"] * len(at),
    }
    columns = [
        pa.array(others[field.name], field.type)
        if field.name in others
        else pa.repeat(one[field.name][0].cast(field.type), len(at))
        for field in schema
    ]
    return pa.table(columns, schema=schema)
