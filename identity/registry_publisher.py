"""Publishing entries of the device registry: each gets its place in the order of publications here."""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Final, Self

from identity.cluster_refusal import refusal_text
from identity.errors import IdentityError
from identity.publication_id import PROPERTY, RANDOM_BITS, is_far_ahead, next_publication_id
from identity.registry import DeviceEntry
from identity.registry_messages import DEVICES_TOPIC, entry_body
from runtime.pulsar_client import PulsarAccess, PulsarAccessError, access_refusal, open_pulsar_client

__all__ = ["PublicationUnknown", "RegistryPublisher", "RegistryRefused", "RegistryUnreachable", "SignEntry", "unsigned"]

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


class PublicationUnknown(RegistryUnreachable):
    """An entry was sent, and no answer came: it may be published."""


class RegistryPublisher:
    """Publishes to one cluster, from which it is replicated to all. `newest`: the id after which the next one comes."""

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
        self._producer: Any = None
        self.newest: str | None = None

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
        is_sent = False
        try:
            # At the first use: a command that is refused connects to nobody.
            if self._producer is None:
                self._client = open_pulsar_client(self._service_url, self._access, timeout_s=_TIMEOUT_S)
                self._producer = self._client.create_producer(DEVICES_TOPIC)
            is_sent = True
            self._producer.send(body, partition_key=entry.name, properties=properties)
        except (pulsar.PulsarException, PulsarAccessError, ValueError, RuntimeError) as error:
            # The next one begins anew: a client that got no producer would be left behind.
            self.close()
            if refusal := access_refusal(error):
                why = refusal_text(refusal, str(error), self._access, DEVICES_TOPIC, "produce")
                raise RegistryRefused(f"{entry.name} is not published at {self._service_url}: {why}") from error
            if is_sent:
                unknown = f"whether {entry.name} is published at {self._service_url} is not known: {error}"
                raise PublicationUnknown(unknown) from error
            raise RegistryUnreachable(f"{entry.name} is not published at {self._service_url}: {error}") from error
        return publication_id

    def close(self) -> None:
        """Close the connection."""
        import pulsar  # noqa: PLC0415

        client, self._client, self._producer = self._client, None, None
        if client is not None:
            with contextlib.suppress(pulsar.PulsarException):
                client.close()
