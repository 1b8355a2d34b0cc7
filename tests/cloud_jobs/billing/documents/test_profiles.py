"""Documents of payers with a profile keep its published rules; without each field of it they do not."""

import re
from pathlib import Path
from typing import Any

import pytest
from lxml import etree

from cloud_jobs.billing.contracts import (
    Account,
    Address,
    Contact,
    DirectDebit,
    Endpoint,
    LegalEntity,
    Payer,
    Payment,
    Profile,
)
from cloud_jobs.billing.contracts.account import ADDRESS_SCHEMES, missing_for_profile
from cloud_jobs.billing.documents import Document, DocumentType, to_cii, to_ubl
from cloud_jobs.billing.documents.look import ENGLISH
from cloud_jobs.billing.documents.presentation import Presentation
from tests.cloud_jobs.billing.documents.published_rules import (
    PEPPOL,
    RULES,
    broken_rules,
    broken_rules_of,
    cii_schema,
    jar,
    schema,
)
from tests.cloud_jobs.billing.documents.rated import VATS, buyer, issued, seller, taxed
from tests.cloud_jobs.billing.documents.test_ubl import CHARGES

OURS = Endpoint(scheme="9930", id="DE123456789")
THEIRS = Endpoint(scheme="9957", id="FR40303265045")
GERMAN = Address(line="Kehrwieder 5", city="Hamburg", postal_code="20457", country="DE")
CONTACT = Contact(name="Billing", telephone="+49 40 123456", email="billing@waybill.example")
DEBIT = DirectDebit(mandate="ACME-2026-01", iban="DE89370400440532013000")


def payer_of(profile: Profile, vat: str = "S", **more: Any) -> Account:
    made = buyer(VATS[vat])
    assert made.payer is not None
    facts = {"profile": profile, "endpoint": THEIRS, "buyer_reference": "04011000-1234512345-35"} | more
    return made.model_copy(update={"payer": made.payer.model_copy(update=facts)})


def seller_of(**more: Any) -> LegalEntity:
    return seller(endpoint=OURS, contact=CONTACT, **more)


def document(profile: Profile, kind: DocumentType, vat: str = "S", **more: Any) -> Document:
    payment = Payment(means_code="58", iban="DE02120300000000202051", creditor_id="DE98ZZZ09999999999")
    sold_by = seller_of(payment=payment)
    return issued(taxed(CHARGES, VATS[vat]), kind, buyer=payer_of(profile, vat, **more), seller=sold_by)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("schemas")


def assert_kept(made: Document, profile: Profile, folder: Path) -> None:
    ubl, cii = to_ubl(made), to_cii(made)
    parsed = etree.fromstring(ubl)
    assert schema(etree.QName(parsed).localname, folder).validate(parsed)
    assert cii_schema(folder).validate(etree.fromstring(cii))
    found = [*broken_rules(ubl), *broken_rules_of(profile, ubl), *broken_rules(cii)]
    if profile is Profile.XRECHNUNG:
        found += broken_rules_of(profile, cii)
    assert found == []


@pytest.mark.parametrize("kind", DocumentType, ids=lambda kind: kind.name)
@pytest.mark.parametrize("vat", VATS)
@pytest.mark.parametrize("profile", Profile)
def test_every_kind_and_category_keeps_the_rules(profile: Profile, vat: str, kind: DocumentType, folder: Path) -> None:
    assert_kept(document(profile, kind, vat), profile, folder)


@pytest.mark.parametrize("kind", DocumentType, ids=lambda kind: kind.name)
@pytest.mark.parametrize("vat", ["S", "O"])
@pytest.mark.parametrize("profile", Profile)
def test_a_direct_debit_between_germans_keeps_them_too(
    profile: Profile, vat: str, kind: DocumentType, folder: Path
) -> None:
    made = document(profile, kind, vat, address=GERMAN, direct_debit=DEBIT, order_reference="4500017")
    assert_kept(made, profile, folder)
    for xml in (to_ubl(made).decode(), to_cii(made).decode()):
        # BT-89, BT-90, BT-91, and no account to transfer to
        assert all(one in xml for one in ("ACME-2026-01", "DE98ZZZ09999999999", "DE89370400440532013000", ">4500017<"))
        assert "DE02120300000000202051" not in xml
    if kind is not DocumentType.CREDIT_NOTE:
        shown = dict(Presentation(made, ENGLISH).payment)
        assert shown["Debited from IBAN"] == "DE89 3704 0044 0532 0130 00"
        assert (shown["Mandate reference"], shown["Creditor id"]) == ("ACME-2026-01", "DE98ZZZ09999999999")


