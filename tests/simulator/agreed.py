"""Contracts for the tests of the truth's money: one seller, one payer, and a tariff that each test writes."""

from datetime import UTC, datetime

from simulator.truth import TrueContracts, TrueQuarter

ALWAYS = "2025-01-01T00:00:00Z"
NOON = datetime(2026, 3, 10, 12, tzinfo=UTC)


def payer(
    name: str = "acme",
    *,
    currency: str = "EUR",
    time_zone: str = "Europe/Berlin",
    vat: str = 'category = "S", rate = "19"',
    devices: tuple[str, ...] = ("van",),
    tariff: str = "standard",
) -> str:
    """The TOML of an account that pays, with devices of the tenant `fleet` in region `eu`."""
    return f"""
[[account]]
id = "{name}"
effective_from = {ALWAYS}
name = "{name}"
tariff = "{tariff}"
payer = {{ legal_entity = "waybill-eu", currency = "{currency}", time_zone = "{time_zone}",
    address = {{ line = "Kai 1", city = "Hamburg", country = "DE" }}, vat = {{ {vat} }} }}
devices = [{assigned(*devices)}]
""".replace(",\n    ", ", ")


def assigned(*devices: str, begin: str = ALWAYS, end: str = "") -> str:
    until = f", end = {end}" if end else ""
    return ", ".join(
        f'{{ tenant = "fleet", device = "{device}", region = "eu", begin = {begin}{until} }}' for device in devices
    )


def tariff(*prices: str, begin: str = ALWAYS, currency: str = "EUR", name: str = "standard", more: str = "") -> str:
    """The TOML of a version of a tariff; each price as the inside of an inline table."""
    listed = ",\n".join(f"    {{ {price} }}" for price in prices)
    return f"""
[[tariff]]
id = "{name}"
effective_from = {begin}
currency = "{currency}"
{more}
prices = [
{listed}
]
"""


def contracts(*texts: str) -> TrueContracts:
    return TrueContracts.of_texts(*texts)


def km(kilometres: float, zone: str = "", at: datetime = NOON, device: str = "van") -> TrueQuarter:
    return TrueQuarter("fleet", device, at, zone, distance_mm=round(kilometres * 1_000_000))
