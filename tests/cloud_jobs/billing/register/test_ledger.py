"""What the register refuses, and what a note says."""

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from cloud_jobs.billing.documents import DocumentType, PrecedingInvoice
from cloud_jobs.billing.rating import Charge
from cloud_jobs.billing.register import tables as rows
from cloud_jobs.billing.register.closing import Closing, ClosingState, PeriodKey
from cloud_jobs.billing.register.documents_of import DocumentMaker
from cloud_jobs.billing.register.errors import (
    AlreadyIssued,
    AlreadyVoid,
    Blocked,
    FuturePeriod,
    NoInvoice,
    NotFinal,
    NothingToAdjust,
    OtherClocks,
    OtherCurrency,
    OtherSeller,
    OverlappingPeriod,
    RegisterDamaged,
    RegisterRefusal,
)
from cloud_jobs.billing.register.ledger import IssuedDocument, Ledger, PostedChange, adjust, check_numbers, issue, void
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
from tests.cloud_jobs.billing.documents.rated import charges
from tests.cloud_jobs.billing.register.closings import MARCH, NOW, change_between, closing_of
from tests.examples import examples
from tests.new_lakes import new_lake

NOTHING = change_between({}, {})


def test_a_day_of_an_issued_month_is_not_issued_besides() -> None:
    ledger = Ledger([issue(Ledger(), closing_of(), NOW)])
    day = MARCH._replace(first_day=date(2026, 3, 31))
    with pytest.raises(OverlappingPeriod):
        issue(ledger, closing_of(day), NOW)
    other_seller = day._replace(legal_entity="waybill-us")
    with pytest.raises(OverlappingPeriod):
        issue(ledger, closing_of(other_seller), NOW)
    assert issue(ledger, closing_of(day._replace(payer="beta")), NOW).counter == 2
    assert issue(ledger, closing_of(PeriodKey("waybill-eu", "acme", date(2026, 4, 1), date(2026, 4, 1))), NOW)


def test_a_month_that_has_not_ended_is_not_issued() -> None:
    year_2030 = MARCH._replace(first_day=date(2030, 1, 1), last_day=date(2030, 1, 31))
    with pytest.raises(FuturePeriod):
        issue(Ledger(), closing_of(year_2030), NOW)
    end = closing_of().period_end
    with pytest.raises(FuturePeriod):
        issue(Ledger(), closing_of(), end - timedelta(microseconds=1))
    assert issue(Ledger(), closing_of(), end)


@pytest.mark.parametrize(
    ("outcome", "refusal"), [(ClosingState.PROVISIONAL, NotFinal), (ClosingState.BLOCKED, Blocked)], ids=str
)
def test_what_is_not_final_is_not_posted_and_says_why(outcome: str, refusal: type[Exception]) -> None:
    with pytest.raises(refusal, match="device 7 is open"):
        issue(Ledger(), closing_of(outcome=ClosingState(outcome), reasons=("device 7 is open",)), NOW)
    ledger = Ledger([issue(Ledger(), closing_of(), NOW)])
    with pytest.raises(refusal, match="device 7 is open"):
        adjust(
            ledger,
            closing_of(snapshot=2, outcome=ClosingState(outcome), reasons=("device 7 is open",)),
            change_between({}, {"a": 1}),
            NOW,
        )


def test_a_note_belongs_to_an_invoice_and_names_it() -> None:
    newer = closing_of(charges={"a": 500}, snapshot=2)
    with pytest.raises(NoInvoice):
        adjust(Ledger(), newer, change_between({}, {"a": 500}), NOW)
    invoice = issue(Ledger(), closing_of(), NOW)
    note = adjust(Ledger([invoice]), newer, change_between({"a": 900}, {"a": 500}), NOW)
    assert note.type is DocumentType.CREDIT_NOTE
    assert note.reference == PrecedingInvoice(number=invoice.number, issue_date=invoice.issue_date)
    assert (note.net_minor, note.tax_minor, note.counter) == (-400, -80, 2)
    more = adjust(Ledger([invoice]), newer, change_between({"a": 900}, {"a": 901}), NOW)
    assert more.type is DocumentType.DEBIT_NOTE


def test_an_adjustment_is_never_between_two_currencies() -> None:
    ledger = Ledger([issue(Ledger(), closing_of(), NOW)])
    with pytest.raises(OtherCurrency, match="EUR"):
        adjust(ledger, closing_of(snapshot=2, currency="USD"), change_between({}, {"a": 1}), NOW)


def test_the_date_is_the_payers_day_and_never_before_that_of_the_number_before() -> None:
    late = datetime(2026, 5, 31, 22, 30, tzinfo=UTC)
    ledger = Ledger()
    ledger.add(issue(ledger, closing_of(), late))
    assert ledger.numbering("waybill-eu").issue_date == date(2026, 6, 1), "it is June in Berlin"
    behind = issue(ledger, closing_of(MARCH._replace(payer="beta")), late - timedelta(days=2))
    assert behind.issue_date == date(2026, 6, 1)


