"""What was published of one kind of reference data, as a daemon reads it: judged as the centre judges it.

A publication is parsed once, when it comes; its text is not kept. Of a version the last few publications are kept, as
one that cannot be used leaves in force what it was to replace.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final, Generic

from geo.reference.in_force import (
    InForce,
    JudgedPublication,
    Made,
    Usable,
    held_versions,
    judged_publication,
    publication_order,
)
from geo.reference.messages import (
    Kind,
    QuarantinedMessage,
    ReferenceTrust,
    check_content,
    named_message,
    quarantined_publication,
    read_messages,
)
from waybill.identity.errors import SignatureFault
from waybill.identity.publication_id import is_far_ahead
from waybill.pulsar.compacted_topic import TopicMessage

__all__ = ["KEPT_OF_A_VERSION", "ReferencePublications"]

KEPT_OF_A_VERSION: Final = 4
"""And the last one that can be used."""
KEPT_OF_BOTH: Final = 256
"""Of an id that was published as a fence and as a gate: which of them stands follows from their order."""
_FAR_AHEAD: Final = "ahead: it was published by a clock more than five minutes ahead"
_WORDS: Final = frozenset({"ahead", *SignatureFault})


class ReferencePublications(Generic[Made]):
    """Takes messages in one thread; what is in force may be asked for in another. `trust`: whose are taken now.

    `usable` makes something of a text, or raises one of `faults`.

    `messages_refused`: messages that are no publications, by the first word of why; `last_refused` is the last of them.
    """

    def __init__(
        self,
        kind: Kind,
        usable: Callable[[str], Usable[Made]],
        faults: tuple[type[Exception], ...],
        trust: Callable[[], ReferenceTrust],
    ) -> None:
        self.kind, self._usable, self._faults, self._trust = kind, usable, faults, trust
        self._lock = threading.Lock()
        self._kept: dict[tuple[str, str], list[JudgedPublication[Made]]] = {}
        self._digests: dict[str, str] = {}
        self._types: dict[str, set[type[Made]]] = {}
        self.messages_refused: Counter[str] = Counter()
        self.last_refused = ""

    def __len__(self) -> int:
        return len(self._digests)

    def take(self, message: TopicMessage, now_ms: float) -> QuarantinedMessage | None:
        """Takes a message of the topic, as often as it comes; what it is where it is no publication."""
        read = read_messages(self.kind, [_columns(message)], self._trust(), self._digests)
        refused = [named_message(row) for row in read.quarantined]
        for row in read.publications:
            try:
                self._keep(row, now_ms)
            except ValueError as fault:
                refused.append(named_message(quarantined_publication(row, str(fault))))
        if not refused:
            return None
        self._note_refused(refused[0])
        return refused[0]

    def begin_again(self) -> None:
        """All messages come again. What was taken before stays taken, as at the centre."""
        self.messages_refused.clear()

    def in_force(self) -> InForce[Made]:
        """The versions in force, and the publications that cannot be used."""
        with self._lock:
            kept = [one for several in self._kept.values() for one in several]
        return held_versions(sorted(kept, key=lambda one: publication_order(one.row)))

    def _keep(self, row: dict[str, Any], now_ms: float) -> None:
        name = row["publication_id"]
        known = self._digests.get(name)
        check_content(row, known or row["digest"])
        if is_far_ahead(name, now_ms):
            raise ValueError(_FAR_AHEAD)
        if known is not None:
            return
        judged = judged_publication(row, lambda _, body: self._usable(body), self._faults)
        # of a hundred thousand fences the texts alone would take as much as their index
        slim = {key: row[key] for key in ("kind", "id", "publication_id", "published_at", "place")}
        one = JudgedPublication(slim, judged.written, judged.usable, judged.reason)
        with self._lock:
            self._digests[name] = row["digest"]
            several = self._kept.setdefault((row["id"], judged.written), [])
            several.append(one)
            several.sort(key=lambda one: publication_order(one.row))
            gone = {one.row["publication_id"] for one in _superseded(several, self._kept_of(row["id"], one))}
            several[:] = [one for one in several if one.row["publication_id"] not in gone]
            # a compacted topic brings what is gone never again, and the digest would stay for good
            for old in gone:
                del self._digests[old]

    def _kept_of(self, name: str, one: JudgedPublication[Made]) -> int:
        """How many publications of each version of an id matter: of one that is two things the order of all."""
        types = self._types.setdefault(name, set())
        if one.usable is not None:
            types.add(type(one.usable.made))
        return KEPT_OF_A_VERSION if len(types) < 2 else KEPT_OF_BOTH

    def _note_refused(self, refused: QuarantinedMessage) -> None:
        self.messages_refused[_reason_word(refused.reason)] += 1
        self.last_refused = str(refused)


def _superseded(several: list[JudgedPublication[Made]], most: int) -> list[JudgedPublication[Made]]:
    """Of publications of one version, in their order, those that cannot matter any more."""
    usable = next((one for one in reversed(several) if one.usable is not None), None)
    return [one for one in several[:-most] if one is not usable]


def _reason_word(reason: str) -> str:
    word = reason.partition(":")[0]
    return word if word in _WORDS else "not-a-publication"


def _columns(message: TopicMessage) -> dict[str, Any]:
    """A message as the source `pulsar` has it, but that where it stands is said by when it was published."""
    published_at = datetime.fromtimestamp(message.published_ms / 1000, UTC)
    return {
        "key": message.key,
        "value": message.body,
        "properties": [*message.properties.items()],
        "publish_time": published_at,
        "message_id": f"{published_at:%Y-%m-%dT%H:%M:%SZ}",
        "malformed": None,
    }
