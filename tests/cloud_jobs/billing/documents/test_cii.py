"""Every kind of document is a valid CII too, keeps the published rules, and has the totals of all other forms."""

from decimal import Decimal

import pytest
from hypothesis import given, settings
from lxml import etree

from cloud_jobs.billing.documents import Document, DocumentType, to_cii, to_ubl
from cloud_jobs.billing.documents.presentation import Presentation
from cloud_jobs.billing.documents.ubl import EN_16931
from cloud_jobs.billing.rating import RatedAccount
from cloud_jobs.billing.units import EXPONENT_OF
from tests.cloud_jobs.billing.documents.published_rules import broken_rules, cii_schema
from tests.cloud_jobs.billing.documents.rated import VATS, buyer, charge, issued, rated_accounts, taxed
from tests.cloud_jobs.billing.documents.test_document import KINDS, document_of
from tests.cloud_jobs.billing.documents.test_ubl import CHARGES, HOSTILE
from tests.examples import examples


@pytest.fixture(scope="module")
def schema(tmp_path_factory: pytest.TempPathFactory) -> etree.XMLSchema:
    return cii_schema(tmp_path_factory.mktemp("cii"))


@pytest.mark.parametrize("kind", DocumentType, ids=lambda kind: kind.name)
@pytest.mark.parametrize("category", VATS)
def test_every_kind_and_category_is_valid(category: str, kind: DocumentType, schema: etree.XMLSchema) -> None:
    vat = VATS[category]
    xml = to_cii(issued(taxed(CHARGES, vat), kind, buyer=buyer(vat, name=HOSTILE[0])))
    assert schema.validate(etree.fromstring(xml)), schema.error_log
    assert broken_rules(xml) == []


@settings(max_examples=examples(40))
@given(rated_accounts(currencies=("EUR", "JPY")), KINDS)
def test_any_rated_account_keeps_the_published_rules(rated: RatedAccount, kind: DocumentType) -> None:
    assert broken_rules(to_cii(document_of(rated, kind))) == []


def test_a_third_decimal_claims_no_rules() -> None:
    xml = to_cii(issued(taxed([charge(amount_minor=1234)], currency="JOD")))
    assert b">1.234</ram:LineTotalAmount>" in xml
    assert EN_16931.encode() not in xml


def minor_of(xml: bytes, element: str, currency: str) -> list[int]:
    found = (one for one in etree.fromstring(xml).iter() if etree.QName(one).localname == element)
    return [int(Decimal(one.text or "").scaleb(EXPONENT_OF[currency])) for one in found]


def shown_minor(text: str, currency: str) -> int:
    return int(text.replace(",", "").replace(".", "").removesuffix(currency))


@settings(max_examples=examples(40))
@given(rated_accounts(), KINDS)
def test_every_form_has_the_same_totals(rated: RatedAccount, kind: DocumentType) -> None:
    made: Document = document_of(rated, kind)
    ubl, cii, show, currency = to_ubl(made), to_cii(made), Presentation(made), rated.currency
    due = made["document_totals"]["amount_due_for_payment"]["minor"]
    net = made["document_totals"]["invoice_total_amount_without_vat"]["minor"]
    assert minor_of(ubl, "PayableAmount", currency) == minor_of(cii, "DuePayableAmount", currency) == [due]
    assert shown_minor(show.due[1], currency) == (abs(due) if made["payment_terms"] else due), "it is called a credit"
    lines = minor_of(ubl, "LineExtensionAmount", currency)
    assert lines == [net, *minor_of(cii, "LineTotalAmount", currency)[:-1]]
    assert sum(shown_minor(group.net_amount, currency) for group in show.line_groups) == net
    # per vehicle, and in all
    parts = [*show.annex]
    assert sum(shown_minor(part.net_amount, currency) for part in parts) == net
    assert sum(shown_minor(row[-1], currency) for part in parts for row in part.rows) == net
