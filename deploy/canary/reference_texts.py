"""The canary's fence, and its contracts: what has to be published before a canary can be measured up to the money."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Final

from deploy.canary.config import CanarySettings
from deploy.canary.expected_bill import CURRENCY, EACH
from deploy.canary.script import CanaryScript

__all__ = ["contracts_text", "fence_text"]

LOWEST_PRIORITY: Final = -1_000_000
"""A place belongs to the fence with the highest priority: that of a canary takes nothing from another."""


def fence_text(settings: CanarySettings) -> str:
    """The fence, as GeoJSON."""
    feature = {
        "type": "Feature",
        "properties": {"id": settings.name, "priority": LOWEST_PRIORITY},
        "geometry": {"type": "Polygon", "coordinates": [CanaryScript(settings.script).fence()]},
    }
    return json.dumps({"type": "FeatureCollection", "features": [feature]}, indent=1) + "\n"


def contracts_text(settings: CanarySettings, since: datetime) -> str:
    """Seller, tariff and account, in force from a moment on, as TOML.

    The seller is one of canaries, too: what is issued to them takes no number from another seller's documents.
    """
    begin, name = since.astimezone(UTC).isoformat(), settings.name
    address = '{ line = "Nowhere 1", city = "Nowhere", country = "DE" }'
    return f"""# The canary of region {settings.region}: no customer's account names its tenant.
[[legal_entity]]
id = "{name}"
effective_from = {begin}
name = "Canary of region {settings.region}"
address = {address}
tax_registration_id = "CANARY"
number_prefix = "{_prefix(settings)}"
payment = {{ means_code = "58", iban = "DE02 1203 0000 0000 2020 51" }}

[[tariff]]
id = "{name}"
effective_from = {begin}
currency = "{CURRENCY}"
prices = [{{ meter = "entry", zone = "{name}", unit = "each", unit_amount = {EACH} }}]

[[account]]
id = "{name}"
effective_from = {begin}
name = "Canary of region {settings.region}"
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


def _prefix(settings: CanarySettings) -> str:
    """Of its documents' numbers: 16 signs at most."""
    region = "".join(one if one.isalnum() else "-" for one in settings.region.upper())
    return f"CANARY-{region}"[:15] + "-"
