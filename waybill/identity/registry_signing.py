"""Signatures of registry entries: whose signature a publication of a device needs, and how one is signed.

An operator's key speaks for a device if it may for kind `device` and for every tenant that the entry names: its own,
and that of its successor. So a move needs a right for both.

An access daemon's key may for kind `enrolment` alone. It speaks for what enrolment and renewal make of the devices of
its region, and for nothing else: nobody is locked out, moved, replaced or expected by it. Which devices those are, an
operator says: with each entry of a device that may connect he signs a *warrant*, over its name, region, vehicle,
predecessor, claim and version. A daemon puts the warrant of the entry that it changes beside its own signature; so any
reader can see from the one message that is left after compaction that an operator gave this device to this region.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Final

from waybill.identity.errors import SignatureFault, SignatureRefused
from waybill.identity.names import PrincipalKind, principal
from waybill.identity.operator_keys import ANY, OperatorKeys, Scope
from waybill.identity.publication_id import drawn_at, is_publication_id
from waybill.identity.registry import DeviceEntry, DeviceState
from waybill.identity.registry_messages import KIND, WARRANT, CheckSigned, DevicePublication
from waybill.identity.registry_publisher import SignEntry
from waybill.identity.signatures import (
    SIGNER,
    OperatorKey,
    Publication,
    checked_reason,
    encoded_signature,
    sign_publication,
    signature_of,
    verify_publication,
)

__all__ = [
    "ENROLMENT_KIND",
    "MAX_WARRANTED_CHANGES",
    "check_by",
    "check_right",
    "scope_of_entry",
    "signed_by",
]

ENROLMENT_KIND: Final = "enrolment"
"""Of what an access daemon's own key may speak for."""
MAX_WARRANTED_CHANGES: Final = 10_000
"""Renewals after what an operator signed: enough for a device's life, and no way to the last version."""
_WARRANT: Final = "waybill warrant 1"
_WARRANT_TEXT: Final = re.compile(r"([0-9a-f]{16}):([0-9a-f-]{36}):([1-9][0-9]{0,15}):([A-Za-z0-9+/]{86}==)")


def signed_by(key: OperatorKey) -> SignEntry:
    """Signs entries with a key."""

    def sign(entry: DeviceEntry, body: bytes, publication_id: str, warrant: str) -> Mapping[str, str]:
        if not warrant and entry.may_connect:
            signature = key.sign(_WARRANT, _warranted(entry, entry.version, publication_id))
            warrant = f"{key.key_id}:{publication_id}:{entry.version}:{encoded_signature(signature)}"
        publication = _publication(entry, body, warrant)
        properties = sign_publication(key, publication, publication_id, _reason(entry))
        return {**properties, WARRANT: warrant} if warrant else properties

    return sign


def check_by(keys: OperatorKeys) -> CheckSigned:
    """Takes what one of these keys signed, and may sign; for the rest it raises SignatureRefused."""

    def check(found: DevicePublication, body: bytes, properties: Mapping[str, str]) -> None:
        entry, signer = found.entry, properties.get(SIGNER, "")
        publication = _publication(entry, body, properties.get(WARRANT, ""))
        verify_publication(keys, publication, properties, scope_of_entry(keys, signer, entry))
        if _is_enroller(keys, signer):
            _check_enroller(keys, signer, entry)
            _check_warrant(keys, found.warrant, entry)

    return check


def check_right(keys: OperatorKeys, signer: str, entry: DeviceEntry, moment: datetime, warrant: str = "") -> None:
    """Raises SignatureRefused if what a key signs of an entry at a moment, beside a warrant, would not be taken."""
    keys.check(signer, scope=scope_of_entry(keys, signer, entry), moment=moment)
    if _is_enroller(keys, signer):
        _check_enroller(keys, signer, entry)
        _check_warrant(keys, warrant, entry)


def _check_enroller(keys: OperatorKeys, signer: str, entry: DeviceEntry) -> None:
    key = keys.keys[signer]
    if key.name != principal(PrincipalKind.ACCESS, entry.region):
        what = f"the key of {key.name} may not speak for devices that {entry.region} enrols"
        raise SignatureRefused(SignatureFault.NO_RIGHT, what)
    if entry.state is not DeviceState.ACTIVE or not entry.certificates or entry.successor is not None:
        what = f"the key of {key.name} may say that a device has a certificate, and nothing else of it"
        raise SignatureRefused(SignatureFault.NO_RIGHT, what)


def _check_warrant(keys: OperatorKeys, warrant: str, entry: DeviceEntry) -> None:
    """Raises SignatureRefused unless an operator gave this device, as the entry has it, to its region."""
    matched = _WARRANT_TEXT.fullmatch(warrant)
    if matched is None:
        raise SignatureRefused(SignatureFault.NO_RIGHT, f"it carries no operator's warrant for {entry.name}")
    signer, publication_id, version, signature = matched[1], matched[2], int(matched[3]), signature_of(matched[4])
    if not (is_publication_id(publication_id) and version < entry.version <= version + MAX_WARRANTED_CHANGES):
        raise SignatureRefused(SignatureFault.NO_RIGHT, f"the warrant that it carries is not of version {version}")
    parts, scope = _warranted(entry, version, publication_id), Scope(KIND, frozenset((entry.tenant,)))
    keys.verify(signer, signature, _WARRANT, parts, scope=scope, moment=drawn_at(publication_id))


def _warranted(entry: DeviceEntry, version: int, publication_id: str) -> list[bytes]:
    claim = "" if entry.claim is None else entry.claim.id
    facts = (entry.name, entry.region, entry.vehicle, entry.predecessor or "", claim, str(version), publication_id)
    return [fact.encode() for fact in facts]


def _publication(entry: DeviceEntry, body: bytes, warrant: str) -> Publication:
    # With its warrant: without it the same entry would be as good to a reader, and of no use to the region that enrols.
    # Where the body ends and the warrant begins is never in doubt: a body is one JSON object.
    return Publication(KIND, entry.name, body + warrant.encode())


def scope_of_entry(keys: OperatorKeys, signer: str, entry: DeviceEntry) -> Scope:
    """What an entry speaks for, if the key of this id published it."""
    # The first device of its vehicle may be of another tenant, who has no say in it any more.
    names = (entry.name, *([] if entry.successor is None else [entry.successor]))
    tenants = frozenset(name.partition("/")[0] for name in names)
    return Scope(ENROLMENT_KIND if _is_enroller(keys, signer) else KIND, tenants)


def _is_enroller(keys: OperatorKeys, signer: str) -> bool:
    key = keys.keys.get(signer)
    return key is not None and ENROLMENT_KIND in key.kinds and not {KIND, ANY} & {*key.kinds}


def _reason(entry: DeviceEntry) -> str:
    # An entry may give none; a signature needs a line.
    return checked_reason(entry.reason or str(entry.state))
