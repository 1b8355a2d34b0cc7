"""How long it takes to show one invoice in a register that has years of them, in files as closing and issue write them.

One payer is closed and issued for real, and its rows are in the register as they are. Those of the others are made of
them, with other names, numbers, months and digests: they lie beside it, and no document could be made of them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from benchmarks.billing.closing import REGISTER, SHOW_S
from benchmarks.billing.explaining import invoiced
from benchmarks.billing.lakes import FleetSize, billable_lake
from benchmarks.billing.processes import ran
from benchmarks.centre.lakes import new_lake, unsynced
from benchmarks.harness import Figure
from cloud_jobs.billing.register.operations import commit_to
from cloud_jobs.lake.data_files import DataFile, write_data_files
from cloud_jobs.lake.schemas import TABLES
from cloud_jobs.lake.tables import Lake

_PAYER: Final = "payer-000000"
_NUMBER: Final = "WB-EU-00000001"
_ROUNDS: Final = 5
_IN_FILE: Final = {"rated_lines": 400, "documents": 2000}
"""So many payers' rows are in one file; of `closings` all."""
_OF_RUN: Final = ("run", "attempt")
_DIGESTS: Final = ("digest", "lines_digest", "body_digest", "certificates_digest")


class _Month(NamedTuple):
    """Which month of the register, from 0: that of the real payer; and how many payers each has."""

    at: int
    payers: int

    @property
    def first_day(self) -> date:
        return date(2026 + (self.at + 2) // 12, (self.at + 2) % 12 + 1, 1)

    @property
    def last_day(self) -> date:
        after = _Month(self.at + 1, self.payers).first_day
        return date.fromordinal(after.toordinal() - 1)


def rows(folder: Path, payers: int, months: int) -> Iterator[Figure]:
    place = folder / "one"
    real, full = billable_lake(place, FleetSize(payers=1, devices=10, rows=30)), new_lake(folder / "register")
    invoiced(real, against_records=False)
    what = f"a register of {payers * months:,} invoices, of {payers:,} payers and {months} months"
    yield _shown("show; a register of one invoice", place, folder, _of_number)
    with unsynced():
        for month in range(months):
            for table in ("rated_lines", "closings", "documents"):
                _add_month(real, full, table, _Month(month, payers))
    place = folder / "register"
    yield _shown(f"show; {what}", place, folder, _of_number)
    yield _shown(f"list of one payer; {what}", place, folder, lambda found: len(found) == months)


def _of_number(found: Any) -> bool:
    return bool(found["invoice_number"] == _NUMBER)


def _shown(what: str, lake: Path, folder: Path, is_right: Callable[[Any], bool]) -> Figure:
    command = ["show", _NUMBER] if what.startswith("show") else ["list", "--payer", _PAYER]
    output = folder / "shown.json"
    taken = [ran([*REGISTER, *command, "--lake", str(lake), "--json"], output) for _ in range(_ROUNDS)]
    assert is_right(json.loads(output.read_bytes())), f"{command} gives another answer"
    seconds, cpu = sorted(one.seconds for one in taken), min(one.cpu_s for one in taken)
    spent = f"{seconds[0]:.2f} to {seconds[-1]:.2f} s ({cpu:.2f} s of cores), {taken[-1].own_mib:.0f} MiB"
    return Figure(what, f"< {SHOW_S} s", spent)


def _add_month(real: Lake, full: Lake, table: str, month: _Month) -> None:
    """One commit of a table, as a run of all payers makes it; each has all lines in the month of the real payer, and
    one in the others, whose files are not opened."""
    own = real.rows(table)
    each = own if month.at == 0 else own.slice(0, 1)
    at_once = _IN_FILE.get(table, month.payers)

    def files(*_: object) -> list[DataFile]:
        written: list[DataFile] = []
        for begin in range(0, month.payers, at_once):
            # the first of the first month is the real one
            of_real = month.at == begin == 0
            at = np.arange(begin + of_real, min(begin + at_once, month.payers))
            made = pa.concat_tables([*([own] if of_real else []), _of_payers(each, table, at, month)])
            written += write_data_files(full.files(table), made, datetime.now(UTC), table=table)
        return written

    commit_to(full, table, files)


def _of_payers(each: pa.Table, table: str, at: Any, month: _Month) -> pa.Table:
    counters = at + month.at * month.payers + 1
    names, numbers = [f"payer-{one:06}" for one in at], [f"WB-EU-{one:08}" for one in counters]
    bits = np.random.default_rng((*counters[:1], each.num_rows)).bytes(32 * len(at) * each.num_rows).hex()
    is_month = f"month-{month.at}-" if month.at else ""
    in_row = np.repeat(np.arange(len(at)), each.num_rows)

    def column(field: pa.Field) -> Any:
        if field.name in {"number", "counter"} and table == "documents":
            return numbers if field.name == "number" else counters
        if field.name in {"first_day", "last_day"}:
            return pa.repeat(pa.scalar(getattr(month, field.name), field.type), len(in_row))
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

    made = [column(field) for field in TABLES[table].schema]
    schema = TABLES[table].schema
    return pa.table(
        [
            one if isinstance(one, pa.Array) else pa.array(one, field.type)
            for one, field in zip(made, schema, strict=True)
        ],
        schema=schema,
    )
