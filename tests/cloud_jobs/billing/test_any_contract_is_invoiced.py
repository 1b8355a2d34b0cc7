"""Whatever the check of contracts lets in can be invoiced: in every form, by the published rules, for any amounts."""

import json
import re
import unicodedata
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import fontpkg_noto_sans
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lxml import etree
from pydantic import ValidationError
from reportlab.pdfbase.ttfonts import TTFont

from cloud_jobs.billing.contracts import MODEL_OF, Contracts, PayerContract, Profile, VatCategory
from cloud_jobs.billing.contracts.check import check_contracts
from cloud_jobs.billing.contracts.fields import COUNTRIES, PAYMENT_MEANS, VAT_PREFIXES, unprintable
from cloud_jobs.billing.documents import Document, DocumentContent, DocumentType, Form, InvoicingPeriod
from cloud_jobs.billing.documents.ubl import EN_16931
from cloud_jobs.billing.rating import Charge, RatedAccount, difference
from cloud_jobs.billing.units import EXPONENT_OF
from geo.spatial.ids import UNSHOWN
from tests.cloud_jobs.billing.contracts.makers import (
    BERLIN,
    MARCH,
    account,
    device,
    kind_of,
    legal_entity,
    payer,
    price,
    rows,
    tariff,
)
from tests.cloud_jobs.billing.documents.published_rules import broken_rules, broken_rules_of, schema
from tests.cloud_jobs.billing.documents.rated import CERTIFICATES, ORIGINAL, VATS, charges, made_of, taxed
from tests.examples import examples

Body = dict[str, Any]
MOMENT = datetime(2026, 4, 10, tzinfo=UTC)
# what people paste: letters of Europe and quotes, and now and then what no document has
SIGNS = st.sampled_from("aZ09 .,&<>'\"-/äßŁżΩЖ€№–“”…  ́") | st.sampled_from("\t\u2028\u202e\ufffe\xad東א🚚\x00")
PLAIN = st.text(st.sampled_from("aZ09 .,&<>'\"-/äßŁżΩЖ€№–“”…"), min_size=1, max_size=40)
WILD = st.text(SIGNS, max_size=60)
# one of many is wild: else nothing would be accepted
TEXTS = st.sampled_from([*[PLAIN] * 15, WILD, st.just("W" * 1000)]).flatmap(lambda one: one)
IDS = st.sampled_from([*["DE136695976", "FR40303265045", "EL123456789", "XI123456789", "ATU12345678"] * 3, "QQ123456"])
ADDRESSES = st.fixed_dictionaries(
    {"line": TEXTS, "city": TEXTS, "country": st.sampled_from(sorted(COUNTRIES | VAT_PREFIXES))},
    optional={"postal_code": st.sampled_from(["20457", "SW1A 1AA", "", " ", "1\u2028"])},
)
RATES = st.decimals("0.001", 100, places=3).map(str)
TAXES = st.sampled_from(VatCategory).flatmap(
    lambda category: st.fixed_dictionaries(
        {"category": st.just(category.value)}
        | ({"rate": RATES} if category is VatCategory.STANDARD else {})
        | ({} if category in {VatCategory.STANDARD, VatCategory.ZERO} else {"exemption_reason": TEXTS})
    )
)
CONTACTS = st.fixed_dictionaries(
    {"name": TEXTS}, optional={"telephone": st.just("+49 40 1234"), "email": st.just("billing@waybill.example")}
)
ENDPOINTS = st.fixed_dictionaries({"scheme": st.sampled_from(["9930", "0204", "EM", "none"]), "id": TEXTS})
SELLERS = st.fixed_dictionaries(
    {
        "name": TEXTS,
        "address": ADDRESSES,
        "vat_id": st.none() | IDS,
        "tax_registration_id": st.none() | TEXTS,
        "contact": st.none() | CONTACTS,
        "endpoint": st.none() | ENDPOINTS,
        "payment": st.fixed_dictionaries(
            {
                "means_code": st.sampled_from([*sorted(PAYMENT_MEANS), "72", "100"]),
                "iban": st.just("DE89370400440532013000"),
            },
            optional={"bic": st.just("COBADEFFXXX"), "creditor_id": st.just("DE98ZZZ09999999999")},
        ),
    }
)
PAYERS = st.fixed_dictionaries(
    {
        "address": ADDRESSES,
        "vat": TAXES,
        "vat_id": st.none() | IDS,
        "buyer_reference": st.none() | TEXTS,
        "order_reference": st.none() | TEXTS,
        "endpoint": st.none() | ENDPOINTS,
        "profile": st.sampled_from([None, *Profile]),
        "direct_debit": st.none()
        | st.fixed_dictionaries({"mandate": TEXTS, "iban": st.just("DE89370400440532013000")}),
        "currency": st.sampled_from(sorted(EXPONENT_OF)),
    }
)
ZONES = st.sampled_from(["eu-depot", "Zone 東京", "a\u2028b", "x\ufffe", "<b>", "'=1+1"])
PERIOD = InvoicingPeriod(
    first_day=MARCH.first_day, last_day=MARCH.last_day, start=MARCH.start, end=MARCH.end, time_zone=BERLIN
)


