"""Signatures of registry entries: whose signature a publication of a device needs, and how one is signed.

An operator's key speaks for a device if it may for kind `device` and for every tenant that the entry names: its own,
and that of its successor. So a move needs a right for both.

An access daemon's key may for kind `enrolment` alone. It speaks for what enrolment and renewal make of the devices of
its region, and for nothing else: nobody is locked out, moved, replaced or expected by it.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Final

from identity.errors import SignatureFault, SignatureRefused
from identity.names import PrincipalKind, principal
from identity.operator_files import read_operator_key
from identity.operator_keys import ANY, OperatorKeys, Scope
from identity.registry import DeviceEntry, DeviceState
from identity.registry_messages import KIND, CheckSigned, DevicePublication
from identity.registry_publisher import SignEntry, unsigned
from identity.signatures import SIGNER, OperatorKey, Publication, checked_reason, sign_publication, verify_publication

__all__ = ["ENROLMENT_KIND", "check_by", "check_right", "entries_signed_by", "scope_of_entry", "signed_by"]

ENROLMENT_KIND: Final = "enrolment"
"""Of what an access daemon's own key may speak for."""


def signed_by(key: OperatorKey) -> SignEntry:
    """Signs entries with a key."""

    def sign(entry: DeviceEntry, body: bytes, publication_id: str) -> Mapping[str, str]:
        return sign_publication(key, Publication(KIND, entry.name, body), publication_id, _reason(entry))

    return sign


def entries_signed_by(key_file: Path | None) -> SignEntry:
    """Signs entries with the key of a file; None: nothing is signed. Raises OperatorKeyRefused."""
    return unsigned if key_file is None else signed_by(read_operator_key(key_file))


def check_by(keys: OperatorKeys) -> CheckSigned:
    """Takes what one of these keys signed, and may sign; for the rest it raises SignatureRefused."""

    def check(found: DevicePublication, body: bytes, properties: Mapping[str, str]) -> None:
        entry, signer = found.entry, properties.get(SIGNER, "")
        publication = Publication(KIND, entry.name, body)
        verify_publication(keys, publication, properties, scope_of_entry(keys, signer, entry))
        _check_enroller(keys, signer, entry)

    return check


def check_right(keys: OperatorKeys, signer: str, entry: DeviceEntry, moment: datetime) -> None:
    """Raises SignatureRefused if what a key signs of an entry at a moment would not be taken."""
    keys.check(signer, scope=scope_of_entry(keys, signer, entry), moment=moment)
    _check_enroller(keys, signer, entry)


def _check_enroller(keys: OperatorKeys, signer: str, entry: DeviceEntry) -> None:
    if not _is_enroller(keys, signer):
        return
    key = keys.keys[signer]
    if key.name != principal(PrincipalKind.ACCESS, entry.region):
        what = f"the key of {key.name} may not speak for devices that {entry.region} enrols"
        raise SignatureRefused(SignatureFault.NO_RIGHT, what)
    if entry.state is not DeviceState.ACTIVE or not entry.certificates or entry.successor is not None:
        what = f"the key of {key.name} may say that a device has a certificate, and nothing else of it"
        raise SignatureRefused(SignatureFault.NO_RIGHT, what)


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
