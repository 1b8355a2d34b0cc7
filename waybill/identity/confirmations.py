"""Confirmations of the regions: which publications of devices are in force at a region's broker. Pure.

The region's access daemon signs them, so that no other client can confirm for a region.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from waybill.identity.errors import SignatureRefused
from waybill.identity.names import PrincipalKind, PrincipalName, parse_name, principal
from waybill.identity.operator_keys import OperatorKeys, Scope
from waybill.identity.registry_messages import ENROLMENT_KIND
from waybill.identity.signatures import OperatorKey, Publication, sign_publication, verify_publication
from waybill.record import InvalidJson, parse_json

CONFIRMATIONS_TOPIC: Final = "persistent://fleet/access/confirmations"
CONFIRMATIONS_KEPT: Final = timedelta(days=1)
"""The retention of confirmations in the topologies."""
# A burst of revocations is confirmed in one message.
_MAX_BYTES: Final = 1 << 20
_MAX_VALUES: Final = 10_000
_KIND: Final = "confirmation"


class RegionConfirmation(NamedTuple):
    """At `at_s` (seconds since 1970) these publications, by device, were in force in a region.

    `refused`: the publications that it refuses, by id, with the reason.
    """

    region: str
    confirmed: dict[str, str]
    at_s: float
    refused: dict[str, str]


def encode_confirmation(
    region: str, confirmed: Iterable[tuple[str, str]], at_s: float, refused: Iterable[tuple[str, str]] = ()
) -> bytes:
    facts = {"region": region, "at_s": at_s, "confirmed": dict(confirmed), "refused": dict(refused)}
    return json.dumps(facts, separators=(",", ":")).encode()


def decode_confirmation(body: bytes) -> RegionConfirmation | None:
    try:
        facts = parse_json(body, max_bytes=_MAX_BYTES, max_depth=3, max_values=_MAX_VALUES)
        region, at_s, confirmed, refused = facts["region"], facts["at_s"], facts["confirmed"], facts["refused"]
        texts = [region, *confirmed, *confirmed.values(), *refused, *refused.values()]
    except (InvalidJson, KeyError, TypeError, AttributeError):
        return None
    is_right = isinstance(at_s, int | float) and all(isinstance(text, str) for text in texts)
    return RegionConfirmation(region, confirmed, float(at_s), refused) if is_right else None


def sign_confirmation(key: OperatorKey, region: str, body: bytes, publication_id: str) -> Mapping[str, str]:
    """The properties of the message that sign it."""
    return sign_publication(key, Publication(_KIND, region, body), publication_id, "in force")


def is_of_its_region(found: RegionConfirmation, body: bytes, properties: Mapping[str, str], keys: OperatorKeys) -> bool:
    """Whether the access daemon of the region that a confirmation names signed it with a trusted key."""
    publication = Publication(_KIND, found.region, body)
    try:
        by = verify_publication(keys, publication, properties, Scope(ENROLMENT_KIND))
    except SignatureRefused:
        return False
    return by.name == principal(PrincipalKind.ACCESS, found.region)


def confirming_regions(keys: OperatorKeys, moment: datetime) -> frozenset[str]:
    """The regions whose access daemons have a trusted key that is valid at the moment: each must confirm."""
    valid = (key for key in keys.keys.values() if ENROLMENT_KIND in key.kinds and key.is_valid_at(moment))
    names = (parse_name(key.name) for key in valid)
    return frozenset(one.name for one in names if isinstance(one, PrincipalName) and one.kind is PrincipalKind.ACCESS)


class RegionAnswers:
    """The confirmations by region and publication id. A confirmation outweighs an earlier refusal."""

    def __init__(self) -> None:
        self._confirmed: dict[str, set[str]] = {}
        self._refused: dict[str, dict[str, str]] = {}

    @property
    def regions(self) -> frozenset[str]:
        return frozenset(self._confirmed)

    def take(self, found: RegionConfirmation) -> None:
        self._confirmed.setdefault(found.region, set()).update(found.confirmed.values())
        self._refused.setdefault(found.region, {}).update(found.refused)

    def confirmed(self, region: str, ids: Iterable[str]) -> int:
        """The number of these publications that are in force in a region."""
        return len(self._confirmed.get(region, set()).intersection(ids))

    def is_complete(self, region: str, ids: Iterable[str]) -> bool:
        """Whether a region has confirmed or refused each publication."""
        return not {*ids} - self._confirmed.get(region, set()) - self._refused.get(region, {}).keys()

    def missing(self, publication_id: str, regions: Iterable[str]) -> dict[str, str]:
        """The regions in which a publication is not in force, and why."""
        return {
            region: f"{region} refuses it: {reason}"
            if (reason := self._refused.get(region, {}).get(publication_id))
            else f"{region} has not confirmed it"
            for region in regions
            if publication_id not in self._confirmed.get(region, ())
        }