def test_documents_that_contradict_each_other_are_damage() -> None:
    ledger = Ledger()
    invoice = issue(ledger, closing_of(), NOW)
    of_beta = issue(Ledger([invoice]), closing_of(MARCH._replace(payer="beta")), NOW)
    note = adjust(Ledger([invoice]), closing_of(snapshot=2), change_between({}, {"a": 1}), NOW)
    for damaged in ([invoice, of_beta, invoice], [note, of_beta]):
        with pytest.raises(RegisterDamaged):
            Ledger(damaged)
    with pytest.raises(RegisterDamaged):
        Ledger([invoice]).add(issue(Ledger(), closing_of(MARCH._replace(payer="beta")), NOW))


def test_days_beside_those_of_an_invoice_are_by_the_same_clocks() -> None:
    invoice = issue(Ledger(), closing_of(), NOW)
    april = MARCH._replace(first_day=date(2026, 4, 1), last_day=date(2026, 4, 30))
    elsewhere = replace(closing_of(april), time_zone="Asia/Tokyo")
    with pytest.raises(OtherClocks, match="Europe/Berlin"):
        issue(Ledger([invoice]), elsewhere, NOW)
    assert issue(Ledger([invoice]), closing_of(april), NOW)
    may = MARCH._replace(first_day=date(2026, 5, 1), last_day=date(2026, 5, 31))
    assert issue(Ledger([invoice]), replace(elsewhere, key=may), NOW)
    with pytest.raises(OtherClocks):
        adjust(Ledger([invoice]), replace(closing_of(snapshot=2), time_zone="Asia/Tokyo"), NOTHING, NOW)


def test_an_invoice_of_another_seller_is_named_by_issue_and_adjust_and_a_blocked_closing_says_why() -> None:
    invoice = issue(Ledger(), closing_of(), NOW)
    other = MARCH._replace(legal_entity="another")
    newer = closing_of(other, snapshot=2)
    blocked = closing_of(other, snapshot=2, outcome=ClosingState.BLOCKED, reasons=("no price",))
    for closing, refusal in ((newer, OtherSeller), (blocked, Blocked)):
        with pytest.raises(refusal):
            issue(Ledger([invoice]), closing, NOW)
        with pytest.raises(refusal):
            adjust(Ledger([invoice]), closing, NOTHING, NOW)


def test_a_gap_in_the_numbers_is_found() -> None:
    assert check_numbers([2, 1, 3], "one") == 3
    for counters in ([1, 3], [2], [1, 2, 2]):
        with pytest.raises(RegisterDamaged, match="have a gap"):
            check_numbers(counters, "one")


ENTITIES, PAYERS = ("one", "two"), ("acme", "beta")
FIRST = date(2026, 1, 1)
CHARGES = st.dictionaries(st.sampled_from("abc"), st.integers(-300, 900), max_size=3)


def keys() -> st.SearchStrategy[PeriodKey]:
    def key(entity: str, payer: str, first: int, days: int) -> PeriodKey:
        return PeriodKey(entity, payer, FIRST + timedelta(days=first), FIRST + timedelta(days=first + days))

    return st.builds(key, st.sampled_from(ENTITIES), st.sampled_from(PAYERS), st.integers(0, 6), st.integers(0, 3))


