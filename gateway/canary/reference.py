"""The canary's fence and contracts, which an operator publishes once."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Final

from cloud_jobs.billing.units import amount_text
from gateway.canary.config import CanaryScript, CanarySettings
from gateway.errors import CanaryError

# Expected charges of the canary's account. Pure.

CURRENCY: Final = "EUR"
EACH: Final = Decimal("1.00")
"""The price of one entry."""
_EACH_MINOR: Final = 100


def bill_fault(entries: int, net_minor: int, tax_minor: int, currency: str) -> str:
    """How an amount due differs from the expected one, or ""."""
    # the number alone may be right by chance
    if currency != CURRENCY:
        return f"it is owed in {currency}, not in {CURRENCY}"
    wanted_minor = entries * _EACH_MINOR
    if net_minor != wanted_minor:
        net, wanted = amount_text(net_minor, CURRENCY), amount_text(wanted_minor, CURRENCY)
        return f"{entries} entries cost {net} {CURRENCY}, not {wanted} {CURRENCY}"
    return f"a tax of {amount_text(tax_minor, CURRENCY)} {CURRENCY} is owed on it" if tax_minor else ""


# Publishing commands for the canary's files.

LOWEST_PRIORITY: Final = -1_000_000
"""A place belongs to the fence with the highest priority, so a canary's fence takes nothing from another."""


def fence_text(settings: CanarySettings) -> str:
    feature = {
        "type": "Feature",
        "properties": {"id": settings.name, "priority": LOWEST_PRIORITY},
        "geometry": {"type": "Polygon", "coordinates": [CanaryScript(settings.script).fence()]},
    }
    return json.dumps({"type": "FeatureCollection", "features": [feature]}, indent=1) + "\n"


def contracts_text(settings: CanarySettings, since: datetime) -> str:
    """Seller, tariff and account, in force from a moment on, as TOML.

    The seller is a canary, too, so that its documents use no number of another seller.
    """
    begin, name = since.astimezone(UTC).isoformat(), settings.name
    address = '{ line = "Nowhere 1", city = "Nowhere", country = "DE" }'
    return f"""# The canary {settings.device} of region {settings.region}: no customer's account names its tenant.
[[legal_entity]]
id = "{name}"
effective_from = {begin}
name = "{settings.name} of region {settings.region}"
address = {address}
tax_registration_id = "CANARY"
number_prefix = "{settings.number_prefix}"
payment = {{ means_code = "58", iban = "DE02 1203 0000 0000 2020 51" }}

[[tariff]]
id = "{name}"
effective_from = {begin}
currency = "{CURRENCY}"
prices = [{{ meter = "entry", zone = "{name}", unit = "each", unit_amount = {EACH} }}]

[[account]]
id = "{name}"
effective_from = {begin}
name = "{settings.name} of region {settings.region}"
tariff = "{name}"
devices = [
  {{ tenant = "{settings.tenant}", device = "{settings.device}", region = "{settings.region}", begin = {begin} }},
]

[account.payer]
legal_entity = "{name}"
currency = "{CURRENCY}"
time_zone = "UTC"
address = {address}
vat = {{ category = "O", exemption_reason = "No supply: a measurement" }}
"""


def write_reference(folder: Path, fence: str, contracts: str, *, replace: bool) -> tuple[Path, Path]:
    """Write both into a folder; returns the files. Raises OSError, CanaryError if a file exists and `replace` is not
    set.
    """
    files = folder / "fences.geojson", folder / "contracts.toml"
    # before the first one is written, so that old and new are not mixed
    if not replace and (there := [file for file in files if file.exists()]):
        names = ", ".join(map(str, there))
        raise CanaryError(f"{names} already exists; choose another folder with --out, or add --replace")
    folder.mkdir(parents=True, exist_ok=True)
    for file, text in zip(files, (fence, contracts), strict=True):
        file.write_text(text, encoding="utf-8")
    return files
