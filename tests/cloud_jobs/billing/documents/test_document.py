"""Any rated account gives a document whose lines, sub-totals, annex and totals add up, and gives its charges back."""

import csv
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
    read_document,
    to_csv,
)
from cloud_jobs.billing.documents.look import Look
from cloud_jobs.billing.documents.presentation import Presentation
from cloud_jobs.billing.rating import Charge, ChargeKind, RatedAccount, difference, taken_back
from cloud_jobs.billing.units import Meter
from tests.cloud_jobs.billing.documents.rated import (
    ORIGINAL,
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


@given(rated_accounts())
def test_bytes_are_read_back_and_hold_no_float(rated: RatedAccount) -> None:
    made = document_of(rated)
    content = canonical_bytes(made)
    assert read_document(content) == {**made, "annex": [*made["annex"]]}
    assert bytes(DocumentContent(made, Form.JSON)) == content
    json.loads(content, parse_float=pytest.fail)


@given(st.data())
def test_any_changed_byte_is_found(data: st.DataObject) -> None:
    content = canonical_bytes(issued(taxed([charge(), fixed(-120, ChargeKind.CAP)])))
    at = data.draw(st.integers(0, len(content) - 1))
    byte = data.draw(st.integers(0, 255).filter(lambda value: value != content[at]))
    with pytest.raises(UnreadableDocument):
        read_document(content[:at] + bytes([byte]) + content[at + 1 :])


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b"nonsense", b'{"format":true}', b'{"format":2}', b"\xff"])
def test_what_is_no_document_is_refused(content: bytes) -> None:
    with pytest.raises(UnreadableDocument):
        read_document(content)


@pytest.mark.parametrize(
    ("changes", "rule"),
    [({"kind": DocumentType.CREDIT_NOTE}, "BG-3"), ({"preceding": ORIGINAL}, "BG-3"), ({"due_date": None}, "BR-CO-25")],
)
def test_what_the_standard_asks_for_is_missed_by_the_name_of_its_rule(changes: dict[str, Any], rule: str) -> None:
    facts = {"kind": DocumentType.INVOICE, "preceding": None} | changes
    with pytest.raises(MissingFact, match=rule):
        issued(taxed([charge()]), **facts)


def test_charges_that_are_not_taxed_once_are_refused() -> None:
    rated = taxed([charge()])
    for taxes in ((), rated.taxes * 2, (replace(rated.taxes[0], taxable_minor=1),)):
        with pytest.raises(MissingFact, match="taxed once"):
            issued(replace(rated, taxes=taxes))


UNUSABLE = ["\x00", "\x1b", "\n", "\x9f", "\u202e", "\u2066", "\u2029", "\ufffe", "\U0001ffff"]


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
    with pytest.raises(UnusableText, match=re.escape(f"{where} has the character U+{ord(character):04X}")):
        issued(taxed([charged]), **facts)


def stay(price: str, *parts: str) -> Charge:
    amounts = [[int(one) for one in part.split("/")[1:]] for part in parts]
    quantity, minor = map(sum, zip(*amounts, strict=True))
    made = charge(meter=Meter.STAY, price=price, quantity=quantity, amount_minor=minor)
    return made._replace(parts=" ".join(parts))


def test_a_note_lists_what_changes_with_the_sign_of_its_line() -> None:
    old, new = "0.10 EUR/min, for each visit", "0.05 EUR/min, for each visit"
    first, second, late = "2026-03-03T08:00:00Z/60000/", "2026-03-05T08:00:00Z/120000/", "2026-03-07T08:00:00Z/60000/"
    before = taxed([stay(old, f"{first}10", f"{second}20")])

    def listed(note: RatedAccount, kind: DocumentType) -> list[tuple[int, str | None]]:
        made = issued(note, kind)
        assert charges_of(made) == note.charges
        # a row of the CSV has what is posted
        table = csv.DictReader(b"".join(to_csv(made)).decode().splitlines())
        assert [row["parts"] or None for row in table] == [one.parts for one in note.charges]
        return [(one["amount_minor"], one.get("parts")) for one in made["annex"]]

    added = difference(before, taxed([stay(old, f"{first}10", f"{second}20", f"{late}10")]))
    assert listed(added, DocumentType.DEBIT_NOTE) == [(10, f"{late}10")]
    cheaper = difference(before, taxed([stay(new, f"{first}5", f"{second}10")]))
    given_back = f"{first.replace('Z/', 'Z/-')}-5 {second.replace('Z/', 'Z/-')}-10"
    assert listed(cheaper, DocumentType.CREDIT_NOTE) == [(-15, given_back), (30, f"{first}10 {second}20")]
    assert listed(taken_back(before), DocumentType.CREDIT_NOTE) == [(30, f"{first}10 {second}20")]
    # which of those that are not listed changed is not known, nor in which days a cap took off another amount
    for was, now in ((f"{first}10 +2", f"{first}10 +3"), ("2026-03-04 2026-03-06", "2026-03-04 2026-03-21")):
        [one] = difference(
            *(taxed([charge(amount_minor=minor)._replace(parts=parts)]) for minor, parts in ((-600, was), (-700, now)))
        ).charges
        assert (one.amount_minor, one.parts) == (-100, None)


def test_of_an_invoice_of_a_negative_sum_nothing_is_to_be_paid() -> None:
    made = issued(taxed([charge(amount_minor=-100)]))
    assert made["payment_due_date"] is None
    assert {name for name, value in made["payment_instructions"].items() if value} == {
        "payment_means_type_code",
        "remittance_information",
    }
    show = Presentation(made, Look(language="en"))
    assert show.payment == [("Payment", "This amount is credited; nothing is to be paid.")]
    assert show.due == show.totals[-1] == ("Amount credited", "1.19 EUR")
