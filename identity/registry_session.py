"""One command's use of the device registry: read to its end, change it, see that the change holds, hear the regions."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable
from datetime import UTC, datetime
from types import TracebackType
from typing import Final, NamedTuple, Self

from identity.cluster_refusal import refusal_text
from identity.confirmations import (
    CONFIRMATIONS_TOPIC,
    confirming_regions,
    decode_confirmation,
    is_of_its_region,
)
from identity.errors import IdentityError, SignatureFault, SignatureRefused
from identity.nearest import nearest
from identity.operator_files import read_operator_key, read_operators
from identity.operator_settings import OperatorSettings
from identity.region_answers import RegionAnswers, RegionVerdicts
from identity.registry import DeviceEntry
from identity.registry_messages import DEVICES_TOPIC, DevicePublication, EntryRefused
from identity.registry_publisher import RegistryPublisher, RegistryRefused, RegistryUnreachable, unsigned
from identity.registry_reader import BecameOfMessage, DeviceRegistry, RegistryReader, Repeated
from identity.registry_signing import check_right, signed_by
from runtime.cluster_clock import ClockDiffers, ClockUnknown, NotLetIn, check_clock
from runtime.compacted_topic import CompactedTopicReader, TopicMessage, TopicStanding
from runtime.pulsar_client import TokenNotGood

__all__ = ["ChangeOutcome", "ClockRefused", "RegistrySession"]

_CONFIRMATIONS_S: Final = 10.0
_SILENCE_S: Final = 30.0
"""So long nothing may come: however many devices there are, what is read goes on."""
_LOOK_S: Final = 0.2
_SIGNED_AGAIN: Final = 3
_MAX_NAMED: Final = 10


OnMessage = Callable[[TopicMessage, BecameOfMessage], object]


class ClockRefused(IdentityError):
    """This machine's clock is far from the cluster's: what it publishes would come in the wrong order."""


class ChangeOutcome(NamedTuple):
    """What became of a change. `holds`: no other change made at the same time outranks it. `confirmed`: regions that
    have it in force; `missing`: regions whose access daemon has not confirmed it in time; None: nobody waited. `why`:
    what each of those said, and whether the confirmations can be read at all. `unlisted`: regions that there are and
    the settings do not name."""

    publications: tuple[DevicePublication, ...]
    holds: bool
    missing: tuple[str, ...] | None
    why: str = ""
    confirmed: tuple[str, ...] = ()
    unlisted: tuple[str, ...] = ()


class RegistrySession:
    """The registry as it is now, and changes of it. Used in a `with` block.

    `names`: the devices that are asked about, of which alone messages are judged; None: all. `on_progress` hears what
    goes on and how far it is. Raises RegistryUnreachable; RegistryRefused at once where a cluster lets us not in, or
    would not, by what our token says of itself;
    SettingsError, OperatorKeyRefused for files of keys that cannot be used.
    """

    def __init__(
        self,
        settings: OperatorSettings,
        *,
        names: Collection[str] | None = None,
        with_history: bool = False,
        on_progress: Callable[[str, int], object] = lambda _, __: None,
    ) -> None:
        self._settings, self._with_history, self._on_progress = settings, with_history, on_progress
        self._changed = threading.Condition()
        self._answers = RegionAnswers()
        self._history: list[DevicePublication] = []
        self._seen: set[str] = set()
        self._is_read = False
        self._check_signed = settings.check_signed()
        self._names = None if names is None else frozenset(names)
        url, access = settings.service_url, settings.access
        self._reader = self._reader_of(self._names, self._on_entry)
        self._confirmations = CompactedTopicReader(
            url, access, CONFIRMATIONS_TOPIC, self._on_confirmation, lambda _: self._notify(), is_compacted=False
        )
        self._trusted = None if settings.operators is None else read_operators(settings.operators)
        self._key = None if settings.key is None else read_operator_key(settings.key)
        self._publisher = RegistryPublisher(url, access, sign=unsigned if self._key is None else signed_by(self._key))

    def _reader_of(self, names: frozenset[str] | None, on_message: OnMessage) -> RegistryReader[DevicePublication]:
        registry: DeviceRegistry[DevicePublication] = DeviceRegistry(lambda publication, _: publication)
        return RegistryReader(
            self._settings.service_url,
            self._settings.access,
            registry,
            on_message=on_message,
            on_standing=lambda _: self._notify(),
            check_signed=self._check_signed,
            is_compacted=not self._with_history,
            names=names,
        )

    def _read(self, reader: RegistryReader[DevicePublication]) -> None:
        reader.start()

        def is_over() -> bool:
            standing = reader.standing
            return standing.was_current or standing.refusal is not None

        self._progress("reading the registry", lambda: reader.standing.messages, is_over)
        standing = reader.standing
        if standing.was_current:
            return
        where = f"the registry at {self._settings.service_url} is not read"
        if standing.refusal is not None:
            raise RegistryRefused(f"{where}: {self._not_let_in(standing, DEVICES_TOPIC)}")
        silence = f"after {standing.messages} messages nothing came for {_SILENCE_S:g} s"
        raise RegistryUnreachable(f"{where}: {silence}: {standing.problem}")

    def _not_let_in(self, standing: TopicStanding, topic: str) -> str:
        """Why a topic is not read."""
        if standing.refusal is None:
            return standing.problem
        return refusal_text(standing.refusal, standing.problem, self._settings.access, topic, "consume")

    def __enter__(self) -> Self:
        try:
            # Whom nobody knows a cluster does not answer: it would be asked until time is over.
            self._settings.access.check_token(time.time())
        except TokenNotGood as error:
            raise RegistryRefused(str(error)) from error
        try:
            self._read(self._reader)
        except RegistryUnreachable:
            self.__exit__(None, None, None)
            raise
        self._is_read = True
        # Our ids come after all that we have seen, whatever this clock says.
        ids = (one.publication_id for one in self._reader.registry.all().values())
        self._publisher.newest = max(ids, default=None)
        return self

    def __exit__(self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None) -> None:
        self._publisher.close()
        self._reader.close()
        if self._confirmations.is_running:
            self._confirmations.close()

    def get(self, name: str) -> DeviceEntry | None:
        """The entry of a device; None: it is not known. One that was not asked about is read for now."""
        reader = self._reader
        if self._names is not None and name not in self._names:
            reader = self._reader_of(frozenset((name,)), lambda _, __: None)
            try:
                self._read(reader)
            finally:
                reader.close()
        found = reader.registry.get(name)
        return None if found is None else found.entry

    def nearest(self, name: str) -> str:
        """Which device may be meant by a name that is not known; "": none is like it."""
        others = (*self._reader.registry.all(), *self._reader.others)
        return nearest(name, [shown for shown in others if shown.isprintable() and shown != name])

    def publications(self) -> list[DevicePublication]:
        """What holds of every device, by name."""
        return [found for _, found in sorted(self._reader.registry.all().items())]

    def publication(self, name: str) -> DevicePublication | None:
        """What holds of a device; None: it is not known."""
        return self._reader.registry.get(name)

    def signed_by(self, publication: DevicePublication) -> str:
        """Whose key signed it, by the trusted ones' names; "" where signatures are not looked at."""
        key = None if self._trusted is None else self._trusted.keys.get(publication.signer)
        return "" if key is None else key.name

    def history(self, name: str) -> list[DevicePublication]:
        """What the topic still has of a device, in the order in which it came."""
        return [one for one in self._history if one.entry.name == name]

    @property
    def operator(self) -> str:
        """Who is recorded for a change: whose key it is, by the trusted ones, or who the settings say."""
        key = None if self._key is None or self._trusted is None else self._trusted.keys.get(self._key.key_id)
        return self._settings.operator if key is None else key.name

    def publish(self, entries: Iterable[DeviceEntry], wait_s: float = 0) -> ChangeOutcome:
        """Publishes entries, in their order. With `wait_s` it waits so long for every region's confirmation.

        Raises SignatureRefused before anything is published that nobody would take, and ClockRefused for a clock by
        which it would come in the wrong order.
        """
        entries = tuple(entries)
        self._check(entries, wait_s)
        made = self._published(entries)
        return self._outcome(made, wait_s, holds=not self._outranked(made))

    def sign(self, names: Iterable[str], wait_s: float = 0) -> ChangeOutcome:
        """Publishes devices as they are under the operator's own signature. See `publish`."""
        todo, made = tuple(names), dict[str, DevicePublication]()
        self._check([one for name in todo if (one := self.get(name)) is not None], wait_s)
        for _ in range(_SIGNED_AGAIN):
            # Each as it is at its turn: among so many one may be enrolled meanwhile.
            now = (one for name in todo if (one := self.get(name)) is not None)
            made |= {one.entry.name: one for one in self._published(now)}
            # What it was at its turn came behind what it is now, and compaction keeps the last.
            if not (todo := self._outranked(made.values())):
                break
        return self._outcome(tuple(made.values()), wait_s, holds=not todo)

    def _published(self, entries: Iterable[DeviceEntry]) -> tuple[DevicePublication, ...]:
        """Those that were published, once they came back, as far as they do."""
        made = list[DevicePublication]()
        for entry in entries:
            try:
                made.append(DevicePublication(entry, self._publisher.publish(entry)))
            except RegistryUnreachable as error:
                if not made:
                    raise
                # What a cluster let in once is in, whatever it says of the rest: this is no refusal.
                raise RegistryUnreachable(f"{_published_text(made)}, and no more: {error}") from error
            self._on_progress("published", len(made))
        # What another operator published at the same moment stands before ours or behind it: ours is read back.
        ids = [one.publication_id for one in made]
        self._progress("read back", lambda: sum(one in self._seen for one in ids), lambda: self._seen.issuperset(ids))
        return tuple(made)

    def _outranked(self, made: Iterable[DevicePublication]) -> tuple[str, ...]:
        """Devices of which something else holds."""
        # By what holds, not by what came last.
        held = self._reader.registry.all()
        names = ((one, held.get(one.entry.name)) for one in made)
        return tuple(one.entry.name for one, now in names if now is None or now.publication_id != one.publication_id)

    def _check(self, entries: Collection[DeviceEntry], wait_s: float) -> None:
        self._check_rights(entries)
        try:
            check_clock(self._settings.admin_url, self._settings.access)
        except NotLetIn as error:
            raise RegistryRefused(str(error)) from error
        except ClockUnknown as error:
            raise RegistryUnreachable(str(error)) from error
        except ClockDiffers as error:
            raise ClockRefused(str(error)) from error
        # Before the publication, so that no confirmation is missed.
        if wait_s and not self._confirmations.is_running:
            self._confirmations.start()

    def refusal(self, entry: DeviceEntry) -> SignatureRefused | None:
        """Why nobody would take this entry from the operator's key; None: it would be taken."""
        try:
            self._check_rights((entry,))
        except SignatureRefused as refused:
            return refused
        return None

    def _check_rights(self, entries: Iterable[DeviceEntry]) -> None:
        if self._trusted is None:
            return
        if self._key is None:
            raise SignatureRefused(
                SignatureFault.UNSIGNED, "nobody takes a change that is not signed: name your private key by --key FILE"
            )
        for entry in entries:
            check_right(self._trusted, self._key.key_id, entry, datetime.now(UTC))

    def _outcome(self, made: tuple[DevicePublication, ...], wait_s: float, *, holds: bool) -> ChangeOutcome:
        if not wait_s:
            return ChangeOutcome(made, holds, None)
        found, standing = self._answered(made, wait_s), self._confirmations.standing
        missing, why = (*found.refused, *found.silent), found.text
        if not standing.is_current:
            # A region that is heard of there alone may be missing too: nothing is confirmed.
            problem = self._not_let_in(standing, CONFIRMATIONS_TOPIC)
            missing, why = (*missing, *found.confirmed), f"{why}; confirmations cannot be read: {problem}"
        confirmed = tuple(one for one in found.confirmed if one not in missing)
        unlisted = tuple(sorted({*found.confirmed, *missing} - {*self._settings.regions}))
        return ChangeOutcome(made, holds, missing, why.removeprefix("; "), confirmed, unlisted)

    def _answered(self, made: Collection[DevicePublication], wait_s: float) -> RegionVerdicts:
        """What every region says of a change, once each has said something, or the time is over."""
        ids, end_s = {one.publication_id for one in made}, time.monotonic() + wait_s

        def verdicts() -> RegionVerdicts:
            return self._answers.verdicts(ids, self._regions(made))

        def is_answered() -> bool:
            standing = self._confirmations.standing
            # Which regions there are is known at the topic's end; who refuses it will not confirm it by waiting.
            return standing.refusal is not None or (standing.was_current and not verdicts().silent)

        while not self._wait(is_answered, min(_LOOK_S, end_s - time.monotonic())) and time.monotonic() < end_s:
            self._on_progress("waiting for the regions, confirmed by", len(verdicts().confirmed))
        return verdicts()

    def _regions(self, about: Iterable[DevicePublication]) -> tuple[str, ...]:
        """Where something of these devices has to be in force: wherever a broker may let them in.

        What the settings name, whose daemons' keys are trusted, who said anything, and the devices' own regions: where
        a list that somebody wrote lacks one, a stolen device is let in there.
        """
        trusted = frozenset() if self._trusted is None else confirming_regions(self._trusted, datetime.now(UTC))
        others = {*trusted, *self._answers.regions, *(one.entry.region for one in about)}
        return (*self._settings.regions, *sorted(others - {*self._settings.regions}))

    def not_confirmed(self, since: datetime) -> dict[str, str] | None:
        """Devices whose last change not every region has confirmed, and why, of those that were changed since then.

        None: confirmations cannot be read.
        """
        if not self._confirmations.is_running:
            self._confirmations.start()
        self._wait(lambda: self._can_hear() or self._confirmations.standing.refusal is not None, _CONFIRMATIONS_S)
        if not self._can_hear():
            return None
        every = self._reader.registry.all()
        regions = self._regions(every.values())
        changed = ((name, one) for name, one in every.items() if one.entry.changed_at >= since)
        said = ((name, self._answers.verdicts([one.publication_id], regions).text) for name, one in changed)
        return {name: text for name, text in said if text}

    def _can_hear(self) -> bool:
        return self._confirmations.standing.was_current

    def _on_entry(self, _: TopicMessage, became: BecameOfMessage) -> None:
        if isinstance(became, EntryRefused | Repeated):
            return
        with self._changed:
            if self._with_history:
                self._history.append(became.publication)
            if self._is_read:
                self._seen.add(became.publication.publication_id)
            self._changed.notify_all()

    def _on_confirmation(self, message: TopicMessage) -> None:
        found = decode_confirmation(message.body)
        if found is None:
            return
        if self._trusted is None or is_of_its_region(found, message.body, message.properties, self._trusted):
            with self._changed:
                self._answers.take(found)
                self._changed.notify_all()

    def _notify(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _progress(self, what: str, count: Callable[[], int], condition: Callable[[], bool]) -> bool:
        """Waits until the condition is met; False: the count stood still for too long."""
        known, since_s = -1, time.monotonic()
        while not self._wait(condition, _LOOK_S):
            # Each time, for whoever shows it only after a while.
            self._on_progress(what, now := count())
            if now != known:
                known, since_s = now, time.monotonic()
            elif time.monotonic() - since_s > _SILENCE_S:
                return False
        return True

    def _wait(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        end_s = time.monotonic() + timeout_s
        with self._changed:
            return self._changed.wait_for(condition, max(0.0, end_s - time.monotonic()))


def _published_text(made: Collection[DevicePublication]) -> str:
    names = [one.entry.name for one in made]
    more = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
    return f"published: {', '.join(names[:_MAX_NAMED])}{more}"
