"""Any rated account gives a document whose lines, sub-totals, annex and totals add up, and gives its charges back."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloud_jobs.billing.contracts import Vat
from cloud_jobs.billing.documents import (
    DocumentContent,
    DocumentType,
    Form,
    MissingFact,
    UnreadableDocument,
    UnusableText,
    canonical_bytes,
    charges_of,
    head,
    read_document,
)
from cloud_jobs.billing.documents.presentation import annex_rows
from cloud_jobs.billing.meters import Meter
from cloud_jobs.billing.rating import Charge, ChargeKind, RatedAccount
from tests.cloud_jobs.billing.documents.rated import (
    ORIGINAL,
    VATS,
    buyer,
    charge,
    fixed,
    issued,
    rated_accounts,
    seller,
    taxed,
)

KINDS = st.sampled_from(DocumentType)


def document_of(rated: RatedAccount, kind: DocumentType = DocumentType.INVOICE, **changes: Any) -> dict[str, Any]:
    [tax] = rated.taxes
    vat = Vat(category=tax.category, rate=tax.rate, exemption_reason=tax.exemption_reason)
    return issued(rated, kind, buyer=buyer(vat, rated.currency), **changes)


@given(rated_accounts(), KINDS)
def test_lines_are_the_sums_of_their_part_of_the_annex(rated: RatedAccount, kind: DocumentType) -> None:
    made = document_of(rated, kind)
    amounts, quantities = Counter[int](), Counter[int]()
    for entry in made["annex"]:
        amounts[entry["line"]] += entry["amount_minor"]
        quantities[entry["line"]] += entry["quantity_base"]
    for line in made["lines"]:
        number = line["invoice_line_identifier"]
        assert line["invoice_line_net_amount"]["minor"] == amounts[number]
        assert line["quantity"] is None or line["quantity"]["base"] == quantities[number]
    assert len(made["annex"]) == len(rated.charges)


@given(rated_accounts(), KINDS)
def test_subtotals_are_the_sums_of_consecutive_lines_and_cover_each_line_once(
    rated: RatedAccount, kind: DocumentType
) -> None:
    made = document_of(rated, kind)
    amounts = [line["invoice_line_net_amount"]["minor"] for line in made["lines"]]
    numbers = [line["invoice_line_identifier"] for line in made["lines"]]
    assert numbers == list(range(1, len(amounts) + 1))
    ends = [(subtotal["first_line"], subtotal["last_line"]) for subtotal in made["subtotals"]]
    assert [number for first, last in ends for number in range(first, last + 1)] == numbers
    for subtotal in made["subtotals"]:
        first, last = subtotal["first_line"], subtotal["last_line"]
        assert subtotal["net_amount"]["minor"] == sum(amounts[first - 1 : last])
    places = [(subtotal["account"], subtotal["region"]) for subtotal in made["subtotals"]]
    assert len(set(places)) == len(places)


@given(rated_accounts(), KINDS)
def test_the_totals_keep_the_arithmetic_of_the_standard(rated: RatedAccount, kind: DocumentType) -> None:
    made = document_of(rated, kind)
    totals = {name: amount["minor"] for name, amount in made["document_totals"].items()}
    [vat] = made["vat_breakdown"]
    net = sum(line["invoice_line_net_amount"]["minor"] for line in made["lines"])
    assert totals["sum_of_invoice_line_net_amount"] == net  # BR-CO-10
    assert totals["invoice_total_amount_without_vat"] == net  # BR-CO-13: no allowance or charge of the whole document
    assert vat["vat_category_taxable_amount"]["minor"] == net  # BR-S-08 and its like
    assert totals["invoice_total_vat_amount"] == vat["vat_category_tax_amount"]["minor"]  # BR-CO-14
    assert totals["invoice_total_amount_with_vat"] == net + totals["invoice_total_vat_amount"]  # BR-CO-15
    assert totals["amount_due_for_payment"] == totals["invoice_total_amount_with_vat"]  # BR-CO-16
    exact = net * Decimal(vat["vat_category_rate"] or 0) / 100
    assert abs(totals["invoice_total_vat_amount"] - exact) <= Decimal("0.5")  # BR-CO-17, in the currency's own unit


@given(rated_accounts(), KINDS)
def test_quantity_times_price_is_the_amount_and_no_price_is_negative(rated: RatedAccount, kind: DocumentType) -> None:
    for line in document_of(rated, kind)["lines"]:
        quantity, base = Decimal(line["invoiced_quantity"]), Decimal(line["item_price_base_quantity"])
        price, amount = Decimal(line["item_net_price"]), Decimal(line["invoice_line_net_amount"]["text"])
        assert price >= 0  # BR-27
        assert base > 0
        assert quantity * price == amount * base


@given(rated_accounts(), KINDS)
def test_a_document_gives_back_the_charges_that_it_was_made_of(rated: RatedAccount, kind: DocumentType) -> None:
    assert Counter(charges_of(document_of(rated, kind))) == Counter(rated.charges)


@given(rated_accounts(), KINDS, st.randoms())
def test_the_order_of_the_charges_does_not_matter(rated: RatedAccount, kind: DocumentType, random: Any) -> None:
    shuffled = list(rated.charges)
    random.shuffle(shuffled)
    other = replace(rated, charges=tuple(shuffled))
    assert canonical_bytes(document_of(rated, kind)) == canonical_bytes(document_of(other, kind))


@given(rated_accounts())
def test_bytes_are_read_back_and_hold_no_float(rated: RatedAccount) -> None:
    made = document_of(rated)
    content = canonical_bytes(made)
    assert read_document(content) == {**made, "annex": [*made["annex"]]}
    assert bytes(DocumentContent(made, Form.JSON)) == content
    json.loads(content, parse_float=pytest.fail)


@given(st.data())
def test_any_changed_byte_is_found(data: st.DataObject) -> None:
    content = canonical_bytes(issued(taxed([charge(), fixed(-120, ChargeKind.DAILY_CAP)])))
    at = data.draw(st.integers(0, len(content) - 1))
    byte = data.draw(st.integers(0, 255).filter(lambda value: value != content[at]))
    with pytest.raises(UnreadableDocument):
        read_document(content[:at] + bytes([byte]) + content[at + 1 :])


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b"nonsense", b'{"format":true}', b'{"format":2}', b"\xff"])
def test_what_is_no_document_is_refused(content: bytes) -> None:
    with pytest.raises(UnreadableDocument):
        read_document(content)


def test_another_format_is_named() -> None:
    with pytest.raises(UnreadableDocument, match="WB-7 is of format 99; this version reads 1"):
        read_document(b'{"format":99,"invoice_number":"WB-7"}')


def test_ten_vehicles_of_nine_meters_are_nine_lines() -> None:
    found = [
        charge(device=f"eu-{number:04}", meter=meter, zone=zone)
        for number in range(10)
        for meter in (Meter.DISTANCE, Meter.DURATION, Meter.ENTRY)
        for zone in ("", "eu-centre", "eu-port")
    ]
    made = issued(taxed(found))
    assert len(made["lines"]) == 9
    assert {line["vehicles"] for line in made["lines"]} == {10}
    assert len(made["annex"]) == 90


def test_lines_of_the_payer_come_first_and_a_minimum_fee_closes_its_account() -> None:
    found = [
        charge(account="aaa-child"),
        charge(region="us"),
        charge(),
        fixed(100, ChargeKind.MINIMUM),
    ]
    made = issued(taxed(found), names={"aaa-child": "A child"})
    places = [(line["account"], line["region"], line["kind"]) for line in made["lines"]]
    assert places == [
        ("acme", "eu", "usage"),
        ("acme", "us", "usage"),
        ("acme", "", "minimum fee"),
        ("aaa-child", "eu", "usage"),
    ]
    assert [subtotal["account_name"] for subtotal in made["subtotals"]][-1] == "A child"


def test_a_cap_is_one_piece_taken_away() -> None:
    [_, cap] = issued(taxed([charge(), fixed(-120, ChargeKind.DAILY_CAP, region="eu")]))["lines"]
    stated = (cap["invoiced_quantity"], cap["item_net_price"], cap["invoice_line_net_amount"]["text"])
    assert stated == ("-1", "1.20", "-1.20")
    assert cap["item_name"] == "Daily cap"


@pytest.mark.parametrize("kind", [ChargeKind.DAILY_CAP, ChargeKind.PERIOD_CAP])
def test_a_cap_of_one_meter_says_which_and_is_of_no_place_and_no_quantity(kind: ChargeKind) -> None:
    text = "at most 5.00 EUR a day for each device (distance)"
    cap = fixed(-120, kind, meter=Meter.DISTANCE, price=text, tenant="fleet", device="eu-0001")
    made = issued(taxed([charge(), cap]))
    [line] = [one for one in made["lines"] if one["kind"] == kind]
    assert (line["item_name"], line["price"], line["quantity"]) == (f"{kind.capitalize()}: distance", text, None)
    # nothing that was not measured stands on any form of it
    assert [row[3] for row in annex_rows(made) if row[2] == line["item_name"]] == [""]
    forms = b"".join(bytes(DocumentContent(made, form)) for form in (Form.HTML, Form.CSV, Form.UBL, Form.TABLE))
    assert re.search(rb"\b0\.000000", forms) is None
    assert Counter(charges_of(made)) == Counter([charge(), cap])


def test_a_credit_note_states_what_it_gives_back() -> None:
    rated = taxed([charge(amount_minor=-450, quantity=-10_000_000)])
    made = issued(rated, DocumentType.CREDIT_NOTE)
    assert made["document_totals"]["amount_due_for_payment"]["text"] == "5.36"
    assert made["posting_sign"] * made["document_totals"]["amount_due_for_payment"]["minor"] == rated.gross_minor
    assert made["preceding_invoice"] == {
        "preceding_invoice_reference": "WB-000041",
        "preceding_invoice_issue_date": "2026-04-02",
    }


def test_nothing_used_is_one_line_of_nothing() -> None:
    made = issued(RatedAccount(payer="acme", currency="EUR", charges=(), taxes=()))
    [line] = made["lines"]
    assert (line["item_name"], line["invoice_line_net_amount"]["text"]) == ("Nothing was used in this period", "0.00")
    assert not made["annex"]
    assert made["document_totals"]["amount_due_for_payment"]["minor"] == 0


def test_the_head_has_the_totals_and_stands_for_lines_and_annex_by_their_digest() -> None:
    made, other = (issued(taxed([charge(device=name)])) for name in ("van-1", "van-2"))
    assert head(made).keys() == made.keys() - {"lines", "subtotals", "annex", "unknown_ways"}
    assert head(made)["digest"] == made["digest"]
    assert {name for name, value in head(made).items() if value != other[name]} == {"body_digest", "digest"}


def test_a_draft_has_neither_number_nor_dates() -> None:
    made = issued(taxed([charge()]), number=None, issue_date=None, due_date=None)
    assert (made["invoice_number"], made["invoice_issue_date"], made["payment_due_date"]) == (None, None, None)


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"kind": DocumentType.CREDIT_NOTE}, "BG-3"),
        ({"preceding": ORIGINAL}, "BG-3"),
        ({"due_date": None}, "BR-CO-25"),
    ],
)
def test_what_the_standard_asks_for_is_missed_by_the_name_of_its_rule(changes: dict[str, Any], rule: str) -> None:
    facts = {"kind": DocumentType.INVOICE, "preceding": None} | changes
    with pytest.raises(MissingFact, match=rule):
        issued(taxed([charge()]), **facts)


@pytest.mark.parametrize(("category", "rule"), [("AE", "BR-AE-02"), ("K", "BR-IC-02")])
def test_a_buyer_without_vat_id_cannot_owe_the_tax(category: str, rule: str) -> None:
    of = buyer(VATS[category])
    assert of.payer is not None
    without = of.model_copy(update={"payer": of.payer.model_copy(update={"vat_id": None})})
    with pytest.raises(MissingFact, match=rule):
        issued(taxed([charge()], VATS[category]), buyer=without)


def test_charges_that_are_not_taxed_once_are_refused() -> None:
    rated = taxed([charge()])
    for taxes in ((), rated.taxes * 2, (replace(rated.taxes[0], taxable_minor=1),)):
        with pytest.raises(MissingFact, match="taxed alike, once"):
            issued(replace(rated, taxes=taxes))


UNUSABLE = ["\x00", "\x1b", "\n", "\x9f", "\u202e", "\u2066", "\u2029", "\ufffe", "\U0001ffff", "\ud800"]


@pytest.mark.parametrize("character", UNUSABLE, ids=lambda character: f"U+{ord(character):04X}")
@pytest.mark.parametrize("where", ["seller.seller_name", "annex.device", "lines.price", "invoice_note"])
def test_a_text_that_no_invoice_can_show_is_refused_and_found(character: str, where: str) -> None:
    text = f"a{character}b"
    facts: dict[str, Any] = {}
    charged: Charge = charge()
    match where:
        case "seller.seller_name":
            facts["seller"] = seller().model_copy(update={"name": text})
        case "annex.device":
            charged = charge(device=text)
        case "lines.price":
            charged = charge(price=text)
        case _:
            facts["reason"] = text
    with pytest.raises(UnusableText) as caught:
        issued(taxed([charged]), **facts)
    assert (caught.value.where, caught.value.code_point) == (where, ord(character))
