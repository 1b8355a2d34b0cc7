"""The access daemon's own key: what it signs, and whether readers accept that now."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from datetime import datetime

from gateway.config import RegistrySettings
from waybill.identity.confirmations import sign_confirmation
from waybill.identity.errors import SignatureFault, SignatureRefused
from waybill.identity.names import PrincipalKind, principal
from waybill.identity.operator_keys import OperatorKeys, Scope, TrustedKey
from waybill.identity.registry import DeviceEntry
from waybill.identity.registry_messages import (
    ENROLMENT_KIND,
    FollowedOperators,
    SignEntry,
    check_right,
    signed_by,
    unsigned,
)
from waybill.identity.signatures import RANDOM_BITS, next_publication_id, read_operator_key


class AccessKey:
    """The key of a region's daemon, checked against the keys that the daemon itself trusts.

    Where the registry is not signed, it signs nothing. Raises OperatorKeyRefused.
    """

    def __init__(self, registry: RegistrySettings, region: str, operators: FollowedOperators | None) -> None:
        self._region, self._name = region, principal(PrincipalKind.ACCESS, region)
        self._operators = operators
        self._key = None if registry.key is None else read_operator_key(registry.key)

    @property
    def ends(self) -> datetime | None:
        """When the key ends; None: never, or not known here."""
        trusted = self._entry
        return None if trusted is None else trusted.valid_until

    @property
    def sign_entry(self) -> SignEntry:
        return unsigned if self._key is None else signed_by(self._key)

    def sign_confirmation(self, body: bytes, now_ms: int) -> Mapping[str, str]:
        if self._key is None:
            return {}
        publication_id = next_publication_id(None, now_ms, secrets.randbits(RANDOM_BITS))
        return sign_confirmation(self._key, self._region, body, publication_id)

    def check(self, entry: DeviceEntry, warrant: str, now: datetime) -> None:
        """Raise SignatureRefused if no reader would accept this entry, with this warrant, from this key."""
        if self._trusted is not None and self._key is not None:
            check_right(self._trusted, self._key.key_id, entry, now, warrant)

    def problem(self, now: datetime) -> str:
        """Why readers do not accept what the key signs now; "" while they do."""
        if self._trusted is None or self._key is None:
            return ""
        try:
            key = self._trusted.check(self._key.key_id, scope=Scope(ENROLMENT_KIND), moment=now)
            if key.name != self._name:
                raise SignatureRefused(SignatureFault.NO_RIGHT, f"it is that of {key.name}, and not of {self._name}")
        except SignatureRefused as refused:
            make = f"waybill push key {self._name} --tenant '*' --kind enrolment"
            return f"the daemon's own key: {refused}; make one by `{make}`"
        return ""

    @property
    def _trusted(self) -> OperatorKeys | None:
        return None if self._operators is None else self._operators.keys

    @property
    def _entry(self) -> TrustedKey | None:
        return None if self._trusted is None or self._key is None else self._trusted.keys.get(self._key.key_id)
