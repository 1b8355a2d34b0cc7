"""A document as UN/CEFACT Cross Industry Invoice (D16B) in the syntax binding of EN 16931: the XML inside of a PDF.

One root element has all types of document. A document that the published rules cannot take is written as it is, without
their guideline (see `ubl.keeps_en_16931`).
"""

from __future__ import annotations

from typing import Any, Final
from xml.etree.ElementTree import Element, SubElement, indent, register_namespace, tostring

from cloud_jobs.billing.contracts import Profile
from cloud_jobs.billing.documents.canonical import Document
from cloud_jobs.billing.documents.ubl import (
    EN_16931,
    PROCESS,
    SPECIFICATIONS,
    check_issued,
    is_subject_to_vat,
    item_properties,
    keeps_en_16931,
    type_code,
    vat_rate,
)

_UN: Final = "urn:un:unece:uncefact:data:standard:"
_SPACES: Final = {
    "rsm": f"{_UN}CrossIndustryInvoice:100",
    "ram": f"{_UN}ReusableAggregateBusinessInformationEntity:100",
    "udt": f"{_UN}UnqualifiedDataType:100",
    "qdt": f"{_UN}QualifiedDataType:100",
}
_DAY: Final = "102"
"""UNTDID 2379: YYYYMMDD."""


def to_cii(document: Document, *, in_pdf: bool = False) -> bytes:
    """The XML of an issued document, in UTF-8. Raises NotIssued.

    `in_pdf`: Factur-X names EN 16931, which documents of each profile keep. Peppol has no CII.
    """
    check_issued(document)
    for prefix, uri in _SPACES.items():
        register_namespace(prefix, uri)
    root = Element(_name("rsm:CrossIndustryInvoice"))
    context = _add(root, "rsm:ExchangedDocumentContext")
    if document["profile"]:
        _text(_add(context, "BusinessProcessSpecifiedDocumentContextParameter"), "ID", PROCESS)
    if keeps_en_16931(document):
        is_plain = in_pdf or document["profile"] == Profile.PEPPOL
        guideline = EN_16931 if is_plain else SPECIFICATIONS[document["profile"]]
        _text(_add(context, "GuidelineSpecifiedDocumentContextParameter"), "ID", guideline)
    head = _add(root, "rsm:ExchangedDocument")
    _text(head, "ID", document["invoice_number"])
    _text(head, "TypeCode", type_code(document))
    _day(head, "IssueDateTime", document["invoice_issue_date"])
    if document["invoice_note"]:
        _text(_add(head, "IncludedNote"), "Content", document["invoice_note"])
    transaction = _add(root, "rsm:SupplyChainTradeTransaction")
    for line in document["lines"]:
        _line(_add(transaction, "IncludedSupplyChainTradeLineItem"), line)
    agreement = _add(transaction, "ApplicableHeaderTradeAgreement")
    _text(agreement, "BuyerReference", document["buyer_reference"])
    _party(_add(agreement, "SellerTradeParty"), document, "seller")
    _party(_add(agreement, "BuyerTradeParty"), document, "buyer")
    if order := document["purchase_order_reference"]:
        _text(_add(agreement, "BuyerOrderReferencedDocument"), "IssuerAssignedID", order)
    delivery = _add(transaction, "ApplicableHeaderTradeDelivery")
    if country := document["deliver_to_country_code"]:
        address = _add(delivery, "ShipToTradeParty", "PostalTradeAddress")
        _text(address, "PostcodeCode", document["buyer"]["buyer_postal_address"]["post_code"])
        _text(address, "CityName", document["buyer"]["buyer_postal_address"]["city"])
        _text(address, "CountryID", country)
    _settlement(_add(transaction, "ApplicableHeaderTradeSettlement"), document)
    indent(root)
    written: bytes = tostring(root, encoding="utf-8", xml_declaration=True)
    return written + b"\n"


def _name(name: str) -> str:
    prefix, _, local = name.rpartition(":")
    return f"{{{_SPACES[prefix or 'ram']}}}{local}"


def _add(parent: Element, *names: str) -> Element:
    """Nested elements; returns the innermost."""
    for name in names:
        parent = SubElement(parent, _name(name))
    return parent


def _text(parent: Element, name: str, text: Any, **attributes: str) -> None:
    """A value; None adds nothing."""
    if text is not None:
        SubElement(parent, _name(name), attributes).text = str(text)


def _day(parent: Element, name: str, day: str | None, space: str = "udt") -> None:
    if day is not None:
        _text(_add(parent, name), f"{space}:DateTimeString", day.replace("-", ""), format=_DAY)


def _line(item: Element, line: Document) -> None:
    unit = line["invoiced_quantity_unit_of_measure_code"]
    _text(_add(item, "AssociatedDocumentLineDocument"), "LineID", line["invoice_line_identifier"])
    product = _add(item, "SpecifiedTradeProduct")
    _text(product, "Name", line["item_name"])
    for name, value in item_properties(line):
        characteristic = _add(product, "ApplicableProductCharacteristic")
        _text(characteristic, "Description", name)
        _text(characteristic, "Value", value)
    price = _add(item, "SpecifiedLineTradeAgreement", "NetPriceProductTradePrice")
    _text(price, "ChargeAmount", line["item_net_price"])
    _text(price, "BasisQuantity", line["item_price_base_quantity"], unitCode=unit)
    _text(_add(item, "SpecifiedLineTradeDelivery"), "BilledQuantity", line["invoiced_quantity"], unitCode=unit)
    settlement = _add(item, "SpecifiedLineTradeSettlement")
    tax = _add(settlement, "ApplicableTradeTax")
    _text(tax, "TypeCode", "VAT")
    _text(tax, "CategoryCode", line["invoiced_item_vat_category_code"])
    _text(tax, "RateApplicablePercent", line["invoiced_item_vat_rate"])
    summation = _add(settlement, "SpecifiedTradeSettlementLineMonetarySummation")
    _text(summation, "LineTotalAmount", line["invoice_line_net_amount"]["text"])
    _text(_add(settlement, "ReceivableSpecifiedTradeAccountingAccount"), "ID", line["account"])


