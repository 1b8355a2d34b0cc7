"""Two clerks at one moment, a crash before or after the commit, a lost answer: each period is issued once."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import date, timedelta
from pathlib import Path
from random import Random
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from cloud_jobs.billing.documents import DocumentType, PrecedingInvoice
from cloud_jobs.billing.register.closing import Closing, ClosingState
from cloud_jobs.billing.register.errors import (
    AlreadyIssued,
    AlreadyVoid,
    NotClosed,
    NotFinal,
    RegisterDamaged,
    UnknownDocument,
)
from cloud_jobs.billing.register.ledger import IssuedDocument, PostedChange, check_numbers
from cloud_jobs.billing.register.operations import (
    Clerk,
    Done,
    Sealed,
    adjust_period,
    issue_period,
    void_invoice,
)
from cloud_jobs.billing.register.posting import commit_made
from cloud_jobs.billing.register.rows import closing_row
from cloud_jobs.billing.register.tables import Register
from cloud_jobs.errors import CommitFailed
from cloud_jobs.lake.data_files import DataFile, write_data_files
from cloud_jobs.lake.schemas import TABLES
from cloud_jobs.lake.tables import Lake
from tests.cloud_jobs.billing.register.closings import MARCH, NOW, closing_of

DAYS = (MARCH.first_day, MARCH.last_day)
NAMES = ("acme", "beta", "gamma")


class Killed(BaseException):
    """The process ends here."""


class PlainBooks:
    """Closings whose charges are nothing but their sums, and documents that are nothing but their numbers."""

    def load(self, closings: Collection[Closing]) -> None:
        assert len({(one.key.first_day, one.key.last_day) for one in closings}) <= 1

    def check(self, closings: Collection[Closing]) -> None:
        """What is posted here has no charges."""

    def change(self, before: Closing, after: Closing) -> PostedChange:
        net, tax = after.net_minor - before.net_minor, after.tax_minor - before.tax_minor
        return PostedChange(net_minor=net, tax_minor=tax, is_empty=not net and not tax)

    def seal(self, entry: IssuedDocument, closing: Closing | None, before: Closing | None) -> Sealed:
        assert (closing is None) == entry.is_void
        assert (before is None) == (entry.type is DocumentType.INVOICE)
        return Sealed(f'{{"number":"{entry.number}"}}', entry.number)


BOOKS = PlainBooks()


@pytest.fixture
def register(tmp_path: Path) -> Register:
    lake = Lake(tmp_path)
    lake.create()
    return Register(lake)


def close(register: Register, *closings: Closing) -> None:
    def make(counter: int) -> list[DataFile]:
        rows = [closing_row(one, NOW) | {"number": counter} for one in closings]
        made = pa.Table.from_pylist(rows, schema=TABLES["closings"].schema)
        return write_data_files(register.lake.files("closings"), made, NOW, table="closings")

    commit_made(register.lake, "closings", make)


def of(payer: str, amount: int, snapshot: int = 1, **others: Any) -> Closing:
    return closing_of(MARCH._replace(payer=payer), {"a": amount}, snapshot=snapshot, **others)


def clerk(name: str, by: str = "A. Clerk") -> Clerk:
    return Clerk(by=by, now=NOW, attempt=name)


def issued(register: Register, name: str, payers: Sequence[str] | None = None) -> Done:
    return issue_period(register, DAYS, payers, books=BOOKS, clerk=clerk(name))


def check(register: Register, expected: int) -> list[IssuedDocument]:
    """That the register has this many documents, counted without gaps, and is one."""
    documents = register.documents()
    for entity, counters in register.counters().items():
        check_numbers(counters, entity)
    register.ledger(register.lake.open("documents"), {one.key for one in documents})
    assert len(documents) == expected
    return documents


def test_all_that_is_final_is_issued_at_once_and_the_rest_is_said(register: Register) -> None:
    close(register, of("acme", 900), of("beta", 100, outcome=ClosingState.PROVISIONAL, reasons=("x is silent",)))
    done = issued(register, "first", ["acme", "beta", "gamma"])
    assert [one.number for one in done.documents] == ["WAYBILL-EU-00000001"]
    assert {type(one): one.payer for one in done.refused} == {NotFinal: "beta", NotClosed: "gamma"}
    again = issued(register, "second")
    assert (again.documents, {type(one) for one in again.refused}) == ([], {AlreadyIssued, NotFinal})
    check(register, 1)


def test_each_seller_counts_its_own_numbers(register: Register) -> None:
    other = closing_of(MARCH._replace(legal_entity="waybill-us", payer="gamma"))
    close(register, of("acme", 900), of("beta", 900), other)
    assert [one.number for one in issued(register, "first").documents] == [
        "WAYBILL-EU-00000001",
        "WAYBILL-EU-00000002",
        "WAYBILL-US-00000001",
    ]


def test_late_data_is_posted_note_by_note_up_to_what_is_due(register: Register) -> None:
    close(register, of("acme", 300))
    issued(register, "first")
    for snapshot, amount in ((2, 750), (3, 900), (4, 120)):
        close(register, of("acme", amount, snapshot))
        adjust_period(register, DAYS, None, books=BOOKS, clerk=clerk(f"adjust {snapshot}"))
    documents = check(register, 4)
    assert [one.net_minor for one in documents] == [300, 450, 150, -780]
    assert documents[-1].type is DocumentType.CREDIT_NOTE
    assert adjust_period(register, DAYS, None, books=BOOKS, clerk=clerk("again")).documents == []


def test_what_was_voided_is_issued_anew_under_a_number_of_its_own(register: Register) -> None:
    close(register, of("acme", 300))
    (invoice,) = issued(register, "first").documents
    made = void_invoice(register, invoice.number, "wrong buyer", books=BOOKS, clerk=clerk("void"))
    assert (made.net_minor, made.reference) == (
        -300,
        PrecedingInvoice(number=invoice.number, issue_date=invoice.issue_date),
    )
    assert [one.counter for one in issued(register, "second").documents] == [3]
    check(register, 3)
    with pytest.raises(UnknownDocument):
        void_invoice(register, "WAYBILL-EU-00000099", "none", books=BOOKS, clerk=clerk("other"))


def test_a_document_that_names_a_closing_which_is_not_there_is_damage(register: Register) -> None:
    with pytest.raises(RegisterDamaged, match="is not there"):
        register.closing(MARCH, "1-abc/2026-03-01/2026-03-31/run1")


def test_clerks_at_one_moment_issue_each_period_once(register: Register) -> None:
    close(register, *(of(name, 100) for name in NAMES))
    with ThreadPoolExecutor(6) as pool:
        done = [*pool.map(lambda number: issued(register, f"clerk {number}"), range(6))]
    assert sorted(len(one.documents) for one in done) == [0, 0, 0, 0, 0, 3]
    check(register, 3)


def test_clerks_with_a_payer_each_leave_no_number_out(register: Register) -> None:
    close(register, *(of(name, 100) for name in NAMES))
    with ThreadPoolExecutor(3) as pool:
        done = [*pool.map(lambda name: issued(register, name, [name]), NAMES)]
    assert sorted(one.counter for each in done for one in each.documents) == [1, 2, 3]
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


def test_an_answer_that_was_lost_behind_another_clerk_is_found_by_its_attempt(
    register: Register, commits: Callable[[Callable[..., None]], None]
) -> None:
    close(register, of("acme", 100), of("beta", 100))
    began: list[bool] = []

    def fault(make: Callable[[], None]) -> None:
        make()
        if not began:
            began.append(True)
            # another clerk commits before the first one can look whether its own commit is there
            issued(register, "other", ["beta"])
            raise OSError("connection reset")

    commits(fault)
    assert [one.key.payer for one in issued(register, "first", ["acme"]).documents] == ["acme"]
    check(register, 2)


def test_a_commit_that_never_succeeds_says_so_and_issues_nothing(
    register: Register, commits: Callable[[Callable[..., None]], None]
) -> None:
    close(register, of("acme", 100))

    def fault(make: Callable[[], None]) -> None:
        raise OSError("no space left")

    commits(fault)
    with pytest.raises(CommitFailed, match="no space left"):
        issue_period(register, DAYS, None, books=BOOKS, clerk=clerk("first"))
    check(register, 0)


def test_a_maintenance_beside_the_commit_neither_stops_nor_doubles_it(
    register: Register, commits: Callable[[Callable[..., None]], None]
) -> None:
    close(register, *(of(name, 100) for name in NAMES))
    issued(register, "one", ["acme"])
    issued(register, "two", ["beta"])
    began: list[bool] = []

    def fault(make: Callable[[], None]) -> None:
        if not began:
            began.append(True)
            register.lake.open("documents").alter.set_table_properties({"delta.checkpointInterval": "51"})
            register.lake.open("documents").optimize.compact()
        make()

    commits(fault)
    assert [one.counter for one in issued(register, "three").documents] == [3]
    check(register, 3)


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
                adjust_period(register, DAYS, None, books=BOOKS, clerk=clerk(name))
            elif invoices := [one for one in register.documents() if one.type is DocumentType.INVOICE]:
                void_invoice(register, random.choice(invoices).number, "wrong", books=BOOKS, clerk=clerk(name))
        check(register, len(register.documents()))
    commits(lambda make: make())
    issued(register, "last issue")
    adjust_period(register, DAYS, None, books=BOOKS, clerk=clerk("last adjust"))
    for payer, amount in due.items():
        assert sum(one.net_minor for one in register.documents([payer])) == amount


def test_a_payer_is_looked_up_among_many_without_reading_their_files(register: Register) -> None:
    for month in range(1, 7):
        key = MARCH._replace(first_day=date(2025, month, 1), last_day=date(2025, month, 1) + timedelta(days=20))
        close(register, *(closing_of(key._replace(payer=f"{name}")) for name in NAMES))
        issue_period(register, (key.first_day, key.last_day), None, books=BOOKS, clerk=clerk(f"month {month}"))
    document, row = register.document("WAYBILL-EU-00000004")
    assert (document.key.payer, row["attempt"], document.key.first_day.month) == ("acme", "month 2", 2)
    assert register.closing(document.key, document.closing).id == document.closing
