"""The thread that takes messages in: connect, subscribe, listen, commit, and only then acknowledge."""

from __future__ import annotations

import threading
import time
from random import Random

import structlog

from edge_agent.config import IntakeSettings
from edge_agent.errors import LinkError
from edge_agent.intake.reception import Reception
from edge_agent.mqtt import Message, Session, SessionOptions
from edge_agent.uplink.backoff import Backoff

log = structlog.get_logger("edge_agent.intake")

LONGEST_WAIT_S = 10.0
RETRY_FIRST_S = 0.2
RETRY_MOST_S = 5.0


class Listener:
    """Runs in one thread (`run`); `stop` and the properties are for others."""

    def __init__(self, intake: IntakeSettings, reception: Reception, random: Random) -> None:
        self._intake = intake
        self.reception = reception
        self._backoff = Backoff(intake.backoff_first_s, intake.backoff_most_s, random)
        self._retry = Backoff(RETRY_FIRST_S, RETRY_MOST_S, random)
        self._session: Session | None = None
        self._stopping = threading.Event()
        self.connected = False
        self.beat_s = time.monotonic()
        """When the thread was last seen alive, by the monotonic clock."""

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
            self.reception.disconnected()
            self.beat_s = time.monotonic()
            while self.reception.commit(time.monotonic()) is None:
                self.beat_s = time.monotonic()
                if self._stopping.wait(self._retry.failed()):
                    break
            self._close_session()
            self._stopping.wait(0 if self._stopping.is_set() else self._backoff.failed())

    def _listen(self) -> None:
        intake = self._intake
        options = SessionOptions(
            client_id=intake.client_id,
            receive_maximum=intake.receive_maximum,
            max_packet_bytes=intake.max_message_bytes,
            cuts_larger=True,
        )
        self._session = session = Session(intake, options, self._take)
        session.open()
        self.reception.connected(resumed=session.is_resumed)
        # Not waited for: a broker that has kept messages sends them before it answers, and those want to be committed.
        session.subscribe(intake.topic)
        while not self._stopping.is_set():
            due_s = self.reception.due_in(time.monotonic())
            if due_s == 0 or self.reception.is_full:
                self._commit(session)
            session.poll(LONGEST_WAIT_S if due_s is None else due_s)
            if session.is_subscribed and not self.connected:
                self.connected = True
                self._backoff.succeeded()
                log.info("listening", broker=f"{intake.host}:{intake.port}", topic=intake.topic)
            self.reception.look_at_clocks()
            self.beat_s = time.monotonic()
        self._commit(session)
        session.poll(0)

    def _take(self, message: Message) -> None:
        if self.reception.take(message, time.monotonic()):
            assert self._session is not None
            self._session.acknowledge(message.mid)

    def _commit(self, session: Session) -> None:
        """Commits what waits and acknowledges it; a buffer that cannot leaves all of it waiting at the broker."""
        mids = self.reception.commit(time.monotonic())
        if mids is None:
            if self.reception.is_full:
                raise LinkError("the buffer cannot commit; the broker keeps what comes")
            self._stopping.wait(self._retry.failed())
            return
        self._retry.succeeded()
        for mid in mids:
            session.acknowledge(mid)

    def _close_session(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.close()
