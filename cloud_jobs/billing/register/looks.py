"""How a document looks, from the contracts and fences that were in force at the end of its period.

The newest publication of that version counts: a corrected name is printed from then on, a later logo is not.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Final

from cloud_jobs.billing.contracts import Account, LegalEntity, usable_contract
from cloud_jobs.billing.contracts.published import micros
from cloud_jobs.billing.documents import Document, Look
from cloud_jobs.lake.tables import Lake
from cloud_jobs.reference.tables import in_force
from geo.reference.in_force import HeldVersion, Usable, usable_fence
from geo.spatial.ids import UNSHOWN

_KINDS: Final = ("account", "fence", "legal_entity")
_MAX_NAME: Final = 100


def look_of(lake: Lake, document: Document, language: str | None = None) -> Look:
    """`language`: instead of the payer's. Raises LakeError."""
    seller, buyer = document["seller"]["seller_identifier"], document["buyer"]["buyer_identifier"]
    accounts = {line["account"] for line in document["lines"]}
    zones = {line["zone"] for line in document["lines"] if line["zone"]}
    asked = sorted({seller, buyer, *accounts, *zones})
    rows = lake.rows("reference", where=[("kind", "in", [*_KINDS]), ("id", "in", asked)])
    end_us = micros(datetime.fromisoformat(document["invoicing_period"]["end"]))
    last: dict[tuple[str, str], HeldVersion[Any]] = {}
    for held in in_force(rows.to_pylist(), _usable).held:
        if held.begin < end_us:
            last[held.row["kind"], held.row["id"]] = held
    entity: LegalEntity | None = getattr(last.get(("legal_entity", seller)), "made", None)
    payer: Account | None = getattr(last.get(("account", buyer)), "made", None)
    logo, colour = (entity.logo, entity.colour) if entity else (None, None)
    return Look(
        language=language or (payer.payer.language if payer and payer.payer else None),
        logo=base64.b64decode(logo) if logo else None,
        **({"colour": colour} if colour else {}),
        fences={zone: name for zone in zones if (name := _name_of(last.get(("fence", zone))))},
        vehicles=_vehicles(one.made for (kind, name), one in last.items() if kind == "account" and name in accounts),
    )


def _usable(kind: str, body: str) -> Usable[Any]:
    """Orders all kinds by microseconds."""
    if kind != "fence":
        return usable_contract(kind, body)
    begin_ms, made = usable_fence(body)
    return Usable(begin_ms * 1000, made)


def _name_of(fence: HeldVersion[Any] | None) -> str:
    """The property `name` of a feature, if a document can show it."""
    name = json.loads(fence.row["body"])["properties"].get("name") if fence else None
    return name[:_MAX_NAME] if isinstance(name, str) and not UNSHOWN.search(name) else ""


def _vehicles(accounts: Iterable[Account]) -> Mapping[str, str]:
    return {f"{one.tenant}/{one.device}": one.name for of in accounts for one in of.devices if one.name}
