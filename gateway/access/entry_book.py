"""The entries of a region's devices, for whoever enrols them. Bytes are kept, not objects.

By name alone: who asks says which device it is. Whoever else names the same claim changes nothing for that device.
"""

from __future__ import annotations

import threading

from waybill.identity.registry import DeviceEntry
from waybill.identity.registry_messages import entry_body

__all__ = ["EntryBook"]


class EntryBook:
    """What holds of each device that this region enrols and renews. One thread takes, any may look.

    An entry is kept as it is published, half a kilobyte, and made an object again when it is asked for.
    """

    def __init__(self, region: str) -> None:
        self._region = region
        self._lock = threading.Lock()
        self._bodies: dict[str, bytes] = {}
        self._warrants: dict[str, str] = {}
        self._successors: dict[str, str] = {}

    def __len__(self) -> int:
        return len(self._bodies)

    def take(self, entry: DeviceEntry, warrant: str = "") -> None:
        """An entry that holds from now on; `warrant`: the operator's word for what this region may say of it."""
        name = entry.name
        with self._lock:
            for known in (self._bodies, self._warrants, self._successors):
                known.pop(name, None)
            # Of any region: a successor of ours may come from there.
            if entry.successor is not None:
                self._successors[name] = entry.successor
            # Of a device of another region nothing else is asked here but why its claim is refused.
            if entry.region == self._region or entry.claim is not None:
                self._bodies[name] = entry_body(entry)
                self._warrants[name] = warrant

    def device(self, name: str) -> DeviceEntry | None:
        """The entry of `tenant/device`."""
        body = self._bodies.get(name)
        return None if body is None else DeviceEntry.model_validate_json(body)

    def warrant(self, name: str) -> str:
        """The operator's word for a device of this region; "" if there is none."""
        return self._warrants.get(name, "")

    def successor(self, name: str) -> str | None:
        """In whose favour a device has ended; None: it has not."""
        return self._successors.get(name)
