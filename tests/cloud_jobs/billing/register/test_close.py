"""From usage and contracts in the lake to issued documents: what is closed, what blocks, what is shown again."""

import json
import random
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import pytest

from cloud_jobs.billing.billing_period import BillingPeriod
from cloud_jobs.billing.certificates import certificates_from
from cloud_jobs.billing.contracts import BlockedPayer, Contracts, PayerContract
from cloud_jobs.billing.documents import DocumentContent, Form, charges_of
from cloud_jobs.billing.rating import PriceBooks
from cloud_jobs.billing.register.close import (
    ClosedGroup,
    RatedPayer,
    UnratedPayer,
    UsageReader,
    Work,
    rate_payers,
)
from cloud_jobs.billing.register.closing import Closing, ClosingNotes, ClosingState
from cloud_jobs.billing.register.current_contracts import agreed_with
from cloud_jobs.billing.register.documents_of import issued_document
from cloud_jobs.billing.register.errors import Blocked, NotFinal, NothingClosed, NotOneNote, RegisterDamaged
from cloud_jobs.billing.register.operations import issue_period, void_invoice
from cloud_jobs.explain.issued_line import explain_line
from cloud_jobs.job_settings import MaintenanceSettings
from cloud_jobs.lake.coverage import TenantDevice
from cloud_jobs.lake.erasures import Erasure, declare_erasure
from cloud_jobs.lake.snapshot_reads import reference_rows
from cloud_jobs.lake.snapshots import take_snapshot
from cloud_jobs.lake.tables import Lake
from cloud_jobs.maintenance.job import Maintenance
from cloud_jobs.reconcile import ComparisonOutcome, reconcile
from geo.spatial import TrackSettings
from tests.cloud_jobs.billing.contracts.makers import MARCH, account, device, legal_entity, payer, price, tariff
from tests.cloud_jobs.billing.documents.published_rules import broken_rules
from tests.cloud_jobs.billing.register.billed_lake import DAYS, HOUR, NOW, BilledLake, clerk, hours, used
from tests.cloud_jobs.billing.register.metered_lake import FIXES, JANUARY, TEN, meter, metered_lake, publish, state
from tests.examples import SHARE
from tests.system.lake_of_fixes import LakeFix, ingest, lake_of, square

MID_MONTH = "2026-03-20T00:00:00Z"
FLEET = (
    legal_entity(),
    tariff(price("0.45")),
    account("acme", device("van-1"), device("van-2")),
    account("acme-west", device("van-3"), parent="acme"),
    account("beta", device("van-4")),
)


@pytest.fixture
def billed(tmp_path: Path) -> BilledLake:
    made = BilledLake.create(tmp_path, "van-1", "van-2", "van-3", "van-4")
    made.publish(*FLEET)
    made.use(used("van-1", 10_000), used("van-2", 4_000), used("van-3", 2_000), used("van-4", 1_000))
    return made


def test_a_month_is_closed_issued_and_shown_again_as_it_was(billed: BilledLake) -> None:
    acme, beta = billed.close("one")
    assert (acme.key.payer, acme.outcome, acme.net_minor, acme.tax_minor) == ("acme", ClosingState.FINAL, 720, 137)
    assert (beta.key.payer, beta.net_minor) == ("beta", 45)
    done = billed.issue("first")
    assert [one.number for one in done.documents] == ["WB-EU-00000001", "WB-EU-00000002"]
    made = issued_document(billed.register, "WB-EU-00000001")
    assert made["document_totals"]["invoice_total_amount_with_vat"]["text"] == "8.57"
    assert made["invoicing_period"]["start"] == "2026-02-28T23:00:00Z"
    assert sum(charge.amount_minor for charge in charges_of(made)) == 720


def test_an_open_device_makes_its_payer_provisional_and_no_other(tmp_path: Path) -> None:
    billed = BilledLake.create(tmp_path, "van-1", "van-2", "van-4")
    billed.publish(*FLEET)
    billed.hear("van-3", missing=True)
    billed.use(used("van-3", 2_000), used("van-4", 1_000))
    acme, beta = billed.close("one")
    assert acme.outcome is ClosingState.PROVISIONAL
    assert acme.reasons[0].startswith("fleet/van-3: 1 records are missing")
    assert beta.outcome is ClosingState.FINAL
    done = billed.issue("first")
    assert [one.key.payer for one in done.documents] == ["beta"]
    (refused,) = done.refused
    assert isinstance(refused, NotFinal)


