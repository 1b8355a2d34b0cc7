"""One command's use of the device registry: read to its end, change it, see that the change holds, hear the regions."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from types import TracebackType
from typing import Final, Self

from waybill.daemon.process import close_within
from waybill.identity.change_outcome import (
    ChangeCutShort,
    ChangeOutcome,
    Heard,
    Interrupted,
    Published,
    change_outcome,
)
from waybill.identity.confirmations import (
    CONFIRMATIONS_KEPT,
    CONFIRMATIONS_TOPIC,
    RegionAnswers,
    RegionVerdicts,
    confirming_regions,
    decode_confirmation,
    is_of_its_region,
)
from waybill.identity.errors import IdentityError, SignatureFault, SignatureRefused
from waybill.identity.names import nearest
from waybill.identity.operator_settings import OperatorSettings
from waybill.identity.publication_id import drawn_ms
from waybill.identity.registry import DeviceEntry
from waybill.identity.registry_messages import (
    DevicePublication,
    EntryRefused,
    check_right,
    signed_by,
    tenant_of,
    unsigned,
)
from waybill.identity.registry_topic import (
    BecameOfMessage,
    ClockRefused,
    DeviceRegistry,
    Outranked,
    RegistryPublisher,
    RegistryReader,
    RegistryRefused,
    RegistryUnreachable,
    Repeated,
    refusal_text,
)
from waybill.identity.signatures import read_operator_key, read_operators
from waybill.identity.standing_change import Anew, AsItIs, StandingChange
from waybill.pulsar.cluster_clock import ClockDiffers, ClockUnknown, NotLetIn, check_clock
from waybill.pulsar.compacted_topic import CompactedTopicReader, TopicMessage, TopicStanding
from waybill.pulsar.pulsar_client import TokenNotGood

# Publishes the devices of a change one by one, until all are published, the cluster is lost, or somebody interrupts.


def published_in_turn(
    names: Sequence[str],
    turn: Callable[[str], DeviceEntry],
    publish: Callable[[DeviceEntry], str],
    on_published: Callable[[int], object],
    before: Published | None = None,
) -> Published:
    """What was published, beside what was `before`; `turn` makes the entry of a device.

    Raises RegistryUnreachable where surely nothing was.
    """
    sent = Published() if before is None else before
    for number, name in enumerate(names):
        former = sent.made.get(name)
        try:
            _take_turn(sent, name, turn, publish)
            on_published(len(sent.made))
        except RegistryUnreachable as error:
            sent.error, sent.left = error, names[number:]
            if sent.is_nothing:
                raise
            return sent
        except KeyboardInterrupt:
            # It may have come after the cluster's answer.
            is_made = sent.made.get(name) is not former
            sent.error, sent.left = Interrupted(f"interrupted at {name}"), names[number + is_made :]
            return sent
    return sent


def _take_turn(
    sent: Published, name: str, turn: Callable[[str], DeviceEntry], publish: Callable[[DeviceEntry], str]
) -> None:
    try:
        entry = turn(name)
    except AsItIs:
        sent.same.append(name)
    except IdentityError as refused:
        sent.refused[name] = refused
    else:
        sent.made[name] = DevicePublication(entry, publish(entry))


@contextmanager
def notes_interrupt(sent: Published, before: str) -> Iterator[None]:
    """Who ends a command while it waits hears what it has published."""
    try:
        yield
    except KeyboardInterrupt:
        sent.error = Interrupted(f"interrupted before {before}")


_CONFIRMATIONS_S: Final = 10.0
_SILENCE_S: Final = 30.0
"""So long nothing may come: however many devices there are, what is read goes on."""
_LOOK_S: Final = 0.2
_SIGNED_AGAIN: Final = 3

OnMessage = Callable[[TopicMessage, BecameOfMessage], object]
Turn = Callable[[str], DeviceEntry]


class RegistrySession:
    """The registry as it is now, and changes of it. Used in a `with` block.

    `names`: the devices that are asked about, of which alone messages are judged; None: all of a `tenant`, or of every
    tenant of the settings. Only their topics are read. `on_progress` hears what goes on and how far it is. Raises
    RegistryUnreachable; RegistryRefused at once where a cluster lets us not in, or would not, by what our token says of
    itself; SettingsError, OperatorKeyRefused for files of keys.
    """

    def __init__(
        self,
        settings: OperatorSettings,
        *,
        names: Collection[str] | None = None,
        tenant: str = "",
        with_history: bool = False,
        on_progress: Callable[[str, int], object] = lambda _, __: None,
    ) -> None:
        self._settings, self._with_history, self._on_progress = settings, with_history, on_progress
        self._changed = threading.Condition()
        self._answers = RegionAnswers()
        self._history: list[tuple[DevicePublication, bool]] = []
        self._seen: set[str] = set()
        self._is_read = False
        self._check_signed = settings.check_signed()
        self._tenants = (tenant,) if tenant in settings.tenants else settings.tenants
        self._names, url, access = None if names is None else frozenset(names), settings.service_url, settings.access
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
            on_standing=lambda _, __: self._notify(),
            tenants=[one for one in self._tenants if names is None or one in set(map(tenant_of, names))],
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
            raise RegistryRefused(f"{where}: {self._not_let_in(standing, standing.topic)}")
        silence = f"after {standing.messages} messages nothing came for {_SILENCE_S:g} s"
        raise RegistryUnreachable(f"{where}: {silence}: {standing.problem}")

    def _not_let_in(self, standing: TopicStanding, topic: str) -> str:
        """Why a topic is not read."""
        if standing.refusal is None:
            return f"{self._settings.service_url}: {standing.problem}"
        return refusal_text(standing.refusal, standing.problem, self._settings.access, topic, "consume")

    def __enter__(self) -> Self:
        try:
            # Whom nobody knows a cluster does not answer: it would be asked until time is over.
            self._settings.access.check_token(time.time())
        except TokenNotGood as error:
            raise RegistryRefused(str(error)) from error
        try:
            self._read(self._reader)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        self._is_read = True
        # Our ids come after all that we have seen, whatever this clock says.
        ids = (one.publication_id for one in self._reader.registry.all().values())
        self._publisher.newest = max(ids, default=None)
        return self

    def __exit__(self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None) -> None:
        hears = self._confirmations.is_running
        close_within([self._publisher.close, self._reader.close, *([self._confirmations.close] if hears else [])])

    def not_taken(self, name: str) -> str:
        """Why a device of which there is an entry is not known here, and may be elsewhere; "": there is none."""
        return self._reader.not_taken.get(name, "")

    def get(self, name: str) -> DeviceEntry | None:
        """The entry of a device; None: it is not known. It is read now if it was not yet. Raises NotInSettings."""
        self._settings.check_tenant(tenant_of(name))
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

    def history(self, name: str) -> list[tuple[DevicePublication, bool]]:
        """What the topic still has of a device, in the order in which it came, and whether it was outranked then."""
        return [one for one in self._history if one[0].entry.name == name]

    @property
    def operator(self) -> str:
        """Who is recorded for a change: whose key it is, by the trusted ones, or who the settings say."""
        key = None if self._key is None or self._trusted is None else self._trusted.keys.get(self._key.key_id)
        return self._settings.operator if key is None else key.name

    def publish(
        self, entries: Iterable[DeviceEntry], wait_s: float = 0, *, anew: Anew | None = None, beside: Iterable[str] = ()
    ) -> ChangeOutcome:
        """Publishes entries, in their order. With `wait_s` it waits so long for every region's confirmation.

        `anew` makes each again at its turn: of many, one may be enrolled or locked out meanwhile, and what it cannot
        make is refused by its name. `beside`: devices that are as they are to be, and may not be in force yet either.
        Raises SignatureRefused before anything is published that nobody would take, ClockRefused for a clock by which
        it would come in the wrong order, and ChangeCutShort, which has the outcome, where something was published.
        """
        by_name, standing = {one.name: one for one in entries}, self._publications(beside)
        if by_name:
            self._check(by_name.values())
        self._begin_to_hear(wait_s)
        turn = by_name.__getitem__ if anew is None else lambda name: anew.entry(name, self.get(name))
        sent = self._send(tuple(by_name), turn)
        standing |= self._publications(sent.same)
        return self._outcome(StandingChange(sent, standing, self.publication, anew), wait_s)

    def sign(self, names: Iterable[str], wait_s: float = 0) -> ChangeOutcome:
        """Publishes devices as they are under the operator's own signature. See `publish`."""
        todo, sent = tuple(names), Published()
        self._check([one for name in todo if (one := self.get(name)) is not None])
        self._begin_to_hear(wait_s)
        for _ in range(_SIGNED_AGAIN):
            # Each as it is at its turn: among so many one may be enrolled meanwhile.
            sent = self._send([name for name in todo if self.get(name) is not None], self._known, sent)
            # What it was at its turn came behind what it is now, and compaction keeps the last.
            change = StandingChange(sent, {}, self.publication)
            if sent.error is not None or not (todo := tuple(change.gone(self._seen, self._lost))):
                break
        return self._outcome(StandingChange(sent, {}, self.publication), wait_s)

    @property
    def _lost(self) -> str:
        """Why nothing comes back; "": it may."""
        problem = self._reader.standing.problem
        return problem and f"the registry at {self._settings.service_url} is not read any more: {problem}"

    def _publications(self, names: Iterable[str]) -> dict[str, DevicePublication]:
        return {name: one for name in names if (one := self.publication(name)) is not None}

    def _known(self, name: str) -> DeviceEntry:
        found = self.get(name)
        assert found is not None, "nothing takes a device out of the registry"
        return found

    def _send(self, names: Sequence[str], turn: Turn, before: Published | None = None) -> Published:
        """What is published once it came back, and what was `before`. Raises RegistryUnreachable where nothing is."""

        def checked(name: str) -> DeviceEntry:
            self._check_rights((entry := turn(name),))
            return entry

        publish, on_published = self._publisher.publish, partial(self._on_progress, "published")
        sent = published_in_turn(names, checked, publish, on_published, before)
        # What another operator published at the same moment stands before ours or behind it: ours is read back.
        ids = [one.publication_id for one in sent.made.values()]
        if not isinstance(sent.error, Interrupted):
            with notes_interrupt(sent, "what is published was read back"):
                is_back, count = partial(self._seen.issuperset, ids), lambda: sum(one in self._seen for one in ids)
                self._progress("read back", count, is_back)
        return sent

    def _check(self, entries: Iterable[DeviceEntry]) -> None:
        self._check_rights(entries)
        try:
            check_clock(self._settings.admin_url, self._settings.access)
        except NotLetIn as error:
            raise RegistryRefused(str(error)) from error
        except ClockUnknown as error:
            raise RegistryUnreachable(str(error)) from error
        except ClockDiffers as error:
            raise ClockRefused(str(error)) from error

    def _begin_to_hear(self, wait_s: float) -> None:
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

    def _outcome(self, change: StandingChange, wait_s: float) -> ChangeOutcome:
        sent, heard = change.sent, None
        if wait_s and sent.error is None:
            since_ms = (time.time() - CONFIRMATIONS_KEPT.total_seconds()) * 1000
            with notes_interrupt(sent, "every region had answered"):
                heard = self._heard(lambda: change.asked(since_ms), wait_s)
        gone = change.gone(self._seen, self._lost)
        outcome = change_outcome(sent, gone, change.beside, heard, self._settings.regions)
        if sent.error is not None:
            raise ChangeCutShort(outcome) from sent.error
        return outcome

    def _heard(self, about: Callable[[], Mapping[str, DevicePublication]], wait_s: float) -> Heard:
        """What every region says of these, once each has said something of each, or the time is over."""
        end_s = time.monotonic() + wait_s
        if not about():
            return Heard((), {})

        def verdicts() -> RegionVerdicts:
            asked = about().values()
            return self._answers.verdicts({one.publication_id for one in asked}, self._regions(asked))

        def is_answered() -> bool:
            standing = self._confirmations.standing
            # Which regions there are is known at the topic's end; who refuses it will not confirm it by waiting.
            return standing.refusal is not None or (standing.was_current and not verdicts().silent)

        while not self._wait(is_answered, min(_LOOK_S, end_s - time.monotonic())) and time.monotonic() < end_s:
            self._on_progress("waiting for the regions, confirmed by", len(verdicts().confirmed))
        asked, standing, problem = about(), self._confirmations.standing, ""
        regions = self._regions(asked.values())
        found = {name: self._answers.verdicts([one.publication_id], regions) for name, one in asked.items()}
        if not standing.is_current:
            # A region that is heard of there alone may be missing too: nothing is confirmed.
            problem = f"confirmations cannot be read: {self._not_let_in(standing, CONFIRMATIONS_TOPIC)}"
        return Heard(regions, found, problem)

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
        # By when it was published: one that was signed again has the moment of its change.
        since_ms = since.timestamp() * 1000
        changed = ((name, one) for name, one in every.items() if drawn_ms(one.publication_id) >= since_ms)
        said = ((name, self._answers.verdicts([one.publication_id], regions).text) for name, one in changed)
        return {name: text for name, text in said if text}

    def _can_hear(self) -> bool:
        return self._confirmations.standing.was_current

    def _on_entry(self, _: TopicMessage, became: BecameOfMessage) -> None:
        if isinstance(became, EntryRefused | Repeated):
            return
        with self._changed:
            if self._with_history:
                self._history.append((became.publication, isinstance(became, Outranked)))
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
        with self._changed:
            return self._changed.wait_for(condition, max(0.0, timeout_s))
