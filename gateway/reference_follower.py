"""One kind of reference data, followed: read from its topic in one thread, and made into what a daemon goes by.

Before the topic was read to its end once nothing is made: nobody goes by half of it. Afterwards a change is built in a
thread of its own, and what is made of it stands in the place of what was used before once it is whole.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, Final, Generic, NamedTuple, TypeVar

import structlog

from gateway.reference_publications import ReferencePublications
from geo.reference.in_force import InForce, Made, RefusedVersion
from geo.reference.messages import ANYBODY, NAMESPACE, TOPICS, ReferenceTrust
from waybill.identity.registry_messages import FollowedOperators
from waybill.pulsar.compacted_topic import CompactedTopicReader, TopicMessage, TopicStanding
from waybill.pulsar.pulsar_client import PulsarAccess

__all__ = ["MAX_NAMED", "SETTLE_S", "ReferenceFacts", "ReferenceFollower"]

Rules = TypeVar("Rules")

SETTLE_S: Final = 0.5
"""Publications come one after the other: so long nothing has come before rules are made of them, ..."""
MAX_SETTLE_S: Final = 5.0
"""... and after so long they are made however many come."""
MAX_NAMED: Final = 100
"""Of what cannot be used so many are named in a line of the log."""
_TURN_S: Final = 0.1
_CLOSE_S: Final = 2.0
_LOG = structlog.get_logger("reference")


class ReferenceFacts(NamedTuple):
    """What is known of one kind: publications that cannot be used, messages that are none.

    `problem`: why it is not known to its end; empty while it is.
    """

    held: int
    refused: tuple[RefusedVersion, ...]
    messages_refused: dict[str, int]
    last_refused: str
    unreachable_since_s: float | None
    problem: str


class ReferenceFollower(Generic[Made, Rules]):
    """`rules` are those in use, None before there are any. `make` makes them of what is in force.

    `operators`: the trusted keys; None: what nobody signed is taken, too.
    """

    def __init__(
        self,
        service_url: str,
        access: PulsarAccess,
        operators: FollowedOperators | None,
        publications: Callable[[Callable[[], ReferenceTrust]], ReferencePublications[Made]],
        make: Callable[[InForce[Made]], Rules],
    ) -> None:
        self._operators = operators
        self._publications = publications(self._trust)
        self._make = make
        self._reader = CompactedTopicReader(
            service_url,
            access,
            f"{NAMESPACE}/{TOPICS[self._publications.kind]}",
            self._on_message,
            self._on_standing,
            # All that was published: compaction keeps the last of each key, and that may be one that nobody takes.
            is_compacted=False,
            starts_anew=self._starts_anew,
        )
        self._changed, self._stop = threading.Event(), threading.Event()
        self._changed_s = 0.0
        name = f"builds {TOPICS[self._publications.kind]}"
        self._builder = threading.Thread(target=self._build, name=name, daemon=True)
        self._made: tuple[Rules, InForce[Made]] | None = None

    @property
    def rules(self) -> Rules | None:
        """The rules in use; None before the topic was read to its end for the first time."""
        return None if self._made is None else self._made[0]

    @property
    def is_running(self) -> bool:
        """Whether both threads run."""
        return self._reader.is_running and self._builder.is_alive()

    @property
    def in_force(self) -> InForce[Made] | None:
        """What the rules in use are made of."""
        return None if self._made is None else self._made[1]

    @property
    def reference_facts(self) -> ReferenceFacts:
        """What is known now."""
        standing, found = self._reader.standing, self.in_force
        return ReferenceFacts(
            held=0 if found is None else len(found.held),
            refused=() if found is None else found.refused,
            messages_refused=dict(self._publications.messages_refused),
            last_refused=self._publications.last_refused,
            unreachable_since_s=standing.unreachable_since_s,
            problem=self._problem(standing),
        )

    def start(self) -> None:
        """Begins to read and to build."""
        self._reader.start()
        self._builder.start()

    def close(self) -> None:
        """Stops both."""
        self._stop.set()
        self._reader.close()
        self._builder.join(_CLOSE_S)

    def _problem(self, standing: TopicStanding) -> str:
        problem = standing.last_unhandled if standing.is_current else standing.problem or "not read to their end yet"
        problem = problem or ("" if self._made is not None else "rules are being made of them")
        return problem or (self._operators.problem if self._operators is not None else "")

    def _trust(self) -> ReferenceTrust:
        return ANYBODY if self._operators is None else ReferenceTrust(self._operators.keys)

    def _starts_anew(self) -> bool:
        if self._operators is None or not self._operators.look():
            return False
        self._publications.begin_again()
        return True

    def _on_message(self, message: TopicMessage) -> None:
        if refused := self._publications.take(message, time.time() * 1000):
            _LOG.warning("a message that is no publication", kind=self._publications.kind, refused=str(refused))
            return
        self._note_change()

    def _on_standing(self, standing: TopicStanding) -> None:
        if standing.is_current:
            self._note_change()

    def _note_change(self) -> None:
        self._changed_s = time.monotonic()
        self._changed.set()

    def _build(self) -> None:
        while not self._stop.is_set():
            if not self._changed.wait(_TURN_S) or not self._reader.standing.was_current:
                self._stop.wait(_TURN_S)
                continue
            self._wait_until_settled()
            self._changed.clear()
            began_s, in_force = time.monotonic(), self._publications.in_force()
            if self._made is not None and _publications_of(self._made[1]) == _publications_of(in_force):
                continue
            # the last ones stay in use until these are whole
            rules = self._make(in_force)
            self._made = (rules, in_force)
            _LOG.info(
                "in force",
                kind=self._publications.kind,
                count=len(in_force.held),
                seconds=round(time.monotonic() - began_s, 3),
            )
            _log_refused(self._publications.kind, in_force.refused)

    def _wait_until_settled(self) -> None:
        if self._made is None:
            # To the end for the first time, and whoever reads along waits for the first rules.
            return
        ends_s = time.monotonic() + MAX_SETTLE_S
        while (now_s := time.monotonic()) < min(self._changed_s + SETTLE_S, ends_s) and not self._stop.is_set():
            self._stop.wait(min(_TURN_S, max(self._changed_s + SETTLE_S - now_s, 0.001)))


def _publications_of(found: InForce[Any]) -> list[str]:
    return [*(one.row["publication_id"] for one in found.held), *(one.publication_id for one in found.refused)]


def _log_refused(kind: str, refused: tuple[RefusedVersion, ...]) -> None:
    if refused:
        named = [str(one) for one in refused[:MAX_NAMED]]
        more = max(len(refused) - MAX_NAMED, 0)
        _LOG.warning("publications that cannot be used", kind=kind, count=len(refused), refused=named, not_named=more)
