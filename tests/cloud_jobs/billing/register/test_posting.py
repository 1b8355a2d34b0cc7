"""Two clerks at one moment, a crash before or after the commit, a lost answer: each period is issued once."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from cloud_jobs.billing.documents import DocumentType
from cloud_jobs.billing.register.closing import Closing
from cloud_jobs.billing.register.documents_of import DocumentMaker
from cloud_jobs.billing.register.errors import (
    AlreadyVoid,
)
from cloud_jobs.billing.register.ledger import IssuedDocument, PostedChange, check_numbers
from cloud_jobs.billing.register.operations import (
    Clerk,
    PostingResult,
    adjust_period,
    commit_to,
    issue_period,
    void_invoice,
)
from cloud_jobs.billing.register.tables import Register, closing_row
from cloud_jobs.lake.data_files import DataFile, write_data_files
from cloud_jobs.lake.schemas import TABLES
from cloud_jobs.lake.tables import Lake
from tests.cloud_jobs.billing.register.closings import MARCH, NOW, closing_of

DAYS = (MARCH.first_day, MARCH.last_day)
NAMES = ("acme", "beta", "gamma")


class Killed(BaseException):
    """The process ends here."""


class PlainMaker(DocumentMaker):
    """Closings whose charges are nothing but their sums, and documents that are nothing but their numbers."""

    def load(self, closings: Collection[Closing]) -> None:
        assert len({(one.key.first_day, one.key.last_day) for one in closings}) <= 1

    def check(self, closings: Collection[Closing]) -> None:
        """What is posted here has no charges."""

    def change(self, before: Closing, after: Closing) -> PostedChange:
        net, tax = after.net_minor - before.net_minor, after.tax_minor - before.tax_minor
        return PostedChange(net_minor=net, tax_minor=tax, is_empty=not net and not tax)

    def seal(self, entry: IssuedDocument, closing: Closing | None, before: Closing | None) -> tuple[str, str]:
        assert (closing is None) == entry.is_void
        assert (before is None) == (entry.type is DocumentType.INVOICE)
        return (f'{{"number":"{entry.number}"}}', entry.number)


@pytest.fixture
def register(tmp_path: Path) -> Register:
    lake = Lake(tmp_path)
    lake.create()
    return Register(lake)


def close(register: Register, *closings: Closing) -> None:
    def make(_: DeltaTable, counter: int) -> list[DataFile]:
        rows = [closing_row(one, NOW) | {"number": counter} for one in closings]
        made = pa.Table.from_pylist(rows, schema=TABLES["closings"].schema)
        return write_data_files(register.lake.files("closings"), made, NOW, table="closings")

    commit_to(register.lake, "closings", make)


def of(payer: str, amount: int, snapshot: int = 1, **others: Any) -> Closing:
    return closing_of(MARCH._replace(payer=payer), {"a": amount}, snapshot=snapshot, **others)


def clerk(name: str, by: str = "A. Clerk") -> Clerk:
    return Clerk(by=by, now=NOW, attempt=name)


def issued(register: Register, name: str, payers: Sequence[str] | None = None) -> PostingResult:
    return issue_period(register, DAYS, payers, maker=PlainMaker(register), clerk=clerk(name))


def check(register: Register, expected: int) -> list[IssuedDocument]:
    """That the register has this many documents, counted without gaps, and is one."""
    documents = register.documents()
    for entity, counters in register.counters().items():
        check_numbers(counters, entity)
    register.ledger(register.lake.open("documents"), {one.key for one in documents})
    assert len(documents) == expected
    return documents


def test_clerks_at_one_moment_issue_each_period_once(register: Register) -> None:
    close(register, *(of(name, 100) for name in NAMES))
    with ThreadPoolExecutor(6) as pool:
        done = [*pool.map(lambda number: issued(register, f"clerk {number}"), range(6))]
    assert sorted(len(one.documents) for one in done) == [0, 0, 0, 0, 0, 3]
    check(register, 3)


@pytest.fixture
def commits(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[..., None]], None]:
    """Puts a function around each commit to `documents`; it is given what makes the commit."""
    real = DeltaTable.create_write_transaction

    def around(fault: Callable[..., None]) -> None:
        def commit(self: DeltaTable, *args: Any, **kwargs: Any) -> None:
            make = lambda: real(self, *args, **kwargs)  # noqa: E731
            if self.table_uri.rstrip("/").endswith("documents"):
                fault(make)
            else:
                make()

        monkeypatch.setattr(DeltaTable, "create_write_transaction", commit)

    return around


def test_an_answer_that_was_lost_issues_nothing_twice(
    register: Register, commits: Callable[[Callable[..., None]], None]
) -> None:
    close(register, of("acme", 100))
    lost = iter([True, False])

    def fault(make: Callable[[], None]) -> None:
        make()
        if next(lost):
            raise OSError("connection reset")

    commits(fault)
    assert len(issued(register, "first").documents) == 1
    check(register, 1)


def steps(seed: int) -> Iterator[tuple[str, str]]:
    random = Random(seed)
    for number in range(8):
        yield random.choice(["issue", "adjust", "void", "close"]), f"{UUID(int=random.getrandbits(128))}-{number}"


@pytest.mark.parametrize("seed", range(6))
def test_whatever_is_killed_before_or_after_a_commit_is_done_by_the_next_command(
    register: Register, commits: Callable[[Callable[..., None]], None], seed: int
) -> None:
    random = Random(seed)
    due = dict.fromkeys(NAMES, 100)
    close(register, *(of(name, amount) for name, amount in due.items()))

    def fault(make: Callable[[], None]) -> None:
        match random.randrange(4):
            case 0:
                raise Killed
            case 1:
                make()
                raise Killed
            case _:
                make()

    commits(fault)
    for snapshot, (step, name) in enumerate(steps(seed), 2):
        with suppress(Killed, AlreadyVoid):
            if step == "issue":
                issued(register, name)
            elif step == "close":
                due = {payer: amount + random.randrange(-90, 90) for payer, amount in due.items()}
                close(register, *(of(payer, amount, snapshot) for payer, amount in due.items()))
            elif step == "adjust":
                adjust_period(register, DAYS, None, maker=PlainMaker(register), clerk=clerk(name))
            elif invoices := [one for one in register.documents() if one.type is DocumentType.INVOICE]:
                void_invoice(
                    register, random.choice(invoices).number, "wrong", maker=PlainMaker(register), clerk=clerk(name)
                )
        check(register, len(register.documents()))
    commits(lambda make: make())
    issued(register, "last issue")
    adjust_period(register, DAYS, None, maker=PlainMaker(register), clerk=clerk("last adjust"))
    for payer, amount in due.items():
        assert sum(one.net_minor for one in register.documents([payer])) == amount
