"""The files that a trial writes, commented: with `--keep` they are the beginning of a real set-up."""

from __future__ import annotations

import hashlib
import json
import re
from datetime import datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from deploy.trial.servers import Place


def one_region(topology: str, region: str) -> str:
    """The stack's topology with one region, which the centre's cluster serves too, and without canaries.

    One server of Pulsar instead of three takes a third of the time to start.
    """
    name = re.escape(region)
    kept = re.sub(r"(?m)^\[clusters\.(?!hq\b)\w+\]\n", "", topology)
    kept = re.sub(rf"(?m)^\[regions\.(?!{name}\b)\w+\]\n(?:[a-z_]+ = .*\n)+\n?", "", kept)
    kept = re.sub(rf'(?m)^(\[regions\.{name}\]\n)cluster = ".*"$', r'\1cluster = "hq"', kept)
    kept = "\n\n".join(one for one in kept.split("\n\n") if not re.search(r'(?m)^\[\w+\."?canary', one))
    assert f'[regions.{region}]\ncluster = "hq"' in kept, "it is a region of the stack"
    kept = kept[kept.index("centre = ") :]
    return f"# One region of deploy/local/topology.toml at the centre's cluster, made by `waybill try`.\n{kept}"


def fence_text(name: str, place: Place, radius_m: float, priority: int = 0) -> str:
    """A circle around a place, as GeoJSON. `priority`: of fences at one place the highest counts."""
    feature = {
        "type": "Feature",
        "properties": {"id": name, "radius_m": radius_m, "priority": priority},
        "geometry": {"type": "Point", "coordinates": [place.longitude, place.latitude]},
    }
    return json.dumps({"type": "FeatureCollection", "features": [feature]}, indent=1) + "\n"


def contracts_text(name: str, device: tuple[str, str], region: str, since: datetime) -> str:
    """A seller, a tariff and an account of this name with the device, in force from a moment on."""
    tenant, own = device
    begin, address = since.isoformat(), '{ line = "Example street 1", city = "Hamburg", country = "DE" }'
    return f"""# Made by `waybill try`. Change it, then:
#   waybill reference check FILE
#   waybill reference put FOLDER --config publisher.toml --key operator.key --reason WHY

# Who sends the invoices.
[[legal_entity]]
id = "{name}"
effective_from = {begin}
name = "Trial of {name}"
address = {address}
tax_registration_id = "TRIAL"
number_prefix = "{_prefix(name)}"
payment = {{ means_code = "58", iban = "DE02 1203 0000 0000 2020 51" }}

# What is charged: a day with a record, each kilometre, and each entry into a fence.
[[tariff]]
id = "{name}"
effective_from = {begin}
currency = "EUR"
prices = [
  {{ meter = "active day", unit = "day", unit_amount = 1.00 }},
  {{ meter = "distance", unit = "km", unit_amount = 0.45 }},
  {{ meter = "distance", zone = "*", unit = "km", unit_amount = 0.40 }},
  {{ meter = "entry", zone = "*", unit = "each", unit_amount = 2.50 }},
]

# Who pays, and for which vehicles.
[[account]]
id = "{name}"
effective_from = {begin}
name = "Trial of {name}"
tariff = "{name}"
devices = [{{ tenant = "{tenant}", device = "{own}", region = "{region}", begin = {begin} }}]

[account.payer]
legal_entity = "{name}"
currency = "EUR"
time_zone = "UTC"
address = {address}
vat = {{ category = "O", exemption_reason = "No supply: a trial" }}
"""


def _prefix(name: str) -> str:
    """A prefix of document numbers that no other seller has."""
    return f"{re.sub(r'[^A-Z0-9]', '', name.upper())[:6]}{hashlib.sha256(name.encode()).hexdigest()[:6].upper()}-"
