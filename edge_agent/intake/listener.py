"""The thread that takes messages in: subscribe, parse, group, commit, and only then acknowledge."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random

import structlog

from edge_agent.clock.clocks import Clocks
from edge_agent.config import AgentSettings
from edge_agent.errors import LinkError, StoreError, StoreFailing
from edge_agent.intake.classes import Classifier
from edge_agent.intake.group_commit import CommitBudget, GroupCommit
from edge_agent.intake.parse import parse_message
from edge_agent.intake.redelivery import Arrival, arrival_of
from edge_agent.mqtt import Message, Session, SessionOptions
from edge_agent.store.block import Block, Unnamed
from edge_agent.store.buffer import Buffer
from edge_agent.uplink.backoff import Backoff

log = structlog.get_logger("edge_agent.intake")

LONGEST_WAIT_S = 10.0
RETRY_FIRST_S = 0.2
RETRY_MOST_S = 10.0


@dataclass(slots=True)
class Taken:
    """Counters of the intake since the agent started."""

    messages: int = 0
    payload_bytes: int = 0
    commits: int = 0
    odd: dict[str, int] = field(default_factory=dict)


class Listener:
    """Runs in one thread (`run`); `stop` and the counters are for others. `on_commit` hears of every commit."""

    def __init__(
        self,
        settings: AgentSettings,
        buffer: Buffer,
        clocks: Clocks,
        random: Random,
        on_commit: Callable[[Sequence[Block]], None],
    ) -> None:
        self._settings = settings
        self._buffer = buffer
        self._clocks = clocks
        self._on_commit = on_commit
        self._backoff = Backoff(settings.intake.backoff_first_s, settings.intake.backoff_most_s, random)
        self._retry = Backoff(RETRY_FIRST_S, RETRY_MOST_S, random)
        self._classify = Classifier(settings.classes)
        self._urgent = [one.urgent for one in settings.classes]
        size = settings.buffer
        budget = CommitBudget(delay_s=size.commit_delay_ms / 1000, records=size.commit_records, size=size.commit_bytes)
        self._group = GroupCommit(budget)
        self._waiting: list[Unnamed] = []
        self._waiting_arrivals: set[Arrival] = set()
        self._mids: list[int] = []
        self._session: Session | None = None
        self._stopping = threading.Event()
        self.taken = Taken()
        self.connected = False

    def stop(self) -> None:
        """Commits what waits and ends the thread."""
        self._stopping.set()
        session = self._session
        if session is not None:
            session.wake()

    def run(self) -> None:
        """Until `stop`: connect, listen, and after every failure wait and try again."""
        while not self._stopping.is_set():
            try:
                self._listen()
            except LinkError as error:
                log.warning("local broker lost", error=str(error))
            self.connected = False
            # Without a connection nothing can be acknowledged; the broker will deliver again, and the ring will know.
            self._mids.clear()
            self._commit_until_done()
            self._close_session()
            self._stopping.wait(self._backoff.failed() if not self._stopping.is_set() else 0)

    def _listen(self) -> None:
        intake = self._settings.intake
        options = SessionOptions(
            client_id=intake.client_id,
            receive_maximum=intake.receive_maximum,
            max_packet_bytes=intake.max_message_bytes,
        )
        self._session = session = Session(intake, options, self._take)
        session.open()
        session.subscribe(intake.topic)
        self.connected = True
        self._backoff.succeeded()
        log.info("listening", broker=f"{intake.host}:{intake.port}", topic=intake.topic)
        while not self._stopping.is_set():
            due_s = self._group.due_in(time.monotonic())
            if due_s == 0:
                self._commit(session)
            session.poll(LONGEST_WAIT_S if due_s is None else due_s)
        self._commit(session)
        session.poll(0)

    def _take(self, message: Message) -> None:
        topic, payload = message.topic, message.payload
        arrival = arrival_of(message.mid, topic, payload)
        if message.dup and arrival in self._buffer.ring:
            self._buffer.tally("duplicates", 1)
            assert self._session is not None
            self._session.acknowledge(message.mid)
            return
        if message.dup and arrival in self._waiting_arrivals:
            return
        parsed = parse_message(topic, payload)
        if parsed.odd:
            self.taken.odd[parsed.odd] = self.taken.odd.get(parsed.odd, 0) + 1
        index = self._classify(topic)
        wall_us = self._clocks.wall_us()
        time_us = wall_us if parsed.device_time_us is None else parsed.device_time_us
        self._waiting.append(
            Unnamed(index, parsed.body, time_us, self._clocks.monotonic_us(), self._clocks.boot, arrival)
        )
        if message.qos:
            self._mids.append(message.mid)
            self._waiting_arrivals.add(arrival)
        self.taken.messages += 1
        self.taken.payload_bytes += len(payload)
        self._group.add(time.monotonic(), len(payload), urgent=self._urgent[index])

    def _commit(self, session: Session) -> None:
        """Commits what waits and acknowledges it; a buffer that cannot leaves all of it waiting at the broker."""
        if self._store():
            mids, self._mids = self._mids, []
            for mid in mids:
                session.acknowledge(mid)
        else:
            self._stopping.wait(self._retry.failed())

    def _commit_until_done(self) -> None:
        while not self._store() and not self._stopping.wait(self._retry.failed()):
            pass

    def _store(self) -> bool:
        if self._waiting:
            try:
                blocks = self._buffer.commit(self._waiting, self._clocks.wall_us() // 1000)
            except StoreError as error:
                return self._after_failure(error)
            self._after_success(blocks)
        return True

    def _after_success(self, blocks: Sequence[Block]) -> None:
        self.taken.commits += 1
        self._retry.succeeded()
        self._group.committed(time.monotonic())
        self._waiting.clear()
        self._waiting_arrivals.clear()
        self._on_commit(blocks)

    def _after_failure(self, error: StoreError) -> bool:
        log.error("the buffer cannot commit", reason=error.reason, error=str(error), waiting=len(self._waiting))
        self._buffer.tally(f"failed_commits_{error.reason}", 1)
        if not isinstance(error, StoreFailing):
            return False
        head = self._buffer.head
        try:
            self._buffer.reopen()
        except StoreError as again:
            log.error("the buffer cannot be opened again", reason=again.reason, error=str(again))
            return False
        stored = self._buffer.head - head
        assert stored in {0, len(self._waiting)}, "a commit is whole or absent"
        if stored:
            self._after_success([])
        return bool(stored)

    def _close_session(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.close()
