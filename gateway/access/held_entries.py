"""What holds of each device, as it was published: kept, and published again where another message came after it.

What was taken once is not given up for something of lower rank, whatever the clock says today and whichever keys are
trusted. What cannot be judged now is named, and looked at again.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

import structlog

from gateway.access.displaced import MISSING, OUTRANKED, Displaced
from gateway.access.kept_entries import IN_DOUBT, DoubtfulEntries, judge_kept, rank_of
from gateway.access.seen_entries import SeenEntries, SeenUnreadable
from waybill.identity.registry_messages import (
    ENTRY_PROPERTIES,
    CheckSigned,
    DevicePublication,
    EntryRefused,
    tenant_of,
)
from waybill.identity.registry_reader import BecameOfMessage, DeviceRegistry, Outranked, Taken
from waybill.pulsar.compacted_topic import TopicMessage, TopicStanding

__all__ = ["HeldEntries"]

_LOG = structlog.get_logger("access")


class HeldEntries:
    """What the registry in memory holds, as messages on disk. Its reader calls `take`, any thread `message`.

    Published again is what the registry holds, whole, and never what is older than that or than what waits for our
    clock: where the disk has not got it, nothing is.
    """

    def __init__(
        self,
        registry: DeviceRegistry[Any],
        seen: SeenEntries,
        displaced: Displaced,
        check_signed: CheckSigned | None,
    ) -> None:
        self._registry, self._seen, self._check_signed = registry, seen, check_signed
        self._doubtful = DoubtfulEntries()
        self._to_come: defaultdict[str, set[str]] = defaultdict(set)
        self._missing: set[str] = set()
        self.displaced = displaced

    @property
    def problem(self) -> str:
        """Of what is held: what the topic has not got, and what no key of today is trusted for; "" if all is well."""
        missing = len(self._missing)
        lost = f"registry: {missing} devices are known here and not on the topic; they are published again"
        return "; ".join(filter(None, (lost if missing else "", self._doubtful.problem)))

    def doubt(self, name: str) -> str:
        """Why nothing is to be made of the entry that holds of a device; "" if it is the newest for all we know."""
        rank = self._registry.precedence(name)
        if rank is not None and self._registry.ahead.outranks(name, rank):
            return f"a later entry of {name} is, or may be, dated ahead of this machine's clock"
        return f"the last entry of {name} is by a key that is not trusted now" if name in self._doubtful else ""

    def restore(self) -> Iterator[DevicePublication]:
        """What was taken before the last end, and holds: the topic may have an older entry by now, or none."""
        for message in self._seen.all():
            yield from self._judge_again(message)

    def restore_late(self) -> Iterator[DevicePublication]:
        """The same where the file can be opened only now, for whoever has read the topic already."""
        if self._seen.look():
            for publication in self.restore():
                self.displaced.note(publication.entry.name, OUTRANKED)
                yield publication

    def look_at_doubtful(self) -> Iterator[DevicePublication]:
        """Other keys are trusted than before: what holds now that was in doubt, though the topic may have lost it."""
        for name in self._doubtful.names():
            with contextlib.suppress(SeenUnreadable):
                if (message := self._seen.message(name)) is not None:
                    yield from self._judge_again(message)

    def on_begin(self, tenant: str) -> None:
        """The topic of a tenant is read from its beginning: all that is known of it is to come."""
        self._to_come[tenant] = self._registry.names(tenant)

    def on_standing(self, tenant: str, standing: TopicStanding) -> None:
        """How far a tenant's topic is read. What did not come by its end is lost there: it is published again."""
        if standing.is_current:
            missing = self._to_come.pop(tenant, set())
            if missing:
                _LOG.error("the topic has lost devices that are known here", devices=len(missing))
            for name in missing:
                self.displaced.note(name, MISSING)
            self._missing |= missing

    def take(self, message: TopicMessage, became: BecameOfMessage) -> None:
        """What became of the last message of the topic. A message of a device that is not known displaces nothing."""
        name = became.key if isinstance(became, EntryRefused) else became.publication.entry.name
        message = _without_others(message)
        self._to_come[tenant_of(name)].discard(name)
        if isinstance(became, Taken):
            self._seen.keep(message)
            self._is_there(name, is_new=True)
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
            self._is_there(name)

    def message(self, name: str) -> TopicMessage | None:
        """The message that holds of a device; None: none does, or it is not on disk. Raises SeenUnreadable."""
        rank, message = self._registry.precedence(name), self._seen.message(name)
        if message is None or rank is None or rank_of(message) != rank or self._registry.ahead.outranks(name, rank):
            return None
        return _without_others(message)

    def _judge_again(self, message: TopicMessage) -> Iterator[DevicePublication]:
        try:
            kept = judge_kept(message, self._check_signed)
        except EntryRefused:
            self._seen.note_damaged(message.key or "")
            return
        self._doubtful.put(kept)
        publication = kept.publication
        # By keys of before nobody is let in, and nobody who is locked out comes back.
        if kept.doubt and publication.entry.may_connect:
            self._registry.bar(publication.entry.name, publication.precedence)
        elif isinstance(self._registry.hold(publication, message), Taken):
            yield publication

    def _is_there(self, name: str, *, is_new: bool = False) -> None:
        """The last message of a device is the one that holds, and somebody signed it who is trusted now."""
        self._missing.discard(name)
        self._doubtful.settle(name)
        self.displaced.settle(name, is_new=is_new)

    def _take_refused(self, name: str, message: TopicMessage, reason: str) -> None:
        is_kept = self._has(name, message)
        if is_kept and reason in IN_DOUBT:
            self._doubtful.put(judge_kept(message, self._check_signed))
        if self._registry.precedence(name) is None:
            return
        # The same one, whole: it holds, and its key is trusted no more.
        if is_kept:
            self._missing.discard(name)
            self.displaced.settle(name)
        else:
            self.displaced.note(name, reason)

    def _has(self, name: str, message: TopicMessage) -> bool:
        """Whether this is known to be what is kept of a device."""
        with contextlib.suppress(SeenUnreadable):
            kept = self._seen.message(name)
            return kept is not None and _content(_without_others(kept)) == _content(message)
        return False


def _without_others(message: TopicMessage) -> TopicMessage:
    """A message with the properties of an entry alone: others are signed by nobody, and as large as anybody likes."""
    return message._replace(
        properties={key: message.properties[key] for key in ENTRY_PROPERTIES & message.properties.keys()}
    )


def _content(message: TopicMessage) -> tuple[str | None, bytes, Mapping[str, str]]:
    return message.key, message.body, dict(message.properties)
