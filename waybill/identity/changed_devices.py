"""One change of several devices: the entries to publish, and why some are refused."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from waybill.identity.command_session import known_entry
from waybill.identity.errors import IdentityError
from waybill.identity.registry import ChangeRefused, DeviceChange, DeviceEntry
from waybill.identity.registry_session import RegistrySession
from waybill.identity.standing_change import AsItIs

_MAX_LOOKS: Final = 20


def changed_devices(
    session: RegistrySession, names: Iterable[str], changed: Callable[[DeviceEntry], DeviceEntry]
) -> tuple[list[DeviceEntry], dict[str, IdentityError]]:
    """What is to be published, in the order of the names; by name what is refused, by its entry or for want of a right.

    `changed` raises ChangeRefused.
    """
    entries, refused = list[DeviceEntry](), dict[str, IdentityError]()
    for name in names:
        try:
            # To look for the nearest names of thousands would take minutes.
            entry = changed(known_entry(session, name, looks=len(refused) < _MAX_LOOKS))
        except ChangeRefused as why:
            refused[name] = why
            continue
        # Here and not at the publication: one device of another tenant is no reason to leave a stolen one in.
        if no_right := session.refusal(entry):
            refused[name] = no_right
        else:
            entries.append(entry)
    return entries, refused


class OneChange(NamedTuple):
    """The same change of each device at its turn; `state`: which it is in then, where that locks out, else ""."""

    change: DeviceChange
    changed: Callable[[DeviceEntry, DeviceChange], DeviceEntry]
    state: str

    def is_so(self, _: str, held: DeviceEntry) -> bool:
        """Whether a device is in that state, whoever put it there."""
        return held.state == self.state

    def entry(self, name: str, held: DeviceEntry | None) -> DeviceEntry:
        """The entry of a device of which the registry has `held` now. Raises ChangeRefused, AsItIs."""
        assert held is not None, "nothing takes a device out of the registry"
        if self.is_so(name, held):
            raise AsItIs(name)
        return self.changed(held, self.change)
