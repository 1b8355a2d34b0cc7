"""The entries of a region's devices, for whoever enrols them. Bytes are kept, not objects.

By name alone: who asks says which device it is. Whoever else names the same claim changes nothing for that device.
"""

from __future__ import annotations

import threading

from identity.registry import DeviceEntry
from identity.registry_messages import entry_body

__all__ = ["EntryBook"]

_MAX_NAMED_BY = 8


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
        self._claims: dict[str, tuple[str, ...]] = {}
        self._claim_of: dict[str, str] = {}
        self._with_token: set[str] = set()

    def __len__(self) -> int:
        return len(self._bodies)

    def take(self, entry: DeviceEntry, warrant: str = "") -> None:
        """An entry that holds from now on; `warrant`: the operator's word for what this region may say of it."""
        name = entry.name
        with self._lock:
            for known in (self._bodies, self._warrants, self._successors):
                known.pop(name, None)
            self._with_token.discard(name)
            self._forget_claim(name)
            # Of any region: a successor of ours may come from there.
            if entry.successor is not None:
                self._successors[name] = entry.successor
            # Of a device of another region nothing else is asked here but why its claim is refused.
            if entry.region == self._region or entry.claim is not None:
                self._bodies[name] = entry_body(entry)
                self._warrants[name] = warrant
            if entry.claim is not None:
                self._claim_of[name] = entry.claim.id
                others = self._claims.get(entry.claim.id, ())
                # Bounded: who publishes entries may name one claim in all of his own.
                if len(others) < _MAX_NAMED_BY:
                    self._claims[entry.claim.id] = (*others, name)
                if entry.claim.is_token:
                    self._with_token.add(name)

    def device(self, name: str) -> DeviceEntry | None:
        """The entry of `tenant/device`."""
        body = self._bodies.get(name)
        return None if body is None else DeviceEntry.model_validate_json(body)

    def claimed_by(self, claim_id: str) -> tuple[str, ...]:
        """Devices whose entries name this claim, a few; it is good for each that asks by its own name."""
        return self._claims.get(claim_id, ())

    def warrant(self, name: str) -> str:
        """The operator's word for a device of this region; "" if there is none."""
        return self._warrants.get(name, "")

    def successor(self, name: str) -> str | None:
        """In whose favour a device has ended; None: it has not."""
        return self._successors.get(name)

    def tokens(self) -> list[DeviceEntry]:
        """The entries with a one-time token."""
        with self._lock:
            names = list(self._with_token)
        found = (self.device(name) for name in names)
        return [one for one in found if one is not None]

    def _forget_claim(self, name: str) -> None:
        claim_id = self._claim_of.pop(name, None)
        if claim_id is None:
            return
        if others := tuple(one for one in self._claims.pop(claim_id, ()) if one != name):
            self._claims[claim_id] = others
