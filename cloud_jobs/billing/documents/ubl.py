"""A document as UBL 2.1 in the syntax binding of EN 16931: an Invoice (380, 383) or a CreditNote (381).

The published rules of EN 16931 have no third decimal (BR-DEC), no new currencies (BR-CL-04), and no tax of half a unit
or more at a rate below half a percent (BR-CO-17). Such a document is written as it is, with the CustomizationID of
plain UBL.
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Final
from xml.etree.ElementTree import Element, SubElement, indent, register_namespace, tostring

from cloud_jobs.billing.contracts import Profile, VatCategory
from cloud_jobs.billing.contracts.account import MOST_DECIMALS
from cloud_jobs.billing.contracts.fields import NEWER_CURRENCIES
from cloud_jobs.billing.documents.canonical import Document, NotIssued
from cloud_jobs.billing.documents.document import DocumentType

EN_16931: Final = "urn:cen.eu:en16931:2017"
SPECIFICATIONS: Final[Mapping[str | None, str]] = {
    None: EN_16931,
    Profile.PEPPOL: f"{EN_16931}#compliant#urn:fdc:peppol.eu:2017:poacc:billing:3.0",
    Profile.XRECHNUNG: f"{EN_16931}#compliant#urn:xeinkauf.de:kosit:xrechnung_3.0",
}
"""BT-24 by profile."""
PROCESS: Final = "urn:fdc:peppol.eu:2017:poacc:billing:01:1.0"
"""BT-23 of both profiles."""
_UBL: Final = "urn:oasis:names:specification:ubl:schema:xsd:"
_AGGREGATE: Final = f"{{{_UBL}CommonAggregateComponents-2}}"
_BASIC: Final = f"{{{_UBL}CommonBasicComponents-2}}"
_HALF: Final = Decimal("0.5")


def to_ubl(document: Document) -> bytes:
    """The XML of an issued document, in UTF-8. Raises NotIssued."""
    check_issued(document)
    credit = document["invoice_type_code"] == DocumentType.CREDIT_NOTE
    name = "CreditNote" if credit else "Invoice"
    register_namespace("cac", _AGGREGATE.strip("{}"))
    register_namespace("cbc", _BASIC.strip("{}"))
    register_namespace("", f"{_UBL}{name}-2")
    root = Element(f"{{{_UBL}{name}-2}}{name}")
    _header(root, document, name, credit=credit)
    _party(_aggregate(root, "AccountingSupplierParty"), document, "seller")
    _party(_aggregate(root, "AccountingCustomerParty"), document, "buyer")
    if document["deliver_to_country_code"]:
        delivered = _aggregate(root, "Delivery", "DeliveryLocation", "Address")
        _basic(delivered, "CityName", document["buyer"]["buyer_postal_address"]["city"])
        _basic(delivered, "PostalZone", document["buyer"]["buyer_postal_address"]["post_code"])
        _basic(_aggregate(delivered, "Country"), "IdentificationCode", document["deliver_to_country_code"])
    _payment(root, document)
    _tax_total(root, document)
    _monetary_total(root, document)
    for line in document["lines"]:
        _line(_aggregate(root, f"{name}Line"), line, document, credit=credit)
    indent(root)
    written: bytes = tostring(root, encoding="utf-8", xml_declaration=True)
    return written + b"\n"


def check_issued(document: Document) -> None:
    """Raises NotIssued."""
    if "preview" in document:
        # an accounting system books what it imports, and has no place for a mark
        raise NotIssued("a preview is not an invoice, so it has no UBL and no CII; use json, csv or pdf")
    if document["invoice_number"] is None:
        raise NotIssued("a draft has no number, so it is not an invoice; issue the period first")


def _aggregate(parent: Element, *names: str) -> Element:
    """Nested elements; returns the innermost."""
    for name in names:
        parent = SubElement(parent, _AGGREGATE + name)
    return parent


def _basic(parent: Element, name: str, text: Any, **attributes: str) -> None:
    """A value; None adds nothing."""
    if text is not None:
        SubElement(parent, _BASIC + name, attributes).text = str(text)


def _amount(parent: Element, name: str, text: str, document: Document) -> None:
    _basic(parent, name, text, currencyID=document["invoice_currency_code"])


def _header(root: Element, document: Document, name: str, *, credit: bool) -> None:
    keeps = keeps_en_16931(document)
    _basic(root, "CustomizationID", SPECIFICATIONS[document["profile"]] if keeps else f"{_UBL}{name}-2")
    _basic(root, "ProfileID", document["profile"] and PROCESS)
    _basic(root, "ID", document["invoice_number"])
    _basic(root, "IssueDate", document["invoice_issue_date"])
    if not credit:
        _basic(root, "DueDate", document["payment_due_date"])
    _basic(root, f"{name}TypeCode", type_code(document))
    _basic(root, "Note", document["invoice_note"])
    _basic(root, "DocumentCurrencyCode", document["invoice_currency_code"])
    if accounting := document["vat_accounting"]:
        _basic(root, "TaxCurrencyCode", accounting["vat_accounting_currency_code"])
    _basic(root, "BuyerReference", document["buyer_reference"])
    period = _aggregate(root, "InvoicePeriod")
    _basic(period, "StartDate", document["invoicing_period"]["invoicing_period_start_date"])
    _basic(period, "EndDate", document["invoicing_period"]["invoicing_period_end_date"])
    if order := document["purchase_order_reference"]:
        _basic(_aggregate(root, "OrderReference"), "ID", order)
    if preceding := document["preceding_invoice"]:
        reference = _aggregate(root, "BillingReference", "InvoiceDocumentReference")
        _basic(reference, "ID", preceding["preceding_invoice_reference"])
        _basic(reference, "IssueDate", preceding["preceding_invoice_issue_date"])


def type_code(document: Document) -> str:
    """BT-3. Between Germans a debit note is an invoice that names the preceding one (BR-DE-17)."""
    code = document["invoice_type_code"]
    countries = {document[role][f"{role}_postal_address"]["country_code"] for role in ("seller", "buyer")}
    is_german = document["profile"] == Profile.XRECHNUNG or (document["profile"] and countries == {"DE"})
    return DocumentType.INVOICE if is_german and code == DocumentType.DEBIT_NOTE else str(code)


def vat_rate(vat: Document, document: Document) -> str | None:
    """BT-119; the profiles need one for category O too (BR-DE-14)."""
    rate = vat["vat_category_rate"]
    return "0" if rate is None and document["profile"] else rate


def keeps_en_16931(document: Document) -> bool:
    """Whether the published rules accept currency, decimals and rates, and each rate has a line."""
    if document["invoice_currency_code"] in NEWER_CURRENCIES:
        return False
    if not all(_takes_rate(vat) for vat in document["vat_breakdown"]):
        return False
    lined = {(line["invoiced_item_vat_category_code"], line["invoiced_item_vat_rate"]) for line in document["lines"]}
    if not lined.issuperset((vat["vat_category_code"], vat["vat_category_rate"]) for vat in document["vat_breakdown"]):
        # a note that takes nothing back from another rate (BR-S-01, BR-S-08)
        return False
    amounts = [
        *document["document_totals"].values(),
        *(value for name, value in (document["vat_accounting"] or {}).items() if name.startswith("invoice_total")),
        *(vat[name] for vat in document["vat_breakdown"] for name in vat if name.endswith("_amount")),
        *(line["invoice_line_net_amount"] for line in document["lines"]),
    ]
    return all(len(amount["text"].partition(".")[2]) <= MOST_DECIMALS for amount in amounts)


def _takes_rate(vat: Document) -> bool:
    """BR-CO-17 as published rounds rate and tax to whole numbers; a rate of 0 needs a tax of 0."""
    rate, tax = Decimal(vat["vat_category_rate"] or 0), Decimal(vat["vat_category_tax_amount"]["text"])
    return rate >= _HALF or abs(tax) < _HALF


def _party(parent: Element, document: Document, role: str) -> None:
    facts, party = document[role], _aggregate(parent, "Party")
    if endpoint := facts[f"{role}_electronic_address"]:
        _basic(party, "EndpointID", endpoint["address"], schemeID=endpoint["scheme_identifier"])
    _basic(_aggregate(party, "PartyIdentification"), "ID", facts[f"{role}_identifier"])
    creditor = document["payment_instructions"]["bank_assigned_creditor_identifier"]
    if role == "seller" and creditor:
        _basic(_aggregate(party, "PartyIdentification"), "ID", creditor, schemeID="SEPA")
    address, postal = facts[f"{role}_postal_address"], _aggregate(party, "PostalAddress")
    _basic(postal, "StreetName", address["line"])
    _basic(postal, "CityName", address["city"])
    _basic(postal, "PostalZone", address["post_code"])
    _basic(_aggregate(postal, "Country"), "IdentificationCode", address["country_code"])
    _tax_scheme(party, facts[f"{role}_vat_identifier"] if is_subject_to_vat(document) else None, "VAT")
    _tax_scheme(party, facts.get(f"{role}_tax_registration_identifier"), "TAX")
    _basic(_aggregate(party, "PartyLegalEntity"), "RegistrationName", facts[f"{role}_name"])
    if contact := facts.get("seller_contact"):
        person = _aggregate(party, "Contact")
        _basic(person, "Name", contact["seller_contact_point"])
        _basic(person, "Telephone", contact["seller_contact_telephone_number"])
        _basic(person, "ElectronicMail", contact["seller_contact_email_address"])


def is_subject_to_vat(document: Document) -> bool:
    """A document that is not subject to VAT has no VAT ids (BR-O-02)."""
    return all(vat["vat_category_code"] != VatCategory.OUT_OF_SCOPE for vat in document["vat_breakdown"])


def _tax_scheme(party: Element, company: str | None, scheme: str) -> None:
    if company:
        tax = _aggregate(party, "PartyTaxScheme")
        _basic(tax, "CompanyID", company)
        _basic(_aggregate(tax, "TaxScheme"), "ID", scheme)


def _payment(root: Element, document: Document) -> None:
    instructions, means = document["payment_instructions"], _aggregate(root, "PaymentMeans")
    _basic(means, "PaymentMeansCode", instructions["payment_means_type_code"])
    _basic(means, "PaymentID", instructions["remittance_information"])
    if iban := instructions["payment_account_identifier"]:
        account = _aggregate(means, "PayeeFinancialAccount")
        _basic(account, "ID", iban)
        if provider := instructions["payment_service_provider_identifier"]:
            _basic(_aggregate(account, "FinancialInstitutionBranch"), "ID", provider)
    if mandate := instructions["mandate_reference_identifier"]:
        agreed = _aggregate(means, "PaymentMandate")
        _basic(agreed, "ID", mandate)
        _basic(_aggregate(agreed, "PayerFinancialAccount"), "ID", instructions["debited_account_identifier"])
    if document["payment_terms"]:
        _basic(_aggregate(root, "PaymentTerms"), "Note", document["payment_terms"])


def _tax_total(root: Element, document: Document) -> None:
    total = _aggregate(root, "TaxTotal")
    _amount(total, "TaxAmount", document["document_totals"]["invoice_total_vat_amount"]["text"], document)
    for vat in document["vat_breakdown"]:
        part = _aggregate(total, "TaxSubtotal")
        _amount(part, "TaxableAmount", vat["vat_category_taxable_amount"]["text"], document)
        _amount(part, "TaxAmount", vat["vat_category_tax_amount"]["text"], document)
        category = _aggregate(part, "TaxCategory")
        _basic(category, "ID", vat["vat_category_code"])
        _basic(category, "Percent", vat_rate(vat, document))
        _basic(category, "TaxExemptionReason", vat["vat_exemption_reason_text"])
        _basic(_aggregate(category, "TaxScheme"), "ID", "VAT")
    if accounting := document["vat_accounting"]:
        text = accounting["invoice_total_vat_amount_in_accounting_currency"]["text"]
        currency = accounting["vat_accounting_currency_code"]
        _basic(_aggregate(root, "TaxTotal"), "TaxAmount", text, currencyID=currency)


def _monetary_total(root: Element, document: Document) -> None:
    totals, total = document["document_totals"], _aggregate(root, "LegalMonetaryTotal")
    for element, name in (
        ("LineExtensionAmount", "sum_of_invoice_line_net_amount"),
        ("TaxExclusiveAmount", "invoice_total_amount_without_vat"),
        ("TaxInclusiveAmount", "invoice_total_amount_with_vat"),
        ("PayableRoundingAmount", "rounding_amount"),
        ("PayableAmount", "amount_due_for_payment"),
    ):
        if totals[name]["minor"] or name != "rounding_amount":
            _amount(total, element, totals[name]["text"], document)


def _line(element: Element, line: Document, document: Document, *, credit: bool) -> None:
    unit = line["invoiced_quantity_unit_of_measure_code"]
    _basic(element, "ID", line["invoice_line_identifier"])
    _basic(element, "CreditedQuantity" if credit else "InvoicedQuantity", line["invoiced_quantity"], unitCode=unit)
    _amount(element, "LineExtensionAmount", line["invoice_line_net_amount"]["text"], document)
    _basic(element, "AccountingCost", line["account"])
    item = _aggregate(element, "Item")
    _basic(item, "Name", line["item_name"])
    category = _aggregate(item, "ClassifiedTaxCategory")
    _basic(category, "ID", line["invoiced_item_vat_category_code"])
    _basic(category, "Percent", line["invoiced_item_vat_rate"])
    _basic(_aggregate(category, "TaxScheme"), "ID", "VAT")
    for name, value in item_properties(line):
        attribute = _aggregate(item, "AdditionalItemProperty")
        _basic(attribute, "Name", name)
        _basic(attribute, "Value", value)
    price = _aggregate(element, "Price")
    _amount(price, "PriceAmount", line["item_net_price"], document)
    _basic(price, "BaseQuantity", line["item_price_base_quantity"], unitCode=unit)


def item_properties(line: Document) -> list[tuple[str, str]]:
    """BG-32: facts of the line for which EN 16931 has no term."""
    quantity = line["quantity"]
    found = [("Account", line["account_name"]), ("Region", line["region"]), ("Price", line["price"])]
    if line["vehicles"]:
        found.append(("Vehicles", str(line["vehicles"])))
    if quantity:
        found.append(("Measured", f"{quantity['text']} {quantity['unit']}"))
        if quantity["free_base"]:
            found.append(("Free of charge", f"{quantity['free_text']} {quantity['unit']}"))
    return [(name, value) for name, value in found if value]
