"""Sellers, buyers and rated accounts for the tests of documents, and strategies that draw them."""

from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any

from hypothesis import strategies as st

from cloud_jobs.billing.contracts import Account, Address, Contact, LegalEntity, Payer, Payment, Vat
from cloud_jobs.billing.contracts.fields import VatCategory
from cloud_jobs.billing.documents import (
    CertificateSummary,
    Document,
    DocumentType,
    InvoicingPeriod,
    PrecedingInvoice,
    document_body,
    document_head,
)
from cloud_jobs.billing.rating import Charge, ChargeKey, ChargeKind, MeteredRows, RatedAccount, TaxGroup
from cloud_jobs.billing.rating.charges import MOST_QUANTITY
from cloud_jobs.billing.units import Meter, round_ratio

LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)
STANDARD = Vat(category=VatCategory.STANDARD, rate=Decimal(19))
REDUCED = Vat(category=VatCategory.STANDARD, rate=Decimal(7))
VATS = {
    "S": STANDARD,
    "Z": Vat(category=VatCategory.ZERO),
    "E": Vat(category=VatCategory.EXEMPT, exemption_reason="Exempt by Article 132"),
    "AE": Vat(category=VatCategory.REVERSE_CHARGE, exemption_reason="Reverse charge"),
    "K": Vat(category=VatCategory.INTRA_COMMUNITY, exemption_reason="Intra-Community supply"),
    "G": Vat(category=VatCategory.EXPORT, exemption_reason="Export outside the EU"),
    "O": Vat(category=VatCategory.OUT_OF_SCOPE, exemption_reason="Not subject to VAT"),
}
MARCH = InvoicingPeriod(
    first_day=date(2026, 3, 1),
    last_day=date(2026, 3, 31),
    start=datetime(2026, 2, 28, 23, tzinfo=UTC),
    end=datetime(2026, 3, 31, 22, tzinfo=UTC),
    time_zone="Europe/Berlin",
)
CERTIFICATES = CertificateSummary(devices_by_state={"complete": 9, "closed by decision": 1}, digest="ab" * 32)
ORIGINAL = PrecedingInvoice(number="WB-000041", issue_date=date(2026, 4, 2))


def made_of(*, rated: RatedAccount, names: Mapping[str, str] | None = None, **facts: Any) -> Document:
    """Head and body as the register makes them."""
    body = document_body(rated, kind=facts["kind"], buyer=facts["buyer"], names=names or {})
    return {**document_head(owed=rated.owed, body_digest=body.digest, **facts), **body.parts}


def seller(**changes: Any) -> LegalEntity:
    facts: dict[str, Any] = {
        "id": "waybill-de",
        "effective_from": LONG_AGO,
        "name": "Waybill Telematik GmbH",
        "address": Address(line="Hafenstraße 12", city="Hamburg", postal_code="20457", country="DE"),
        "vat_id": "DE123456789",
        "contact": Contact(name="Billing", telephone="+49 40 123456", email="billing@waybill.example"),
        "number_prefix": "WB-",
        "payment": Payment(means_code="58", iban="DE02120300000000202051", bic="BYLADEM1001"),
    }
    return LegalEntity(**facts | changes)


def buyer(vat: Vat = STANDARD, currency: str = "EUR", **changes: Any) -> Account:
    payer = Payer(
        legal_entity="waybill-de",
        currency=currency,
        time_zone="Europe/Berlin",
        address=Address(line="Rue du Port 3", city="Le Havre", postal_code="76600", country="FR"),
        vat=vat,
        vat_id="FR40303265045",
        buyer_reference="PO 2026-17",
    )
    facts: dict[str, Any] = {
        "id": "acme",
        "effective_from": LONG_AGO,
        "name": "Acme Logistics & Söhne",
        "payer": payer,
        "tariff": "standard",
    }
    return Account(**facts | changes)


def taxed(charges: list[Charge], vat: Vat = STANDARD, currency: str = "EUR") -> RatedAccount:
    """Charges without a tax of their own are taxed with `vat`."""
    made = tuple(one if one.key.tax else one._replace(key=one.key._replace(tax=vat.tax)) for one in charges)
    groups = []
    for used in sorted({one.key.tax for one in made} or {vat.tax}):
        net = sum(one.amount_minor for one in made if one.key.tax == used)
        of = next(one for one in (vat, *VATS.values(), REDUCED) if one.tax == used)
        tax = TaxGroup(
            category=of.category,
            rate=of.rate,
            exemption_reason=of.exemption_reason,
            taxable_minor=net,
            tax_minor=round_ratio(*(net * Fraction(of.rate) / 100).as_integer_ratio()),
        )
        groups.append(tax)
    return RatedAccount(payer="acme", currency=currency, charges=made, taxes=tuple(groups))


