"""Publishing what is enrolled: behind all that was seen, and read back before anybody gets a certificate by it.

What the registry does not say cannot be revoked. Nobody waits here: `is_taken` is asked until it knows.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final, NamedTuple

from gateway.access.entry_book import EntryBook
from gateway.errors import EntryNotTaken
from waybill.identity.registry import DeviceEntry
from waybill.identity.registry_publisher import RegistryPublisher, RegistryRefused

__all__ = ["EnrolmentPublisher"]

READ_BACK_S: Final = 10.0


class _Sent(NamedTuple):
    id: str
    until_s: float


class EnrolmentPublisher:
    """`saw` and `refuse` are called by the registry's reader, the rest by the thread that enrols.

    `book`: what the reader has taken. `monotonic`: by which an entry that is not read back is given up.
    """

    def __init__(
        self, publisher: RegistryPublisher, book: EntryBook, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._publisher, self._book, self._monotonic = publisher, book, monotonic
        self._newest = ""
        self._lock = threading.Lock()
        self._sent: dict[str, _Sent] = {}
        self._refused: dict[str, str] = {}

    def saw(self, publication_id: str) -> None:
        """The reader took a publication."""
        self._newest = max(self._newest, publication_id)

    def refuse(self, publication_id: str, why: str) -> None:
        """The reader does not take a publication: whom it is for need not wait for it."""
        with self._lock:
            # `newest` is drawn before it is sent: the reader may be faster than the receipt.
            if publication_id == self._publisher.newest or any(one.id == publication_id for one in self._sent.values()):
                self._refused[publication_id] = why

    def publish(self, entry: DeviceEntry) -> None:
        """Publish an entry beside the operator's word for its device.

        Raises RegistryUnreachable where the cluster is away, EntryNotTaken where waiting for its topic does not help.
        """
        # Behind all that was seen, whatever this clock says.
        self._publisher.newest = max(self._publisher.newest or "", self._newest) or None
        try:
            publication_id = self._publisher.publish(entry, self._book.warrant(entry.name))
        except RegistryRefused as error:
            # The device asks again. Devices of other tenants do not wait for it.
            raise EntryNotTaken(str(error)) from error
        with self._lock:
            self._sent[entry.name] = _Sent(publication_id, self._monotonic() + READ_BACK_S)

    def is_taken(self, entry: DeviceEntry) -> bool:
        """Whether what was published was read back, or what holds instead. Raises EntryNotTaken if it never will be."""
        held = self._book.device(entry.name)
        is_taken = held is not None and held.version >= entry.version
        with self._lock:
            sent = self._sent[entry.name]
            why = self._refused.get(sent.id, "")
            if not (is_taken or why) and self._monotonic() < sent.until_s:
                return False
            del self._sent[entry.name]
            self._refused.pop(sent.id, None)
        if not is_taken:
            why = why or f"nobody read it back within {READ_BACK_S:g} s"
            raise EntryNotTaken(f"{entry.name} was published, and this daemon does not take its registry entry: {why}")
        return True

    def close(self) -> None:
        """Close the connection."""
        self._publisher.close()
