"""What holds of each device, as it was published: kept, and published again where another message came after it."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping
from typing import Any

import structlog

from gateway.access.displaced import OUTRANKED, Displaced
from gateway.access.seen_entries import SeenEntries, SeenUnreadable
from identity.precedence import Precedence
from identity.registry_messages import ENTRY_PROPERTIES, CheckSigned, DevicePublication, EntryRefused, read_entry
from identity.registry_reader import BecameOfMessage, DeviceRegistry, Outranked, Taken
from runtime.compacted_topic import TopicMessage

__all__ = ["HeldEntries"]

_LOG = structlog.get_logger("access")


class HeldEntries:
    """What the registry in memory holds, as messages on disk. Its reader calls `take`, any thread `message`.

    Published again is what the registry holds, whole, and never what is older than that: where the disk has not got it,
    nothing is.
    """

    def __init__(
        self,
        registry: DeviceRegistry[Any],
        seen: SeenEntries,
        displaced: Displaced,
        check_signed: CheckSigned | None,
    ) -> None:
        self._registry, self._seen, self._check_signed = registry, seen, check_signed
        self.displaced = displaced

    def restore(self) -> Iterator[DevicePublication]:
        """What was taken before the last end, and holds: the topic may have an older entry by now."""
        return self._seen.restore(self._registry, self._check_signed)

    def restore_late(self) -> Iterator[DevicePublication]:
        """The same where the file can be opened only now, for whoever has read the topic already."""
        if self._seen.look():
            for publication in self.restore():
                self.displaced.note(publication.entry.name, OUTRANKED)
                yield publication

    def take(self, message: TopicMessage, became: BecameOfMessage) -> None:
        """What became of the last message of the topic. A message of a device that is not known displaces nothing."""
        name = became.key if isinstance(became, EntryRefused) else became.publication.entry.name
        message = _without_others(message)
        if isinstance(became, Taken):
            self._seen.keep(message)
            self.displaced.settle(name, is_new=True)
            return
        if isinstance(became, Outranked):
            _LOG.warning("an older entry came after a newer one, which holds", device=name)
            self.displaced.note(name, OUTRANKED)
        elif isinstance(became, EntryRefused):
            self._take_refused(name, message, became.reason)
        else:
            # On a disk that was full when it came first it may be missing.
            if not self._has(name, message):
                self._seen.keep(message)
            self.displaced.settle(name)

    def message(self, name: str) -> TopicMessage | None:
        """The message that holds of a device; None: none does, or it is not on disk. Raises SeenUnreadable."""
        rank, message = self._registry.precedence(name), self._seen.message(name)
        is_it = message is not None and rank is not None and _rank(message) == rank
        return _without_others(message) if is_it and message is not None else None

    def _take_refused(self, name: str, message: TopicMessage, reason: str) -> None:
        if self._registry.precedence(name) is None:
            return
        # The same one, whole: it holds, and its key is trusted no more.
        if self._has(name, message):
            self.displaced.settle(name)
        else:
            self.displaced.note(name, reason)

    def _has(self, name: str, message: TopicMessage) -> bool:
        """Whether this is known to be what is kept of a device."""
        with contextlib.suppress(SeenUnreadable):
            kept = self._seen.message(name)
            return kept is not None and _content(_without_others(kept)) == _content(message)
        return False


def _rank(message: TopicMessage) -> Precedence | None:
    try:
        # It was taken: our clock is asked no more.
        return read_entry(message.key, message.body, message.properties, math.inf).precedence
    except EntryRefused:
        return None


def _without_others(message: TopicMessage) -> TopicMessage:
    """A message with the properties of an entry alone: others are signed by nobody, and as large as anybody likes."""
    return message._replace(
        properties={key: message.properties[key] for key in ENTRY_PROPERTIES & message.properties.keys()}
    )


def _content(message: TopicMessage) -> tuple[str | None, bytes, Mapping[str, str]]:
    return message.key, message.body, dict(message.properties)
