"""A registry in memory, as a session of `waybill device` that publishes nothing."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Self

from tests.identity.registry_strategies import active
from tests.identity.test_registry_signing import ANNA, BOTH, KEYS, signed
from waybill.identity.errors import SignatureRefused
from waybill.identity.operator_keys import OperatorKeys
from waybill.identity.registry import DeviceEntry
from waybill.identity.registry_messages import DevicePublication, check_by, read_entry
from waybill.identity.registry_session import RegistrySession

# The entries say that anna changed them.
MESSAGES = [signed(active(device="bus-1"), ANNA), signed(active(device="bus-2"), BOTH)]


class InMemory:
    """A session whose registry has these messages; without keys signatures are not looked at."""

    trusted: OperatorKeys | None = KEYS
    unconfirmed: Mapping[str, str] | None = MappingProxyType({})
    signed_by = RegistrySession.signed_by

    def __init__(self, *_: object, **__: object) -> None:
        self._trusted = self.trusted

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    operator = "anna"

    def publish(self, *_: object) -> object:
        raise AssertionError("nothing is published of what is refused")

    def publications(self) -> list[DevicePublication]:
        check = None if self._trusted is None else check_by(self._trusted)
        return [read_entry(*message, check) for message in MESSAGES]

    def not_confirmed(self, _: object) -> Mapping[str, str] | None:
        return self.unconfirmed

    def publication(self, name: str) -> DevicePublication | None:
        return next((one for one in self.publications() if one.entry.name == name), None)

    def get(self, name: str) -> object:
        found = self.publication(name)
        return found and found.entry

    def refusal(self, _: DeviceEntry) -> SignatureRefused | None:
        return None

    def not_taken(self, _: str) -> str:
        return ""

    def nearest(self, _: str) -> str:
        return "acme/bus-2"

    def history(self, name: str) -> list[tuple[DevicePublication, bool]]:
        return [(one, False) for one in self.publications() if one.entry.name == name]
