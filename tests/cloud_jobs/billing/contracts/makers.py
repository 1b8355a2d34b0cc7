"""Contracts as small as they can be, to be changed by what a test is about."""

from typing import Any

from cloud_jobs.billing.billing_period import BillingPeriod
from cloud_jobs.billing.contracts import BlockedPayer, ContractFault, Contracts
from geo.reference.messages import Kind
from tests.cloud_jobs.publications import row_of

ADDRESS = {"line": "Hafenstr. 1", "city": "Hamburg", "postal_code": "20457", "country": "DE"}
SINCE = "2026-01-01T00:00:00+01:00"
BERLIN = "Europe/Berlin"
MARCH = BillingPeriod.parse("2026-03", BERLIN)
APRIL = BillingPeriod.parse("2026-04", BERLIN)


def price(amount: str = "0.45", **more: Any) -> dict[str, Any]:
    return {"meter": "distance", "unit": "km", "unit_amount": amount} | more


def tiered(*tiers: tuple[str | None, str], **more: Any) -> dict[str, Any]:
    made = [{"unit_amount": amount} | ({"up_to": up_to} if up_to else {}) for up_to, amount in tiers]
    return {"meter": "distance", "unit": "km", "tiers": made} | more


def tariff(*prices: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"id": "standard", "effective_from": SINCE, "currency": "EUR", "prices": list(prices or [price()])} | more


def window(**more: Any) -> dict[str, Any]:
    return {"id": "night", "days": ["mon", "tue"], "hours": ["22:00-06:00"]} | more


def calendar(**more: Any) -> dict[str, Any]:
    return {"id": "sweden", "effective_from": SINCE, "holidays": ["2026-04-03"]} | more


def payer(**more: Any) -> dict[str, Any]:
    vat = {"category": "S", "rate": "19"}
    return {
        "legal_entity": "waybill-eu",
        "currency": "EUR",
        "time_zone": "Europe/Berlin",
        "address": ADDRESS,
        "vat": vat,
    } | more


def device(name: str = "van-1", begin: str = SINCE, end: str | None = None, **more: Any) -> dict[str, Any]:
    made = {"tenant": "fleet", "device": name, "region": "eu", "begin": begin} | more
    return made | ({"end": end} if end else {})


def account(id_: str = "acme", *devices: dict[str, Any], parent: str | None = None, **more: Any) -> dict[str, Any]:
    pays = {"parent": parent} if parent else {"payer": payer()}
    made = {"id": id_, "effective_from": SINCE, "name": id_.title(), "tariff": "standard", "devices": list(devices)}
    return made | pays | more


def legal_entity(**more: Any) -> dict[str, Any]:
    return {
        "id": "waybill-eu",
        "effective_from": SINCE,
        "name": "Waybill Europe GmbH",
        "address": ADDRESS,
        "vat_id": "DE123456789",
        "number_prefix": "WB-EU-",
        "payment": {"means_code": "58", "iban": "DE89 3704 0044 0532 0130 00", "bic": "COBADEFFXXX"},
    } | more


def exchange_rate(rate: str = "0.9", **more: Any) -> dict[str, Any]:
    named = {"id": "usd-eur", "currency": "USD", "into": "EUR"}
    return named | {"effective_from": SINCE, "rate": rate, "source": "European Central Bank"} | more


KINDS: tuple[tuple[str, Kind], ...] = (
    ("holidays", "calendar"),
    ("prices", "tariff"),
    ("number_prefix", "legal_entity"),
    ("into", "exchange_rate"),
    ("name", "account"),
)


def kind_of(body: dict[str, Any]) -> Kind:
    return next(kind for member, kind in KINDS if member in body)


def rows(*bodies: dict[str, Any]) -> list[dict[str, Any]]:
    return [row_of(kind_of(body), body["id"], body, number) for number, body in enumerate(bodies)]


def contracts(*bodies: dict[str, Any]) -> Contracts:
    return Contracts(rows(*bodies))


def faults_of(made: Contracts, payer_id: str = "acme", period: BillingPeriod = MARCH) -> list[ContractFault]:
    """Why a payer is blocked; none: it is not."""
    try:
        made.contract_of(payer_id, period)
    except BlockedPayer as blocked:
        return list(blocked.faults) or [ContractFault("blocked without a reason")]
    return []