@pytest.mark.parametrize("profile", Profile)
def test_an_invoice_of_a_negative_sum_keeps_them_and_debits_nothing(profile: Profile, folder: Path) -> None:
    negative = [one._replace(quantity=-one.quantity, amount_minor=-one.amount_minor) for one in CHARGES]
    made = issued(taxed(negative), buyer=payer_of(profile, "S", direct_debit=DEBIT), seller=seller_of())
    assert_kept(made, profile, folder)
    assert b"DE89370400440532013000" not in to_ubl(made) + to_cii(made)


WITHOUT = [
    ("PEPPOL-EN16931-R001", Profile.PEPPOL, rb"<cbc:ProfileID>.*?</cbc:ProfileID>"),
    ("PEPPOL-EN16931-R003", Profile.PEPPOL, rb"<cbc:BuyerReference>.*?</cbc:BuyerReference>"),
    ("PEPPOL-EN16931-R004", Profile.PEPPOL, rb"#compliant#urn:fdc:peppol.eu:2017:poacc:billing:3.0"),
    ("PEPPOL-EN16931-R010", Profile.PEPPOL, rb'<cbc:EndpointID schemeID="9957">.*?</cbc:EndpointID>'),
    ("PEPPOL-EN16931-R020", Profile.PEPPOL, rb'<cbc:EndpointID schemeID="9930">.*?</cbc:EndpointID>'),
    ("PEPPOL-EN16931-R061", Profile.PEPPOL, rb"<cac:PaymentMandate>.*?</cac:PaymentMandate>"),
    ("BR-DE-7", Profile.XRECHNUNG, rb"<cbc:ElectronicMail>.*?</cbc:ElectronicMail>"),
    ("BR-DE-15", Profile.XRECHNUNG, rb"<cbc:BuyerReference>.*?</cbc:BuyerReference>"),
    ("PEPPOL-EN16931-R020", Profile.XRECHNUNG, rb'<cbc:EndpointID schemeID="9930">.*?</cbc:EndpointID>'),
]


@pytest.mark.parametrize(("rule", "profile", "part"), WITHOUT)
def test_without_its_field_a_rule_is_broken(rule: str, profile: Profile, part: bytes) -> None:
    xml = to_ubl(document(profile, DocumentType.INVOICE, direct_debit=DEBIT))
    without, count = re.subn(part, b"", xml, count=1, flags=re.DOTALL)
    assert count == 1
    assert rule in broken_rules_of(profile, without)
    assert rule not in broken_rules_of(profile, xml)


def missing(profile: Profile, sold_by: LegalEntity, **more: Any) -> str:
    made = payer_of(profile, **more).payer
    assert made is not None
    return ", ".join(missing_for_profile(made, sold_by))


def test_a_contract_names_each_missing_key_with_its_rule() -> None:
    bare = seller(contact=None)
    assert missing(Profile.PEPPOL, seller_of()) == missing(Profile.XRECHNUNG, seller_of()) == ""
    assert missing(Profile.PEPPOL, bare, endpoint=None, buyer_reference=None) == (
        "payer.endpoint (PEPPOL-EN16931-R010), payer.buyer_reference or payer.order_reference (PEPPOL-EN16931-R003), "
        "legal_entity.endpoint (PEPPOL-EN16931-R020)"
    )
    assert missing(Profile.PEPPOL, seller_of(), buyer_reference=None, order_reference="4500017") == ""
    of_germans = missing(Profile.PEPPOL, bare, address=GERMAN)
    assert (
        of_germans
        == missing(Profile.XRECHNUNG, bare)
        == (
            "legal_entity.endpoint (PEPPOL-EN16931-R020), legal_entity.contact.name (BR-DE-5), "
            "legal_entity.contact.telephone (BR-DE-6), legal_entity.contact.email (BR-DE-7)"
        )
    )
    assert "with a scheme of digits, not EM" in missing(
        Profile.PEPPOL, seller_of(), endpoint=Endpoint(scheme="EM", id="books@acme.example")
    )


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"endpoint": None}, "profile 'peppol' needs payer.endpoint"),
        ({"currency": "JOD"}, "profile 'peppol' has no documents in JOD"),
    ],
)
def test_a_payer_that_its_profile_does_not_fit_is_refused(more: dict[str, Any], said: str) -> None:
    made = payer_of(Profile.PEPPOL).payer
    assert made is not None
    with pytest.raises(ValueError, match=re.escape(said)):
        Payer.model_validate(made.model_dump() | more)


def test_our_address_schemes_are_those_of_both_rules() -> None:
    text = jar("phive-rules-en16931").read(RULES).decode()
    before = text[: text.index('<xsl:attribute name="id">BR-CL-25<')]
    plain = {*before.rpartition("contains(' ")[2].partition("'")[0].split()}
    found = re.search(r'name="eaid"[^>]*tokenize\(\'([^\']*)', jar("phive-rules-peppol").read(PEPPOL).decode())
    assert found is not None
    peppol = {*found[1].split()}
    assert plain >= ADDRESS_SCHEMES
    assert {one for one in ADDRESS_SCHEMES if one.isdigit()} == peppol
