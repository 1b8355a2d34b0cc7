"""Entries that a daemon took once and keeps, judged again: by their rank, and by the keys that are trusted now.

What was taken once is right for good but for the key that signed it, which may be trusted no more, or not yet again.
Then it is in doubt until somebody decides: nothing of lower rank takes its place meanwhile, and whom it locks out stays
so.
"""

from __future__ import annotations

import math
import threading
from typing import Final, NamedTuple

from waybill.identity.errors import SignatureFault
from waybill.identity.registry import DeviceState, Precedence
from waybill.identity.registry_messages import CheckSigned, DevicePublication, EntryRefused, read_entry
from waybill.pulsar.compacted_topic import TopicMessage

IN_DOUBT: Final = frozenset(
    {SignatureFault.UNSIGNED, SignatureFault.UNKNOWN_KEY, SignatureFault.NOT_VALID_THEN, SignatureFault.NO_RIGHT}
)
"""What is found to be wrong with a signature by other keys than those of the day on which it was taken."""


class KeptEntry(NamedTuple):
    """An entry that was taken once. `doubt`: why nobody would take it by today's keys; "" if it is taken."""

    publication: DevicePublication
    doubt: str = ""


def judge_kept(message: TopicMessage, check_signed: CheckSigned | None) -> KeptEntry:
    """What a message says that was taken once. Our clock is asked no more. Raises EntryRefused for a damaged one."""
    try:
        return KeptEntry(_read(message, check_signed))
    except EntryRefused as refused:
        if refused.reason not in IN_DOUBT:
            raise
        return KeptEntry(_read(message, None), refused.reason)


def rank_of(message: TopicMessage) -> Precedence | None:
    """The rank of a message that was taken once; None: it is damaged."""
    try:
        return _read(message, None).precedence
    except EntryRefused:
        return None


def _read(message: TopicMessage, check_signed: CheckSigned | None) -> DevicePublication:
    return read_entry(message.key, message.body, message.properties, math.inf, check_signed)


class DoubtfulEntries:
    """Devices of which what was taken once is trusted by no key of today. One thread notes, any may ask."""

    def __init__(self) -> None:
        self._found: dict[str, tuple[DeviceState, str]] = {}
        self._lock = threading.Lock()

    def put(self, kept: KeptEntry) -> None:
        """What was found of a device last."""
        entry = kept.publication.entry
        with self._lock:
            if kept.doubt:
                self._found[entry.name] = entry.state, kept.doubt
            else:
                self._found.pop(entry.name, None)

    def settle(self, name: str) -> None:
        """Of this device something holds that is trusted."""
        with self._lock:
            self._found.pop(name, None)

    def names(self) -> list[str]:
        """The devices."""
        with self._lock:
            return [*self._found]

    def __contains__(self, name: str) -> bool:
        return name in self._found

    @property
    def problem(self) -> str:
        """Which device it is, and what can be done; "" if there is none."""
        with self._lock:
            if not self._found:
                return ""
            name, (state, doubt) = next(iter(self._found.items()))
            others = len(self._found) - 1
        more = f", and {others} more devices" if others else ""
        return (
            f"registry: {name} was {state} by a key that is not trusted now ({doubt}){more}: no older entry takes its "
            "place, and who was locked out stays so; trust the key again, have it signed anew (`waybill device sign`), "
            "or give it up (`fleet-gateway access forget`)"
        )
