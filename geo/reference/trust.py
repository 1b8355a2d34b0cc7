"""Who may publish reference data to the centre: what a publication speaks for, and whose signature it needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from waybill.identity.errors import SignatureFault, SignatureRefused
from waybill.identity.operator_keys import OperatorKeys, Scope
from waybill.identity.signatures import REASON, SIGNATURE, SIGNER, Publication, verify_publication

_MAX_SHOWN_REASON: Final = 500


class Provenance(NamedTuple):
    """Who published something and why: columns of REFERENCE. Without a signature it is only said, and by nobody."""

    signer: str | None
    published_by: str | None
    reason: str | None
    signature: str | None


@dataclass(frozen=True, slots=True)
class ReferenceTrust:
    """The keys that the centre trusts; None: whatever comes is taken, which has to be said explicitly."""

    keys: OperatorKeys | None

    def judged(self, publication: Publication, body: Mapping[str, Any], properties: Mapping[str, str]) -> Provenance:
        """Who published this. Raises SignatureRefused for what is unsigned, altered, or not theirs to publish."""
        if self.keys is None:
            reason = properties.get(REASON)
            return Provenance(None, None, reason and reason[:_MAX_SHOWN_REASON], None)
        scope = scope_of(publication.kind, body)
        found = verify_publication(self.keys, publication, properties, scope)
        return Provenance(found.signer, found.name, found.reason, properties[SIGNATURE])

    def signature_state(self, publication: Publication, body: Mapping[str, Any], properties: Mapping[str, str]) -> str:
        """What can be said of a signature now: `signed`, `not checked` without keys, or the word of what is wrong."""
        if not properties.get(SIGNER):
            return SignatureFault.UNSIGNED
        if self.keys is None:
            return "not checked"
        try:
            self.judged(publication, body, properties)
        except SignatureRefused as refused:
            return refused.fault
        return "signed"


ANYBODY: Final = ReferenceTrust(None)
"""Takes what is not signed."""


def scope_of(kind: str, body: Mapping[str, Any]) -> Scope:
    """What a publication speaks for: of an account its tenants, itself and its parent, of an alert rule its account;
    all else concerns every tenant.

    A fence counts for the vehicles of every tenant, and a tariff for whoever refers to it.
    """
    if kind == "alert_rule":
        name = body.get("id")
        # of which account it is, its id says, which nobody else can take
        return Scope(kind, accounts=frozenset({name.partition("/")[0] if isinstance(name, str) else ""}))
    devices = body.get("devices", [])
    if kind != "account" or not isinstance(devices, list):
        return Scope(kind, is_shared=True)
    # not a set yet: whoever sends it decides what stands there, and a list has no hash
    tenants = [one.get("tenant") if isinstance(one, dict) else None for one in devices]
    accounts = [body.get("id"), *([] if body.get("parent") is None else [body["parent"]])]
    if not all(isinstance(name, str) for name in (*tenants, *accounts)):
        return Scope(kind, is_shared=True)
    return Scope(kind, frozenset(map(str, tenants)), frozenset(map(str, accounts)))
