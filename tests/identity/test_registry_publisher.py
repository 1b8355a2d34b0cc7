"""Publishing an entry: what is surely not published, and of what nobody knows."""

from __future__ import annotations

from typing import Any

import pulsar
import pytest

from identity import registry_publisher
from identity.registry_publisher import PublicationUnknown, RegistryPublisher, RegistryUnreachable
from runtime.pulsar_client import PulsarAccess
from tests.identity.registry_strategies import active


class Client:
    """A cluster that gives no producer, or that answers nothing that is sent."""

    def __init__(self, *, has_producer: bool) -> None:
        self._has_producer = has_producer

    def create_producer(self, _: str) -> Client:
        if not self._has_producer:
            raise pulsar.ConnectError("no way")
        return self

    def send(self, *_: object, **__: object) -> None:
        raise pulsar.Timeout("no answer")

    def close(self) -> None: ...


@pytest.mark.parametrize("has_producer", [True, False])
def test_what_was_sent_and_not_answered_may_be_published_and_what_was_not_sent_is_not(
    monkeypatch: pytest.MonkeyPatch, *, has_producer: bool
) -> None:
    def opened(*_: Any, **__: Any) -> Client:
        return Client(has_producer=has_producer)

    monkeypatch.setattr(registry_publisher, "open_pulsar_client", opened)
    with RegistryPublisher("pulsar://nowhere", PulsarAccess()) as publisher, pytest.raises(RegistryUnreachable) as lost:
        publisher.publish(active())
    said = "whether acme/bus-1 is published" if has_producer else "acme/bus-1 is not published"
    assert (isinstance(lost.value, PublicationUnknown), str(lost.value).startswith(said)) == (has_producer, True)