class RegisterMachine(RuleBasedStateMachine):
    """Beside the ledger a plain sum of all that was posted, charge for charge."""

    def __init__(self) -> None:
        super().__init__()
        self.documents: list[IssuedDocument] = []
        self.charges: dict[str, dict[str, int]] = {"": {}}
        self.closings: list[Closing] = []
        self.sums: dict[PeriodKey, Counter[str]] = defaultdict(Counter)

    @property
    def ledger(self) -> Ledger:
        return Ledger(reversed(self.documents))

    def posted(self, document: IssuedDocument) -> None:
        ledger = self.ledger
        ledger.add(document)
        self.documents.append(document)
        before, after = self.charges[document.before], self.charges[document.closing]
        for name in {*before, *after}:
            self.sums[document.key][name] += after.get(name, 0) - before.get(name, 0)

    @rule(key=keys(), charges=CHARGES, snapshot=st.integers(1, 9), outcome=st.sampled_from(ClosingState))
    def close(self, key: PeriodKey, charges: dict[str, int], snapshot: int, outcome: ClosingState) -> None:
        made = closing_of(key, charges, snapshot=snapshot, number=len(self.closings) + 1, outcome=outcome)
        self.closings.append(made)
        self.charges[made.id] = charges

    @rule(data=st.data())
    def issue(self, data: st.DataObject) -> None:
        if self.closings:
            closing = data.draw(st.sampled_from(self.closings))
            with suppress(RegisterRefusal):
                self.posted(issue(self.ledger, closing, NOW))

    @rule(data=st.data())
    def adjust(self, data: st.DataObject) -> None:
        if self.closings:
            closing = data.draw(st.sampled_from(self.closings))
            before = self.ledger.posted(closing.key)
            change = change_between(self.charges[before.closing if before else ""], self.charges[closing.id])
            with suppress(RegisterRefusal):
                self.posted(adjust(self.ledger, closing, change, NOW))

    @rule(data=st.data())
    def void(self, data: st.DataObject) -> None:
        invoices = [one for one in self.documents if one.type is DocumentType.INVOICE]
        if invoices:
            invoice = data.draw(st.sampled_from(invoices))
            with suppress(AlreadyVoid):
                standing = self.ledger.posted_to(invoice.key.legal_entity, invoice.number).closing
                closing = next(one for one in self.closings if one.id == standing)
                made = void(self.ledger, invoice.number, closing, NOW, by="A. Clerk", reason="wrong address")
                self.posted(made)
                assert self.ledger.posted(made.key) is None

    @invariant()
    def numbers_have_no_gaps(self) -> None:
        for entity in ENTITIES:
            of_entity = [one for one in self.documents if one.key.legal_entity == entity]
            assert check_numbers((one.counter for one in of_entity), entity) == len(of_entity)
            assert len({one.number for one in of_entity}) == len(of_entity)

    @invariant()
    def no_two_invoices_of_a_payer_have_a_day_in_common(self) -> None:
        for payer in PAYERS:
            standing = [one.invoice.key for one in self.ledger.standing(payer)]
            assert not any(one.overlaps(other) for at, one in enumerate(standing) for other in standing[at + 1 :])

    @invariant()
    def what_is_posted_is_what_its_closing_says(self) -> None:
        for key, sums in self.sums.items():
            posted = self.ledger.posted(key)
            expected = self.charges[posted.closing if posted else ""]
            assert {name: amount for name, amount in sums.items() if amount} == {
                name: amount for name, amount in expected.items() if amount
            }
            amounts = sum(one.net_minor for one in self.documents if one.key == key)
            tax = sum(one.tax_minor for one in self.documents if one.key == key)
            assert (amounts, tax) == (sum(expected.values()), sum(expected.values()) // 5)

    @invariant()
    def whatever_was_late_the_newest_final_closing_is_posted_by_one_adjustment(self) -> None:
        for key in {one.key for one in self.closings}:
            newest = max((one for one in self.closings if one.key == key), key=lambda one: one.rank)
            ledger, posted = self.ledger, self.ledger.posted(key)
            if posted is None or newest.outcome is not ClosingState.FINAL or newest.rank < posted.rank:
                continue
            change = change_between(self.charges[posted.closing], self.charges[newest.id])
            try:
                ledger.add(adjust(ledger, newest, change, NOW))
            except NothingToAdjust:
                assert change.is_empty or newest.id == posted.closing
            after = ledger.posted(key)
            assert after is not None
            assert (after.net_minor, after.tax_minor) == (newest.net_minor, newest.tax_minor)

    @invariant()
    def each_step_done_again_is_refused(self) -> None:
        for closing in self.closings:
            if self.ledger.posted(closing.key):
                with pytest.raises(AlreadyIssued):
                    issue(self.ledger, closing, NOW)


TestRegister = RegisterMachine.TestCase
TestRegister.settings = settings(max_examples=examples(60), stateful_step_count=25, deadline=None)


KEY = PeriodKey("waybill-eu", "acme", date(2026, 3, 1), date(2026, 3, 31))


def columns(made: list[Charge]) -> Iterator[list[Any]]:
    """What lines_digest is over: a list for each column of a charge, in the order of the table."""
    in_order = sorted(made, key=lambda one: one.key.order)
    keys, metered = [one.key for one in in_order], [one.metered for one in in_order]
    for name in ("account", "region", "tenant", "device", "kind", "meter", "zone", "window", "price", "tax"):
        yield [getattr(key, name) or "" for key in keys]
    for name in ("quantity", "free", "amount_minor"):
        yield [getattr(one, name) for one in in_order]
    yield [one and one.rows for one in metered]
    yield [one and one.first_hour.astimezone(UTC).isoformat() for one in metered]
    yield [one and one.last_hour.astimezone(UTC).isoformat() for one in metered]
    yield [one and one.digest for one in metered]
    yield [one.parts for one in in_order]
    yield [one.gross_minor for one in in_order]


def stored_charges(*tables: pa.Table) -> tuple[Charge, ...]:
    return rows.charges_from(tables, [(KEY.payer, "run")])[KEY.payer, "run"]


@given(charges())
def test_charges_come_back_from_their_rows_in_the_order_of_their_keys(made: list[Charge]) -> None:
    stored = rows.charge_rows("run", [(KEY, rows.charge_columns(made))])
    assert stored_charges(stored, stored) == tuple(sorted(made, key=lambda one: one.key.order))
    assert stored.column("run").to_pylist() == ["run"] * len(made)


@given(charges(), st.randoms())
def test_the_digest_is_over_the_columns_whatever_the_order_of_the_rows(made: list[Charge], random: Random) -> None:
    text = "".join(json.dumps(column, ensure_ascii=False, separators=(",", ":")) for column in columns(made))
    random.shuffle(made)
    stored = stored_charges(rows.charge_rows("run", [(KEY, rows.charge_columns(made))]))
    assert rows.lines_digest(rows.charge_columns(stored)) == sha256(text.encode()).hexdigest()


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
    lake = new_lake(tmp_path)
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