def accepted(*bodies: Body) -> bool:
    """Whether `waybill reference check` lets contracts in."""
    try:
        made = [MODEL_OF[kind_of(body)].model_validate(body).model_dump(mode="json") for body in bodies]
    except ValidationError:
        return False
    stated = [{"kind": kind_of(body), "id": body["id"], "body": json.dumps(body), "place": "f:1"} for body in made]
    checked = check_contracts([], stated, MOMENT)
    return not checked.faults and not checked.lacking


def invoiced(contract: PayerContract, kind: DocumentType, rated: RatedAccount) -> Document:
    note = kind is not DocumentType.INVOICE
    return made_of(
        kind=kind,
        number="WB-EU-00000042",
        issue_date=date(2026, 4, 2),
        due_date=None if kind is DocumentType.CREDIT_NOTE else date(2026, 5, 2),
        seller=contract.seller,
        buyer=contract.account,
        names={"acme-north": contract.account.name},
        rated=rated,
        period=PERIOD,
        snapshot="17-0123456789ab",
        certificates=CERTIFICATES,
        preceding=ORIGINAL if note else None,
        reason="Late records" if note else None,
    )


def assert_valid(made: Document, folder: Path) -> None:
    xml = bytes(DocumentContent(made, Form.UBL))
    parsed = etree.fromstring(xml)
    of = schema(etree.QName(parsed).localname, folder)
    assert of.validate(parsed), of.error_log
    # a third decimal, or a currency that the rules do not know yet: then the document says that it is plain UBL
    if EN_16931.encode() in xml:
        assert broken_rules(xml) == []
        if profile := made["profile"]:
            # some countries have rules of their own, and of their identifiers
            national = re.compile(r"(?!DE-)[A-Z]{2}-R-|PEPPOL-COMMON-")
            assert [one for one in broken_rules_of(Profile(profile), xml) if not national.match(one)] == []


@pytest.fixture(scope="module")
def schemas(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ubl")


@settings(max_examples=examples(150), suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    st.tuples(SELLERS, PAYERS, TEXTS, ZONES), charges(), st.sampled_from(DocumentType), st.sampled_from(sorted(VATS))
)
def test_what_the_check_accepts_is_invoiced_in_every_form(
    schemas: Path, agreed: tuple[Body, Body, str, str], charged: list[Charge], kind: DocumentType, before: str
) -> None:
    seller, pays, name, zone = agreed
    bodies = (
        legal_entity(**seller),
        tariff(price(zone=zone), price(), currency=pays["currency"]),
        account("acme", device(), name=name, payer=payer(**pays)),
    )
    if not accepted(*bodies):
        return
    contract = Contracts(rows(*bodies)).contract_of("acme", MARCH)
    vat, currency = contract.payer.vat, contract.payer.currency
    renamed = [one._replace(key=one.key._replace(zone=zone)) if one.key.zone else one for one in charged]
    rated = taxed(renamed, vat, currency)
    # a note may have to take back what was taxed otherwise; not every pair of categories goes on one document
    may_follow = {"S", "Z", "E"} if vat.category.value in {"S", "Z", "E"} else set()
    if kind is not DocumentType.INVOICE and before in may_follow - {vat.category.value}:
        rated = difference(taxed(renamed, VATS[before], currency), rated)
    made = invoiced(contract, kind, rated)
    for form in Form:
        assert bytes(DocumentContent(made, form))
    assert_valid(made, schemas)


PRINTED = [chr(code) for code in range(0x110000) if unprintable(chr(code)) is None]


def test_the_font_of_the_pdf_has_each_of_them_but_the_east_asian_ones() -> None:
    font = TTFont("NotoSans", str(fontpkg_noto_sans.ROOT / "files" / "NotoSans[wdth,wght].ttf"))
    assert [sign for sign in PRINTED if ord(sign) < 0x3000 and ord(sign) not in font.face.charToGlyph] == []


def test_each_is_seen_and_has_a_meaning_of_its_own() -> None:
    assert [sign for sign in PRINTED if UNSHOWN.search(sign) or unicodedata.category(sign)[0] == "C"] == []


@given(st.text(alphabet=st.characters(codec="latin-1", exclude_categories=["C"])))
def test_what_western_europe_writes_is_printed(text: str) -> None:
    assert unprintable(text) is None
