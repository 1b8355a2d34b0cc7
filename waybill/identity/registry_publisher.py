"""Publishing entries of the device registry: each gets its place in the order of publications here."""

from __future__ import annotations

import secrets
import time
from collections import Counter
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Final, Self

from waybill.identity.cluster_refusal import refusal_text
from waybill.identity.errors import IdentityError
from waybill.identity.publication_id import PROPERTY, RANDOM_BITS, is_far_ahead, next_publication_id
from waybill.identity.registry import DeviceEntry
from waybill.identity.registry_messages import devices_topic, entry_body
from waybill.pulsar.pulsar_client import (
    AccessRefusal,
    PulsarAccess,
    PulsarAccessError,
    access_refusal,
    close_quietly,
    connected_producer,
    open_pulsar_client,
)

__all__ = [
    "ClockRefused",
    "PublicationUnknown",
    "RegistryPublisher",
    "RegistryRefused",
    "RegistryUnreachable",
    "SignEntry",
    "unsigned",
]

_TIMEOUT_S: Final = 10

SignEntry = Callable[[DeviceEntry, bytes, str, str], Mapping[str, str]]
"""The properties by which an entry, its body, its publication id and its warrant ("": its own) are signed."""


def unsigned(_: DeviceEntry, __: bytes, ___: str, ____: str) -> Mapping[str, str]:
    """Signs nothing: for a registry whose readers take what nobody signed."""
    return {}


class RegistryUnreachable(IdentityError):
    """No cluster takes or gives the registry now."""


class RegistryRefused(RegistryUnreachable):
    """A cluster does not let us read or change the registry, and waiting does not help."""


class ClockRefused(IdentityError):
    """This machine's clock is far from the cluster's: what it publishes would come in the wrong order."""


class PublicationUnknown(RegistryUnreachable):
    """An entry was sent, and no answer came: it may be published."""


class RegistryPublisher:
    """Publishes to one cluster, from which it is replicated to all: each entry to the topic of its tenant.

    `newest`: the id after which the next one comes. `topics_held`: how often another producer had a topic for itself.
    """

    def __init__(
        self,
        service_url: str,
        access: PulsarAccess,
        *,
        sign: SignEntry = unsigned,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._service_url, self._access, self._sign, self._clock = service_url, access, sign, clock
        self._client: Any = None
        self._producers: dict[str, Any] = {}
        self.newest: str | None = None
        self.topics_held: Counter[str] = Counter()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None) -> None:
        self.close()

    def publish(self, entry: DeviceEntry, warrant: str = "") -> str:
        """Publishes an entry, and returns its publication id once it is persisted.

        Raises RegistryUnreachable where it was not sent, PublicationUnknown where it was, and RegistryRefused.

        `warrant`: of an operator, beside the signature of who has no right of its own.
        """
        import pulsar  # noqa: PLC0415 - an agent is installed without it

        # Drawn before it is sent: what was sent and not answered is published under the same order again.
        now_ms = round(self._clock() * 1000)
        # A clock that was ahead once must not date for ever what comes after it.
        newest = None if self.newest is not None and is_far_ahead(self.newest, now_ms) else self.newest
        self.newest = publication_id = next_publication_id(newest, now_ms, secrets.randbits(RANDOM_BITS))
        body = entry_body(entry)
        properties = {PROPERTY: publication_id, **self._sign(entry, body, publication_id, warrant)}
        is_sent, topic = False, devices_topic(entry.tenant)
        try:
            producer = self._producer(topic)
            is_sent = True
            producer.send(body, partition_key=entry.name, properties=properties)
        except (pulsar.PulsarException, PulsarAccessError, ValueError, RuntimeError) as error:
            # The next one begins anew: a client that got no producer would be left behind.
            self.close()
            if refusal := access_refusal(error):
                self.topics_held[topic] += refusal is AccessRefusal.HELD
                why = refusal_text(refusal, str(error), self._access, topic, "produce")
                raise RegistryRefused(f"{entry.name} is not published at {self._service_url}: {why}") from error
            if is_sent:
                unknown = f"whether {entry.name} is published at {self._service_url} is not known: {error}"
                raise PublicationUnknown(unknown) from error
            raise RegistryUnreachable(f"{entry.name} is not published at {self._service_url}: {error}") from error
        return publication_id

    def close(self) -> None:
        """Close the connection."""
        client, self._client, self._producers = self._client, None, {}
        close_quietly(client)

    def _producer(self, topic: str) -> Any:
        # At the first use: a command that is refused connects to nobody.
        if self._client is None:
            self._client = open_pulsar_client(self._service_url, self._access, timeout_s=_TIMEOUT_S)
        found = connected_producer(self._client, topic, self._producers.get(topic), _TIMEOUT_S)
        self._producers[topic] = found
        return found
