"""One change of several devices: the entries to publish, and why some are refused."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from identity.command_session import known_entry
from identity.errors import IdentityError
from identity.registry import ChangeRefused, DeviceEntry
from identity.registry_session import RegistrySession

__all__ = ["changed_devices"]


def changed_devices(
    session: RegistrySession, names: Iterable[str], changed: Callable[[DeviceEntry], DeviceEntry]
) -> tuple[list[DeviceEntry], dict[str, IdentityError]]:
    """What is to be published, in the order of the names; by name what is refused, by its entry or for want of a right.

    `changed` raises ChangeRefused.
    """
    entries, refused = list[DeviceEntry](), dict[str, IdentityError]()
    for name in names:
        try:
            entry = changed(known_entry(session, name))
        except ChangeRefused as why:
            refused[name] = why
            continue
        # Here and not at the publication: one device of another tenant is no reason to leave a stolen one in.
        if no_right := session.refusal(entry):
            refused[name] = no_right
        else:
            entries.append(entry)
    return entries, refused