def _party(party: Element, document: Document, role: str) -> None:
    facts = document[role]
    address = facts[f"{role}_postal_address"]
    _text(party, "ID", facts[f"{role}_identifier"])
    _text(party, "Name", facts[f"{role}_name"])
    if contact := facts.get("seller_contact"):
        person = _add(party, "DefinedTradeContact")
        _text(person, "PersonName", contact["seller_contact_point"])
        if telephone := contact["seller_contact_telephone_number"]:
            _text(_add(person, "TelephoneUniversalCommunication"), "CompleteNumber", telephone)
        if email := contact["seller_contact_email_address"]:
            _text(_add(person, "EmailURIUniversalCommunication"), "URIID", email)
    postal = _add(party, "PostalTradeAddress")
    _text(postal, "PostcodeCode", address["post_code"])
    _text(postal, "LineOne", address["line"])
    _text(postal, "CityName", address["city"])
    _text(postal, "CountryID", address["country_code"])
    if endpoint := facts[f"{role}_electronic_address"]:
        uri = _add(party, "URIUniversalCommunication")
        _text(uri, "URIID", endpoint["address"], schemeID=endpoint["scheme_identifier"])
    vat_id = facts[f"{role}_vat_identifier"] if is_subject_to_vat(document) else None
    for scheme, number in (("VA", vat_id), ("FC", facts.get(f"{role}_tax_registration_identifier"))):
        if number:
            _text(_add(party, "SpecifiedTaxRegistration"), "ID", number, schemeID=scheme)


def _settlement(settlement: Element, document: Document) -> None:
    instructions, currency = document["payment_instructions"], document["invoice_currency_code"]
    _text(settlement, "CreditorReferenceID", instructions["bank_assigned_creditor_identifier"])
    _text(settlement, "PaymentReference", instructions["remittance_information"])
    accounting = document["vat_accounting"] or {}
    _text(settlement, "TaxCurrencyCode", accounting.get("vat_accounting_currency_code"))
    _text(settlement, "InvoiceCurrencyCode", currency)
    means = _add(settlement, "SpecifiedTradeSettlementPaymentMeans")
    _text(means, "TypeCode", instructions["payment_means_type_code"])
    if debited := instructions["debited_account_identifier"]:
        _text(_add(means, "PayerPartyDebtorFinancialAccount"), "IBANID", debited)
    if iban := instructions["payment_account_identifier"]:
        _text(_add(means, "PayeePartyCreditorFinancialAccount"), "IBANID", iban)
    if bic := instructions["payment_service_provider_identifier"]:
        _text(_add(means, "PayeeSpecifiedCreditorFinancialInstitution"), "BICID", bic)
    for vat in document["vat_breakdown"]:
        tax = _add(settlement, "ApplicableTradeTax")
        _text(tax, "CalculatedAmount", vat["vat_category_tax_amount"]["text"])
        _text(tax, "TypeCode", "VAT")
        _text(tax, "ExemptionReason", vat["vat_exemption_reason_text"])
        _text(tax, "BasisAmount", vat["vat_category_taxable_amount"]["text"])
        _text(tax, "CategoryCode", vat["vat_category_code"])
        _text(tax, "RateApplicablePercent", vat_rate(vat, document))
    period = _add(settlement, "BillingSpecifiedPeriod")
    _day(period, "StartDateTime", document["invoicing_period"]["invoicing_period_start_date"])
    _day(period, "EndDateTime", document["invoicing_period"]["invoicing_period_end_date"])
    mandate = instructions["mandate_reference_identifier"]
    if document["payment_terms"] or document["payment_due_date"] or mandate:
        terms = _add(settlement, "SpecifiedTradePaymentTerms")
        _text(terms, "Description", document["payment_terms"])
        _day(terms, "DueDateDateTime", document["payment_due_date"])
        _text(terms, "DirectDebitMandateID", mandate)
    totals, summation = document["document_totals"], _add(settlement, "SpecifiedTradeSettlementHeaderMonetarySummation")
    _text(summation, "LineTotalAmount", totals["sum_of_invoice_line_net_amount"]["text"])
    _text(summation, "TaxBasisTotalAmount", totals["invoice_total_amount_without_vat"]["text"])
    _text(summation, "TaxTotalAmount", totals["invoice_total_vat_amount"]["text"], currencyID=currency)
    if accounting:
        text = accounting["invoice_total_vat_amount_in_accounting_currency"]["text"]
        _text(summation, "TaxTotalAmount", text, currencyID=accounting["vat_accounting_currency_code"])
    if totals["rounding_amount"]["minor"]:
        _text(summation, "RoundingAmount", totals["rounding_amount"]["text"])
    _text(summation, "GrandTotalAmount", totals["invoice_total_amount_with_vat"]["text"])
    _text(summation, "DuePayableAmount", totals["amount_due_for_payment"]["text"])
    if preceding := document["preceding_invoice"]:
        reference = _add(settlement, "InvoiceReferencedDocument")
        _text(reference, "IssuerAssignedID", preceding["preceding_invoice_reference"])
        _day(reference, "FormattedIssueDateTime", preceding["preceding_invoice_issue_date"], "qdt")