def test_a_device_that_changes_its_account_is_billed_to_each_for_its_own_time(tmp_path: Path) -> None:
    billed = BilledLake.create(tmp_path, "van-1", "van-2")
    billed.publish(
        legal_entity(),
        tariff(price("0.45")),
        account("acme", device("van-1", end=MID_MONTH)),
        account("beta", device("van-1", begin=MID_MONTH)),
    )
    billed.use(*(used("van-1", 1_000, hour) for hour in hours(15)))
    assert [(one.key.payer, one.net_minor) for one in billed.close("one")] == [("acme", 450), ("beta", 225)]


class FaultyContracts(Contracts):
    """Cannot resolve one payer."""

    def contract_of(self, payer_id: str, period: BillingPeriod) -> PayerContract:
        assert payer_id != "acme"
        return super().contract_of(payer_id, period)


class FaultyReader(UsageReader):
    """Has usage of one payer that no rating expects."""

    def read(self, contracts: Sequence[PayerContract], books: PriceBooks | None = None) -> Any:
        used = super().read(contracts)
        for one in contracts:
            if one.id == "acme":
                used[one.id].cells[:] = [cell._replace(quantity=-1) for cell in used[one.id].cells]
        return used


def test_a_fault_of_the_program_blocks_one_payer_and_the_log_has_its_traceback(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    billed = BilledLake.create(tmp_path, "van-1", "van-2")
    billed.publish(legal_entity(), tariff(price()), account("acme", device("van-1")), account("beta", device("van-2")))
    billed.use(used("van-1", 1000), used("van-2", 1000))
    state = take_snapshot(billed.lake, NOW)
    agreed = [Contracts(reference_rows(billed.lake, state)).contract_of(name, MARCH) for name in ("acme", "beta")]
    faulty, rated = rate_payers(FaultyReader(billed.lake, state, against_records=False, certifies=False), agreed)
    assert isinstance(faulty, UnratedPayer)
    assert isinstance(rated, RatedPayer)
    assert faulty.reason.startswith("a fault of this program, not of the contract: AssertionError")
    assert rated.rated.net_minor == 45
    assert "Traceback" in caplog.text
    assert "'acme' cannot be billed" in caplog.text
    caplog.clear()
    faults = FaultyContracts(reference_rows(billed.lake, state))
    blocked, resolved = (agreed_with(faults, name, (MARCH.first_day, MARCH.last_day)) for name in ("acme", "beta"))
    assert isinstance(blocked, BlockedPayer)
    assert isinstance(resolved, PayerContract)
    assert "Traceback" in caplog.text


def test_a_quarter_of_a_monthly_payer_is_blocked_and_a_year_reads_its_earlier_months(tmp_path: Path) -> None:
    """100 km are free once in the year: 80 in February, so 60 of the 80 in March cost 0.45."""
    billed = BilledLake.create(tmp_path, "van-1")
    yearly = tariff(price(span="year", allowance="100"), fees=[{"id": "rate", "name": "Rate", "amount": "10"}])
    billed.publish(legal_entity(), yearly, account("acme", device("van-1")))
    billed.use(used("van-1", 80_000, HOUR - timedelta(days=28)), used("van-1", 80_000))
    [quarter] = billed.close("quarter", days=(date(2026, 1, 1), date(2026, 3, 31)))
    assert quarter.outcome is ClosingState.BLOCKED
    assert "close 2026-01, 2026-02, 2026-03 instead" in quarter.reasons[0]
    [march] = billed.close("march")
    assert (march.outcome, march.net_minor) == (ClosingState.FINAL, 2700 + 1000)


def test_days_that_a_payers_clocks_skipped_block_that_payer_and_nobody_else(tmp_path: Path) -> None:
    since, day = "2010-01-01T00:00:00Z", date(2011, 12, 30)
    billed = BilledLake.create(tmp_path, "van-1", "van-2")
    billed.publish(
        legal_entity(effective_from=since),
        tariff(effective_from=since),
        account("acme", device(begin=since), effective_from=since),
        account("beta", device("van-2", begin=since), effective_from=since, payer=payer(time_zone="Pacific/Apia")),
    )
    acme, beta = billed.close("one", days=(day, day))
    assert (acme.outcome, beta.outcome) == (ClosingState.FINAL, ClosingState.BLOCKED)
    assert beta.reasons == ("Pacific/Apia had no day 2011-12-30: its clocks went from the day before to the day after",)
    assert (beta.key.payer, beta.key.text, beta.period_start, beta.time_zone) == (
        "beta",
        "2011-12-30",
        datetime(2011, 12, 30, 10, tzinfo=UTC),
        "Pacific/Apia",
    )
    (again,) = billed.register.closings(day, day, ["beta"])
    assert again == replace(beta, number=1)


def test_kilometres_in_a_zone_without_a_price_block_their_payer(billed: BilledLake) -> None:
    billed.use(used("van-4", 5_000, zone="new-fence"))
    acme, beta = billed.close("one")
    assert (acme.outcome, beta.outcome) == (ClosingState.FINAL, ClosingState.BLOCKED)
    assert "new-fence" in beta.reasons[0]


def test_a_run_that_died_before_its_last_commit_has_closed_nothing(
    billed: BilledLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        """The process ends here."""

    def killed(*_: Any) -> Any:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr("cloud_jobs.billing.register.close.closing_row", killed)
        with pytest.raises(Killed):
            billed.close("dead")
    assert billed.lake.rows("rated_lines").num_rows == 4
    assert billed.register.closings(*DAYS) == []
    with pytest.raises(NothingClosed):
        billed.issue("first")
    billed.close("alive")
    assert len(billed.issue("second").documents) == 2
    assert charges_of(issued_document(billed.register, "WB-EU-00000002"))[0].quantity == 1_000_000


def test_nothing_is_numbered_whose_lines_are_not_there(billed: BilledLake) -> None:
    billed.close("one")
    billed.lake.open("rated_lines").delete("device = 'van-2'")
    with pytest.raises(RegisterDamaged, match="of the closing acme"):
        billed.issue("first")
    assert billed.register.documents() == []
    assert [one.key.payer for one in issue_period(billed.register, DAYS, ["beta"], clerk=clerk("beta")).documents] == [
        "beta"
    ]


def test_a_payer_of_whom_no_valid_invoice_can_be_made_is_blocked_when_it_is_closed(billed: BilledLake) -> None:
    # no contract says what a row of usage was made of
    anywhere = tariff(price("0.45", zone="*"), id="anywhere")
    billed.publish(*FLEET, anywhere, account("gamma", device("van-5"), tariff="anywhere"))
    billed.hear("van-5")
    billed.use(used("van-5", 1_000, zone="a\ufffeb"))
    gamma = billed.close("one")[-1]
    assert (gamma.outcome, gamma.net_minor, gamma.body_digest) == (ClosingState.BLOCKED, 45, "")
    assert "U+FFFE, which a document cannot show" in gamma.reasons[0]
    assert {type(one) for one in billed.issue("first").refused} == {Blocked}


def contents(billed: BilledLake, table: str, *without: str) -> list[dict[str, Any]]:
    rows = billed.lake.rows(table).drop_columns([*without])
    return sorted(rows.to_pylist(), key=repr)


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in range(1, 4))])
def test_what_is_closed_is_the_same_for_any_order_duplication_and_grouping(tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    bodies = [legal_entity(), tariff(price("0.37", allowance="3", pool="account"))]
    bodies += [account(f"payer-{number}", device(f"van-{number}a"), device(f"van-{number}b")) for number in range(6)]
    usage = [used(f"van-{dice.randrange(6)}{dice.choice('ab')}", dice.randrange(9999), hour) for hour in hours(20)]
    lakes = []
    for name, tasks in (("plain", 1), ("other", 5)):
        billed = BilledLake.create(tmp_path / name, *(f"van-{number}{of}" for number in range(6) for of in "ab"))
        billed.publish(*bodies)
        billed.use(*(usage if name == "plain" else dice.sample(usage, len(usage)) + usage[:3]))
        lakes.append(billed)

        def shuffled(work: Work, groups: Iterable[Any]) -> Sequence[ClosedGroup]:
            made = [*groups]
            return [work([*reversed(group)]) for group in dice.sample(made, len(made))]

        billed.close(name, tasks=tasks, run_tasks=shuffled)
    plain, other = lakes
    for table, run_only in (("rated_lines", ("run",)), ("closings", ("run", "closed_at", "snapshot_id"))):
        assert contents(plain, table, *run_only) == contents(other, table, *run_only)


def vat_of(**vat: Any) -> dict[str, Any]:
    return account("acme", device("van-1"), device("van-2"), payer=payer(vat=vat, vat_id="FR40303265045"))


def test_a_note_across_another_rate_takes_back_as_it_was_taxed_and_asks_as_it_is_taxed_now(billed: BilledLake) -> None:
    billed.close("one")
    billed.issue("first")
    billed.publish(*FLEET, vat_of(category="S", rate="7"))
    billed.use(used("van-1", 12_000))
    billed.close("two")
    done = billed.adjust("adjust")
    (note,) = done.documents
    assert (note.type.name, note.net_minor, note.tax_minor) == ("DEBIT_NOTE", 90, 57 - 137)
    made = issued_document(billed.register, note.number)
    rows = [
        (one["vat_category_rate"], one["vat_category_taxable_amount"]["minor"], one["vat_category_tax_amount"]["minor"])
        for one in made["vat_breakdown"]
    ]
    assert rows == [("19", -720, -137), ("7", 810, 57)]
    for rate, taxable, _ in rows:
        mine = [one for one in made["lines"] if one["invoiced_item_vat_rate"] == rate]
        assert sum(one["invoice_line_net_amount"]["minor"] for one in mine) == taxable
    assert broken_rules(bytes(DocumentContent(made, Form.UBL))) == []
    billed.close("three")
    assert billed.adjust("again").documents == []
    void = void_invoice(billed.register, "WB-EU-00000001", "wrong", clerk=clerk("void"))
    assert (void.net_minor, void.tax_minor) == (-810, -57)
    assert broken_rules(bytes(DocumentContent(issued_document(billed.register, void.number), Form.UBL))) == []


def test_a_note_from_taxed_to_not_subject_to_vat_is_refused_with_the_commands_to_run(billed: BilledLake) -> None:
    billed.close("one")
    billed.issue("first")
    billed.publish(*FLEET, vat_of(category="O", exemption_reason="Not subject to VAT"))
    billed.use()
    billed.close("two")
    (refusal,) = (one for one in billed.adjust("adjust").refused if one.payer == "acme")
    assert isinstance(refusal, NotOneNote)
    assert str(refusal) == (
        "acme: no note can change WB-EU-00000001 to the newest closing: charges that are not subject to VAT need a"
        " document of their own (EN 16931, BR-O-11); run"
        ' `waybill bill void WB-EU-00000001 --lake LAKE --reason "other VAT"`, then'
        " `waybill bill issue --lake LAKE --period 2026-03 --payer acme`"
    )


MOVED, BACK = "2026-03-20T00:00:00Z", "2026-03-25T00:00:00Z"
OFTEN = datetime(2026, 3, 22, tzinfo=UTC)
NEW_YORK = payer(time_zone="America/New_York")


def lake_of_a_device(folder: Path, *accounts: dict[str, Any], until: datetime) -> BilledLake:
    """A device that stated what it has until a moment and then fell silent."""
    made = BilledLake.create(folder)
    made.hear("van-1", until=until)
    made.publish(legal_entity(), tariff(price("0.45")), *accounts)
    made.use(used("van-1", 1_000, HOUR))
    return made


def certified(made: BilledLake, closing: Closing) -> list[tuple[str, str, str]]:
    """From when until when the closing's certificates are, and what they say."""
    rows = made.lake.rows("certificates", where=[("run", "=", closing.run), ("payer", "=", closing.key.payer)])
    found = map(json.loads, rows["certificate"].to_pylist())
    return [(one["start"], one["end"], one["state"]) for one in found]


def test_who_gave_a_device_away_has_a_final_bill_though_it_fell_silent_with_the_next_one(tmp_path: Path) -> None:
    given = account("acme", device("van-1", end=MOVED))
    made = lake_of_a_device(tmp_path, given, account("beta", device("van-1", begin=MOVED), payer=NEW_YORK), until=OFTEN)
    acme, beta = made.close("one")
    assert (acme.outcome, acme.net_minor, acme.reasons) == (ClosingState.FINAL, 45, ())
    assert (beta.outcome, beta.reasons) == (
        ClosingState.PROVISIONAL,
        ("fleet/van-1: silent since 2026-03-22T00:00:00Z",),
    )
    assert certified(made, acme) == [("2026-02-28T23:00:00Z", MOVED, "complete")]
    assert certified(made, beta) == [(MOVED, "2026-04-01T04:00:00Z", "silent")]


def test_who_has_a_device_again_answers_for_it_from_the_first_day_to_the_last(tmp_path: Path) -> None:
    twice = account("acme", device("van-1", end=MOVED), device("van-1", begin=BACK))
    made = lake_of_a_device(tmp_path, twice, account("beta", device("van-1", begin=MOVED, end=BACK)), until=OFTEN)
    acme, beta = made.close("one")
    assert [acme.outcome, beta.outcome] == [ClosingState.PROVISIONAL, ClosingState.PROVISIONAL]
    assert certified(made, acme) == [("2026-02-28T23:00:00Z", "2026-03-31T22:00:00Z", "silent")]
    assert certified(made, beta) == [(MOVED, BACK, "silent")]


_Made = TypeVar("_Made")
_MOST_READS = 100


def at_each_read(
    monkeypatch: pytest.MonkeyPatch, folder: Path, work: Callable[[BilledLake], _Made]
) -> list[tuple[int, _Made]]:
    """What a work gives in a lake of its own each time, if positions are erased just before it opens records or
    erasures for the first, the second, … time; and how many were erased."""
    found = list[tuple[int, _Made]]()
    for before in range(0, _MOST_READS, 1 if SHARE == 1 else 3):
        copy = folder.parent / f"{folder.name}-{before}"
        shutil.copytree(folder, copy)
        opens = Opens(Lake(copy), before)
        with monkeypatch.context() as patched:
            patched.setattr(Lake, "open", opens)
            made = work(BilledLake(Lake(copy)))
        shutil.rmtree(copy)
        if opens.erased is None:
            return found
        found.append((opens.erased, made))
    raise AssertionError("so often nothing reads")


class Opens:
    """Stands for `Lake.open`, and erases in between."""

    def __init__(self, lake: Lake, before: int) -> None:
        self._lake, self._left, self._open = lake, before, Lake.open
        self.erased: int | None = None

    def __get__(self, lake: Lake, _: type) -> Callable[..., Any]:
        return lambda table, *more: self._opened(lake, table, *more)

    def _opened(self, lake: Lake, table: str, *more: Any) -> Any:
        if table in {"records", "erasures"}:
            self._left -= 1
            if self._left == -1:
                # maintenance opens them, too; it sweeps by the store's clock, which has another year than the drive
                now = datetime.now(UTC)
                upkeep = Maintenance(self._lake, MaintenanceSettings(), now=lambda: now, store_now=lambda: now)
                self.erased = upkeep.run([Erasure("acme", "eu-1", TEN + timedelta(days=10))]).erased["records"]
        return self._open(lake, table, *more)


def test_a_closing_during_which_positions_are_erased_is_the_one_that_it_would_have_been(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "lake"
    expected = [
        (one.key.payer, ClosingState.FINAL, one.net_minor) for one in metered_lake(folder).close("0", days=JANUARY)
    ]
    found = at_each_read(monkeypatch, folder, lambda billed: billed.close("one", days=JANUARY))
    assert (len(found) > 3, {erased for erased, _ in found}) == (True, {FIXES})
    for _, closings in found:
        assert [(one.key.payer, one.outcome, one.net_minor) for one in closings] == expected, closings


def test_what_is_erased_while_it_is_explained_is_unknown_and_not_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "lake"
    billed = metered_lake(folder)
    billed.close("0", days=JANUARY)
    number = next(one.number for one in billed.issue("clerk", JANUARY).documents if one.key.payer == "acme")

    def explained(billed: BilledLake) -> bool | None:
        return explain_line(billed.register, number, 1).explanation.agrees

    assert explained(billed) is True
    found = at_each_read(monkeypatch, folder, explained)
    assert {erased for erased, _ in found} == {FIXES}
    assert {agrees for _, agrees in found} <= {True, None}, found


END = datetime(2026, 1, 31, 23, tzinfo=UTC)
"""Midnight in Berlin."""
SECOND = timedelta(seconds=1)
EXACT = TrackSettings(rule="every_fix")
"""By which later fixes have a say in five minutes; a cleaned place waits for 24."""
NEAR, FAR, ON = (0.1, 0.1), (5.0, 5.0), (0.1 + 20 / 111.2, 0.1)


def test_a_fence_that_is_published_again_with_its_keys_in_another_order_opens_nothing(tmp_path: Path) -> None:
    made = metered_lake(tmp_path)
    assert {one.outcome for one in made.close("one", days=JANUARY)} == {ClosingState.FINAL}
    publish(made, dict(reversed(square("square").items())))
    assert {one.outcome for one in made.close("two", days=JANUARY)} == {ClosingState.FINAL}
    publish(made, square("square", lon=5.0))
    assert {one.outcome for one in made.close("three", days=JANUARY)} == {ClosingState.PROVISIONAL}


def test_what_comes_after_an_erasure_is_billed_but_for_ways_and_those_are_counted(tmp_path: Path) -> None:
    made = metered_lake(tmp_path)
    before = {one.key.payer: one.net_minor for one in made.close("one", days=JANUARY)}
    declare_erasure(made.lake, Erasure("acme", "eu-1", TEN + timedelta(days=10)), NOW)
    late = [
        LakeFix("eu-1", FIXES + 1 + n, TEN + timedelta(minutes=40, seconds=n), 0.0, 0.0, kind="event")
        for n in range(1, 101)
    ]
    position = LakeFix("eu-1", FIXES + 102, TEN + timedelta(minutes=45), 0.1, 0.1)
    ingest(made.lake, [*late, position])
    state(made.lake, "eu-1", count=FIXES + 102)
    assert made.close("received", days=JANUARY)[0].outcome is ClosingState.PROVISIONAL
    meter(made)
    after = made.close("metered", days=JANUARY)
    assert {one.outcome for one in after} == {ClosingState.FINAL}
    # an event is 5 cents
    assert {one.key.payer: one.net_minor - before[one.key.payer] for one in after} == {"acme": 500, "beta": 0}
    noticed = ClosingNotes.of(next(one.parties for one in after if one.key.payer == "acme"))
    assert noticed.counts["late_positions"] == 1
    van, days = TenantDevice("acme", "eu-1"), BillingPeriod.parse("2026-01", "Europe/Berlin")
    found = certificates_from(made.lake, take_snapshot(made.lake, NOW), [van], (days.start, days.end))[van]
    assert (found.is_final, found.counts.late_positions) == (True, 1)
    reconciled = reconcile(made.lake, take_snapshot(made.lake, NOW), JANUARY, None, now=NOW)
    (named,) = [one for one in reconciled.comparisons if one.name == "positions that came after an erasure"]
    assert (named.found, named.outcome) == (1, ComparisonOutcome.COUNTED)


def driven(folder: Path, stated_s: int) -> BilledLake:
    """20 km before the end of January past an outlier, and a statement so many seconds after the end."""
    lake = lake_of(folder, [square("square")])
    ingest(lake, [fix(-300, 1, NEAR), fix(-299, 2, FAR), fix(-1, 3, ON)])
    state(lake, "eu-1", until=END + stated_s * SECOND, count=3)
    made = BilledLake(lake)
    publish(made, legal_entity(), tariff(price("0.45")), account("acme", device("eu-1", tenant="acme")))
    meter(made, EXACT)
    return made


def fix(at_s: int, seq: int, place: tuple[float, float]) -> LakeFix:
    return LakeFix("eu-1", seq, END + at_s * SECOND, *place)


def closed_as_final(made: BilledLake, name: str, at_s: int) -> tuple[ClosingState, int, str]:
    (found,) = made.close(name, days=JANUARY, now=END + at_s * SECOND)
    return found.outcome, found.net_minor, " ".join(found.reasons)


def test_a_month_is_final_only_when_no_fix_of_the_next_one_can_change_it(tmp_path: Path) -> None:
    made = driven(tmp_path, stated_s=1)
    early = closed_as_final(made, "early", 60)
    assert early == (
        ClosingState.PROVISIONAL,
        895,
        "acme/eu-1: silent since 2026-01-31T23:00:01Z; fixes until 2026-01-31T23:05:00Z affect the period",
    )
    # on time, and of February: it shows that what stood in January was the outlier
    ingest(made.lake, [fix(250, 4, FAR)])
    state(made.lake, "eu-1", until=END + 900 * SECOND, count=4)
    assert closed_as_final(made, "received", 900)[::2] == (
        ClosingState.PROVISIONAL,
        "acme/eu-1: 1 records are not metered yet",
    )
    meter(made, EXACT)
    assert closed_as_final(made, "metered", 900) == (ClosingState.FINAL, 0, "")


def test_what_comes_on_time_after_a_month_was_final_leaves_it_as_it_was(tmp_path: Path) -> None:
    made = driven(tmp_path, stated_s=300)
    assert closed_as_final(made, "one", 300) == (ClosingState.FINAL, 895, "")
    ingest(made.lake, [fix(300, 4, FAR)])
    state(made.lake, "eu-1", until=END + 900 * SECOND, count=4)
    meter(made, EXACT)
    assert closed_as_final(made, "two", 900) == (ClosingState.FINAL, 895, "")
