"""One command's use of the device registry: read to its end, change it, see that the change holds, hear the regions."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from types import TracebackType
from typing import Final, NamedTuple, Self

from identity.confirmations import CONFIRMATIONS_TOPIC, decode_confirmation, is_of_its_region
from identity.errors import SignatureFault, SignatureRefused
from identity.operator_files import read_operator_key, read_operators
from identity.operator_settings import OperatorSettings
from identity.region_answers import RegionAnswers
from identity.registry import DeviceEntry
from identity.registry_messages import DevicePublication, EntryRefused
from identity.registry_publisher import RegistryPublisher, RegistryUnreachable, unsigned
from identity.registry_reader import DeviceRegistry, Outranked, RegistryReader, Taken
from identity.registry_signing import check_right, signed_by
from runtime.compacted_topic import CompactedTopicReader, TopicMessage

__all__ = ["ChangeOutcome", "RegistrySession"]

_READ_S: Final = 30.0
_CONFIRMATIONS_S: Final = 10.0


class ChangeOutcome(NamedTuple):
    """What became of a change. `holds`: no other change made at the same time outranks it. `missing`: regions whose
    access daemon has not confirmed it in time; None: nobody waited. `why`: what each of them said, and whether the
    confirmations can be read at all."""

    publications: tuple[DevicePublication, ...]
    holds: bool
    missing: tuple[str, ...] | None
    why: str = ""


class RegistrySession:
    """The registry as it is now, and changes of it. Used in a `with` block.

    Raises RegistryUnreachable; SettingsError, OperatorKeyRefused for files of keys that cannot be used.
    """

    def __init__(self, settings: OperatorSettings, *, with_history: bool = False) -> None:
        self._settings = settings
        self._changed = threading.Condition()
        self._answers = RegionAnswers()
        self._history: list[DevicePublication] = []
        registry: DeviceRegistry[DevicePublication] = DeviceRegistry(lambda publication, _: publication)
        url, access = settings.service_url, settings.access
        self._reader = RegistryReader(
            url,
            access,
            registry,
            on_message=self._on_entry,
            on_standing=lambda _: self._notify(),
            check_signed=settings.check_signed(),
            is_compacted=not with_history,
        )
        self._confirmations = CompactedTopicReader(
            url, access, CONFIRMATIONS_TOPIC, self._on_confirmation, lambda _: self._notify(), is_compacted=False
        )
        self._trusted = None if settings.operators is None else read_operators(settings.operators)
        self._key = None if settings.key is None else read_operator_key(settings.key)
        self._publisher = RegistryPublisher(url, access, sign=unsigned if self._key is None else signed_by(self._key))

    def __enter__(self) -> Self:
        self._reader.start()
        if not self._wait(lambda: self._reader.standing.was_current, _READ_S):
            problem = self._reader.standing.problem
            self.__exit__(None, None, None)
            raise RegistryUnreachable(f"the registry at {self._settings.service_url} is not read: {problem}")
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
        """The entry of a device; None: it is not known."""
        found = self._reader.registry.get(name)
        return None if found is None else found.entry

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

        Raises SignatureRefused before anything is published that nobody would take.
        """
        entries = tuple(entries)
        self._check_rights(entries)
        # Before the publication, so that no confirmation is missed.
        if wait_s and not self._confirmations.is_running:
            self._confirmations.start()
        made = tuple(DevicePublication(entry, self._publisher.publish(entry)) for entry in entries)
        # What another operator published at the same moment stands before ours or behind it: ours is read back.
        self._wait(lambda: all(self._is_seen(one) for one in made), _READ_S)
        # By what holds, not by what came last.
        held = self._reader.registry.all()
        holds = all(held[one.entry.name].publication_id == one.publication_id for one in made)
        return ChangeOutcome(made, holds, *(self._missing(made, wait_s) if wait_s else (None, "")))

    def _check_rights(self, entries: Iterable[DeviceEntry]) -> None:
        if self._trusted is None:
            return
        if self._key is None:
            raise SignatureRefused(
                SignatureFault.UNSIGNED, "nobody takes a change that is not signed: name your private key by --key FILE"
            )
        for entry in entries:
            check_right(self._trusted, self._key.key_id, entry, datetime.now(UTC))

    def _missing(self, made: tuple[DevicePublication, ...], wait_s: float) -> tuple[tuple[str, ...], str]:
        ids, regions = {one.publication_id for one in made}, self._settings.regions
        # Who refuses it will not confirm it by waiting.
        self._wait(lambda: not self._answers.verdicts(ids, regions).silent, wait_s)
        found, standing = self._answers.verdicts(ids, regions), self._confirmations.standing
        unread = "" if standing.is_current else f"; confirmations cannot be read: {standing.problem}"
        return (*found.refused, *found.silent), found.text + unread

    def not_confirmed(self, since: datetime) -> dict[str, str] | None:
        """Devices whose last change not every region has confirmed, and why, of those that were changed since then.

        None: confirmations cannot be read.
        """
        if not self._confirmations.is_running:
            self._confirmations.start()
        if not self._wait(lambda: self._confirmations.standing.was_current, _CONFIRMATIONS_S):
            return None
        changed = ((name, one) for name, one in self._reader.registry.all().items() if one.entry.changed_at >= since)
        regions = self._settings.regions
        said = ((name, self._answers.verdicts([one.publication_id], regions).text) for name, one in changed)
        return {name: text for name, text in said if text}

    def _is_seen(self, made: DevicePublication) -> bool:
        return any(one.publication_id == made.publication_id for one in reversed(self._history))

    def _on_entry(self, _: TopicMessage, became: Taken | Outranked | EntryRefused) -> None:
        if isinstance(became, EntryRefused):
            return
        with self._changed:
            self._history.append(became.publication)
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

    def _wait(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        end_s = time.monotonic() + timeout_s
        with self._changed:
            return self._changed.wait_for(condition, max(0.0, end_s - time.monotonic()))
