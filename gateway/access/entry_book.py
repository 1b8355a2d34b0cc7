"""The entries of a region's devices, for whoever enrols them: by name and by claim. Bytes are kept, not objects."""

from __future__ import annotations

import threading

from identity.registry import DeviceEntry
from identity.registry_messages import entry_body

__all__ = ["EntryBook"]


class EntryBook:
    """What holds of each device that this region enrols and renews. One thread takes, any may look.

    An entry is kept as it is published, half a kilobyte, and made an object again when it is asked for.
    """

    def __init__(self, region: str) -> None:
        self._region = region
        self._lock = threading.Lock()
        self._bodies: dict[str, bytes] = {}
        self._claims: dict[str, str] = {}
        self._claim_of: dict[str, str] = {}

    def __len__(self) -> int:
        return len(self._bodies)

    def take(self, entry: DeviceEntry) -> None:
        """An entry that holds from now on."""
        with self._lock:
            self._forget_claim(entry.name)
            # Of a device of another region nothing is asked here but why its claim is refused.
            if entry.region != self._region and entry.claim is None:
                self._bodies.pop(entry.name, None)
                return
            self._bodies[entry.name] = entry_body(entry)
            if entry.claim is not None:
                self._claims[entry.claim.id] = entry.name
                self._claim_of[entry.name] = entry.claim.id

    def device(self, name: str) -> DeviceEntry | None:
        """The entry of `tenant/device`."""
        body = self._bodies.get(name)
        return None if body is None else DeviceEntry.model_validate_json(body)

    def with_claim(self, claim_id: str) -> DeviceEntry | None:
        """The entry that is to be enrolled, or was, with this claim."""
        name = self._claims.get(claim_id)
        return None if name is None else self.device(name)

    def tokens(self) -> list[DeviceEntry]:
        """The entries with a one-time token."""
        with self._lock:
            names = list(self._claim_of)
        found = (self.device(name) for name in names)
        return [one for one in found if one is not None and one.claim is not None and one.claim.is_token]

    def _forget_claim(self, name: str) -> None:
        claim_id = self._claim_of.pop(name, None)
        # A claim may have gone to another device in the meantime.
        if claim_id is not None and self._claims.get(claim_id) == name:
            del self._claims[claim_id]
