"""Publications of the registry that a region does not take, until it has said so to whoever waits for it."""

from __future__ import annotations

import threading
from typing import Final

from waybill.identity.errors import SignatureFault
from waybill.identity.registry_messages import AHEAD, NO_ROOM

__all__ = ["RefusedEntries"]

# whoever may write to the topic could name any number
MAX_OF_A_RANK: Final = 1000
# Nobody can forge these: the signature was found to be right, by a key that is trusted here.
_SIGNED: Final = frozenset({SignatureFault.NO_RIGHT, SignatureFault.NOT_VALID_THEN, NO_ROOM})
# What a command hears whose key is not known here yet, or whose clock is wrong; a stranger may make it too.
_ARGUABLE: Final = frozenset({SignatureFault.UNKNOWN_KEY, AHEAD})


class RefusedEntries:
    """By their ids, with the reason; any thread may call.

    A flood of messages that anybody can make takes no room from one that a trusted key signed. What finds none is
    counted: `dropped`.
    """

    def __init__(self) -> None:
        self._ranks: tuple[dict[str, str], ...] = ({}, {}, {})
        self._lock = threading.Lock()
        self.dropped = 0

    def __bool__(self) -> bool:
        return any(self._ranks)

    def add(self, publication_id: str, reason: str) -> None:
        """One more."""
        with self._lock:
            rank = self._ranks[0 if reason in _SIGNED else 1 if reason in _ARGUABLE else 2]
            if publication_id in rank or len(rank) < MAX_OF_A_RANK:
                rank[publication_id] = reason
            else:
                self.dropped += 1

    def take(self) -> dict[str, str]:
        """All of them, and none is left; of two reasons for one id the one that is harder to forge."""
        with self._lock:
            found = {key: reason for rank in reversed(self._ranks) for key, reason in rank.items()}
            for rank in self._ranks:
                rank.clear()
            return found
