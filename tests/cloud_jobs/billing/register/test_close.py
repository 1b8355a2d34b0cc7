"""From usage and contracts in the lake to issued documents: what is closed, what blocks, what is shown again."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pytest

from cloud_jobs.billing.documents import DocumentContent, Form, charges_of
from cloud_jobs.billing.register.close import ClosedGroup, Work
from cloud_jobs.billing.register.closing import ClosingState
from cloud_jobs.billing.register.documents_of import issued_document
from cloud_jobs.billing.register.errors import (
    Blocked,
    NotFinal,
    NothingClosed,
    NotOneNote,
    RegisterDamaged,
)
from cloud_jobs.billing.register.operations import issue_period, void_invoice
from tests.cloud_jobs.billing.contracts.makers import account, device, legal_entity, payer, price, tariff
from tests.cloud_jobs.billing.documents.published_rules import broken_rules
from tests.cloud_jobs.billing.register.billed_lake import DAYS, BilledLake, clerk, hours, used

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
    with pytest.raises(RegisterDamaged, match="of acme"):
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


@pytest.mark.parametrize("seed", range(4))
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

        def shuffled(work: Work, groups: Sequence[Any]) -> Sequence[ClosedGroup]:
            return [work([*reversed(group)]) for group in dice.sample([*groups], len(groups))]

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
        "acme: no note can change WB-EU-00000001 to the newest closing: what is not subject to VAT stands on a document"
        ' by itself (EN 16931, BR-O-11); run `waybill bill void WB-EU-00000001 --lake LAKE --reason "other VAT"`, then'
        " `waybill bill issue --lake LAKE --period 2026-03 --payer acme`"
    )
