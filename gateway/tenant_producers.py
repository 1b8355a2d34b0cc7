"""One connection to Pulsar for each tenant, so that what Pulsar holds back of one tenant holds back no other's.

A broker that slows a producer down, or blocks it because of a quota, does so to its whole connection. A tenant whose
topics are missing, or full, is tried again by itself; the others are served meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from gateway.config import GatewaySettings
from gateway.engine import Produce
from gateway.errors import PulsarUnreachable
from gateway.pulsar_producer import InBackground, NewClient, PulsarProducer, Receipt
from waybill.daemon.backoff import Backoff
from waybill.identity.sealing import Sealer, read_public_key

# Batches of tenants that asked for it leave sealed: Pulsar and its operators hold what they cannot read.


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


_MAX_TEXT = 500


class Opened(NamedTuple):
    """How an attempt at the topics of a Pulsar tenant ended; `error`: None where there are producers now."""

    tenant: str
    error: PulsarUnreachable | None


class _Serving:
    """One tenant's producers, when they are tried again, and why there are none; empty while there are."""

    def __init__(self, producer: PulsarProducer, backoff: Backoff, open_at_s: float) -> None:
        self.producer, self.backoff, self.open_at_s = producer, backoff, open_at_s
        self.problem = "not opened yet"


class TenantProducers:
    """The producers of all tenants that are served. `random` gives numbers from 0 to 1. Raises SealingKeyError."""

    def __init__(
        self,
        settings: GatewaySettings,
        wake: Callable[[], None],
        client: NewClient,
        in_background: InBackground,
        *,
        random: Callable[[], float],
        now_s: float,
    ) -> None:
        pulsar = settings.pulsar
        self._shared = pulsar.tenant
        self._sealing = Sealing(settings)
        self._of = {
            tenant: _Serving(
                PulsarProducer(settings, wake, client, in_background, pulsar_tenant=tenant),
                Backoff(pulsar.backoff_first_s, pulsar.backoff_max_s, random),
                now_s,
            )
            for tenant in settings.pulsar_tenants
        }

    @property
    def is_open(self) -> bool:
        """Whether any tenant has producers."""
        return any(one.producer.is_open for one in self._of.values())

    @property
    def connected(self) -> frozenset[str]:
        """The Pulsar tenants whose producers of batches have a connection at this moment."""
        return frozenset(tenant for tenant, one in self._of.items() if one.producer.is_connected)

    @property
    def is_connected(self) -> bool:
        """Whether any tenant can be served at this moment."""
        return any(one.producer.is_connected for one in self._of.values())

    @property
    def problem(self) -> str:
        """Which tenants are not served, and why of the first; empty while all are."""
        unserved = {tenant: one for tenant, one in self._of.items() if not one.producer.is_connected}
        if not unserved:
            return ""
        why = next(iter(unserved.values())).problem or "no connection"
        return f"Pulsar takes nothing of {', '.join(unserved)}: {why}"[:_MAX_TEXT]

    def open_due(self, now_s: float) -> None:
        """Begin to open what is not open and due."""
        for one in self._of.values():
            if not one.producer.is_open and not one.producer.is_opening and now_s >= one.open_at_s:
                one.producer.start_opening()

    def finish_opening(self, clock: Callable[[], float]) -> list[Opened]:
        """Take over what the attempts brought that have ended. `clock`: an attempt may have taken its whole time."""
        ended = []
        for tenant, one in self._of.items():
            try:
                if not one.producer.try_finish_opening():
                    continue
            except PulsarUnreachable as error:
                one.problem = str(error)
                one.open_at_s = clock() + one.backoff.take_delay_s()
                ended.append(Opened(tenant, error))
            else:
                one.problem = ""
                one.backoff.reset()
                ended.append(Opened(tenant, None))
        return ended

    def is_open_for(self, tenant: str) -> bool:
        """Whether the batches of a tenant can be sent."""
        return self._of[self._shared or tenant].producer.is_open

    def send(self, effect: Produce) -> None:
        """Take a message for its tenant's client; its receipt comes by `take_receipts`."""
        self._of[self._shared or effect.properties["tenant"]].producer.send(self._sealing.sealed(effect))

    @property
    def next_due_s(self) -> float | None:
        """When a group of messages is to leave at the latest; None while there is none."""
        due = (one.producer.next_due_s for one in self._of.values())
        return min((at_s for at_s in due if at_s is not None), default=None)

    def flush_due(self, now_s: float) -> None:
        """Let go the groups that are due."""
        for one in self._of.values():
            one.producer.flush_due(now_s)

    def take_receipts(self) -> list[Receipt]:
        """The receipts that came since the last call, of all tenants."""
        return [receipt for one in self._of.values() for receipt in one.producer.take_receipts()]

    def close(self, timeout_s: float) -> None:
        """Close all clients; whatever takes longer is left to the end of the process."""
        for one in self._of.values():
            one.producer.close(timeout_s / len(self._of))