def charge(device: str = "eu-0001", amount_minor: int = 4500, quantity: int = 100_000_000, **key: Any) -> Charge:
    facts: dict[str, Any] = {
        "account": "acme",
        "region": "eu",
        "tenant": "fleet",
        "kind": ChargeKind.USAGE,
        "meter": Meter.DISTANCE,
        "zone": "eu-centre",
        "price": "0.45 EUR/km",
    }
    metered = MeteredRows(700, MARCH.start, MARCH.end - timedelta(hours=1), "cd" * 32)
    return Charge(
        key=ChargeKey(device=device, **facts | key),
        quantity=quantity,
        free=0,
        amount_minor=amount_minor,
        metered=metered,
    )


def fixed(amount_minor: int, kind: ChargeKind, **key: Any) -> Charge:
    """A cap or a fee: an amount without a meter."""
    if kind is ChargeKind.FEE:
        key = {"price": "Monthly rate: 12.90 EUR a period, 20 of 31 days"} | key
    return Charge(
        key=ChargeKey(account=key.pop("account", "acme"), kind=kind, **key),
        quantity=int(kind is ChargeKind.FEE),
        free=0,
        amount_minor=amount_minor,
        metered=None,
    )


def issued(rated: RatedAccount, kind: DocumentType = DocumentType.INVOICE, **changes: Any) -> Document:
    note = kind is not DocumentType.INVOICE
    facts: dict[str, Any] = {
        "kind": kind,
        "number": "WB-000042",
        "issue_date": date(2026, 4, 2),
        "due_date": None if kind is DocumentType.CREDIT_NOTE else date(2026, 5, 2),
        "seller": seller(),
        "buyer": buyer(currency=rated.currency),
        "names": {"acme-north": "Acme North"},
        "rated": rated,
        "period": MARCH,
        "snapshot": "17-0123456789ab",
        "certificates": CERTIFICATES,
        "preceding": ORIGINAL if note else None,
        "reason": "Late records of eu-0001" if note else None,
    }
    return made_of(**facts | changes)


@st.composite
def charges(draw: st.DrawFn) -> list[Charge]:
    """Charges of two accounts and some devices, of all kinds, each key once, of any sign: so are differences."""
    # what rating lets a payer owe, and what it lets be used
    amounts = st.integers(-(10**9), 10**9) | st.integers(-(10**14), 10**14)
    devices, zones = st.sampled_from(["eu-0001", "eu-0002", "us-0001"]), st.sampled_from(["", "eu-centre"])
    usage = st.builds(
        charge,
        device=devices,
        amount_minor=amounts,
        quantity=st.integers(-(10**12), 10**12) | st.integers(-MOST_QUANTITY, MOST_QUANTITY),
        account=st.sampled_from(["acme", "acme-north"]),
        region=st.sampled_from(["eu", "us"]),
        meter=st.sampled_from(Meter),
        zone=zones,
        window=st.sampled_from(["", "peak"]),
        price=st.sampled_from(["0.45 EUR/km", "graduated 0.50 to 100, 0.30 EUR/km"]),
    )
    others = st.builds(
        fixed,
        amounts,
        st.sampled_from([kind for kind in ChargeKind if kind is not ChargeKind.USAGE]),
        tenant=st.just("fleet"),
        device=st.sampled_from(["", "eu-0001"]),
    )
    found = draw(st.lists(usage | others, max_size=12, unique_by=lambda one: one.key))
    return sorted(found, key=lambda one: tuple(str(part or "") for part in _parts(one.key)))


def _parts(key: ChargeKey) -> tuple[Any, ...]:
    return (
        key.account, key.region, key.tenant, key.device, key.kind.value, key.meter, key.zone, key.window, key.price
    )  # fmt: skip


def rated_accounts(currencies: tuple[str, ...] = ("EUR", "JPY", "JOD")) -> st.SearchStrategy[RatedAccount]:
    return st.builds(taxed, charges(), st.sampled_from(list(VATS.values())), st.sampled_from(currencies))
