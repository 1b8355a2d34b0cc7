"""Batches of tenants that asked for it leave sealed: Pulsar and its operators hold what they cannot read."""

from __future__ import annotations

from dataclasses import replace

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from gateway.config import GatewaySettings
from gateway.engine import Produce
from waybill.identity.sealing import Sealer, read_public_key


class Sealing:
    """One sealer for each tenant that has a `sealing_key`. Raises SealingKeyError."""

    def __init__(self, settings: GatewaySettings) -> None:
        self._of = {
            # Kept nowhere else: after this process only the tenant can open what it sealed.
            tenant: Sealer(read_public_key(one.sealing_key), X25519PrivateKey.generate(), tenant, settings.region)
            for tenant, one in settings.tenants.items()
            if one.sealing_key is not None
        }

    def sealed(self, effect: Produce) -> Produce:
        """The message as it is to leave: a batch or a dead letter of such a tenant is sealed, all else is as it was."""
        sealer = self._of.get(effect.properties["tenant"])
        return effect if sealer is None else replace(effect, payload=sealer.seal(effect.payload))
