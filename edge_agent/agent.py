"""The agent: assembles buffer, intake and drain, and starts and stops them."""

from __future__ import annotations

import fcntl
import os
import random
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import structlog

from edge_agent.clocks import ClockMonitor, Clocks, CorrectionRules, SystemClocks
from edge_agent.config import AgentSettings, UplinkSettings
from edge_agent.drain.drainer import Drainer, DrainParts
from edge_agent.drain.link_budget import LinkBudget
from edge_agent.enrolment.certificates import (
    CertificateFolder,
    UplinkCertificates,
    certificate_folder,
    certificate_state,
)
from edge_agent.errors import StoreInUse
from edge_agent.intake.intake_loop import IntakeLoop
from edge_agent.intake.messages import NONE, SILENT_S, MessageParser
from edge_agent.intake.record_intake import Intake, IntakeParts
from edge_agent.store.buffer import RESERVE_BYTES, Buffer
from edge_agent.store.clock_correction import ClockCorrector
from edge_agent.store.database import BufferOptions
from edge_agent.store.epochs import next_epoch
from edge_agent.store.retention import BufferRetention
from edge_agent.uplink.mqtt import MqttUplink
from edge_agent.uplink.protocol import Uplink
from edge_agent.vehicle_broker import KEEPS, UNPROVEN
from waybill.daemon.logs import log_thread
from waybill.daemon.process import resident_bytes

if TYPE_CHECKING:
    from edge_agent.enrolment.enrolment_loop import EnrolmentLoop

# The state of a running agent as plain values.

STALE_S = 60.0
"""A thread without a sign of life for this long is stuck."""


def counters_of(agent: Agent) -> dict[str, Any]:
    """Counters since the settings were loaded."""
    intake, sent = agent.intake.counters, agent.drainer.dispatcher.counters
    return {
        "control_unreadable": agent.drainer.control_unreadable,
        "messages": intake.messages,
        "commits": intake.commits,
        "vehicle_sessions_lost": agent.intake_loop.broker_watch.sessions_lost,
        "malformed": dict(intake.malformed),
        "not_recorded": intake.not_recorded,
        "left_out_members": dict(intake.left_out_members),
        "enrolment": dict(agent.enrolment.outcomes) if agent.enrolment is not None else {},
        "batches_sent": sent.batches,
        "batches_again": sent.resent,
        "heartbeats_sent": agent.drainer.statements.heartbeats,
        "records_sent": sent.records.total(),
        "sent_by_class": {one.name: sent.records[index] for index, one in enumerate(agent.settings.classes)},
        "wire_bytes_sent": agent.link_budget.sent_bytes,
        "wire_bytes_received": agent.link_budget.received_bytes,
    }


def current_state(agent: Agent) -> dict[str, Any]:
    """The state of connections and link budget, with the counters of `counters_of`."""
    drain, intake, usage = agent.drainer, agent.intake_loop, agent.link_budget.usage
    return {
        **counters_of(agent),
        "local_broker": intake.connected,
        "vehicle_broker": intake.broker_watch.state(time.monotonic()),
        "arrivals": agent.arrivals,
        "arrivals_proven": agent.arrivals != UNPROVEN,
        "unreadable": agent.intake.unreadable.rows(),
        "mappings": agent.intake.parser.rows(),
        "messages_readable": agent.intake.unreadable.state(time.monotonic()) != NONE,
        "vehicle_broker_dropped": intake.broker_watch.dropped,
        "region": drain.health.connected_region,
        "uplink_healthy": drain.health.is_healthy,
        "uplink": uplink_state(agent),
        "paused_for_s": round(drain.paused_for_s, 1),
        "link": agent.link_budget.link,
        **certificate_state(agent.settings, time.time()),
        "certificate_problem": agent.certificate_problem or None,
        # Only the region knows whether it accepts a certificate that has not ended.
        "uplink_problem": drain.regions.last_failure or None,
        "held_back": agent.link_budget.held_classes(),
        "waiting_for_commit": agent.intake.waiting,
        "retrying": drain.dispatcher.retrying,
        "in_flight": drain.dispatcher.in_flight,
        "wire_bytes_today": usage.day_bytes,
        "wire_bytes_this_month": usage.month_bytes,
        "rss_bytes": resident_bytes(),
    }


def uplink_state(agent: Agent) -> str:
    """`acknowledges`, `unknown` (connected, but no acknowledgement yet), `silent`, `no gateway`, `not connected`, or
    `taken over`.

    `taken over`: the broker closes connections repeatedly, probably because another agent uses this device's id.
    """
    drain = agent.drainer
    if drain.regions.takeovers.is_suspected:
        return "taken over"
    if drain.health.connected_region is None:
        return "not connected"
    if drain.health.gateway_absent:
        return "no gateway"
    if not drain.health.is_healthy:
        return "silent"
    return "acknowledges" if drain.health.region_acked else "unknown"


def buffer_state(agent: Agent) -> str:
    """`stores`, `cannot commit`, or `drops records` (in the last minute, to free space)."""
    if agent.intake.is_failing:
        return "cannot commit"
    dropped_at_s = agent.retention.dropped_at_s
    is_dropping = dropped_at_s is not None and time.monotonic() - dropped_at_s < STALE_S
    return "drops records" if is_dropping else "stores"


def health_state(agent: Agent) -> dict[str, Any]:
    """The content of `/health`. `healthy` is null until a region has acknowledged something."""
    uplink, alive, local, buffer = (
        uplink_state(agent),
        is_alive(agent),
        agent.intake_loop.connected,
        buffer_state(agent),
    )
    certificate = certificate_state(agent.settings, time.time())["certificate"]
    vehicle_broker = agent.intake_loop.broker_watch.state(time.monotonic())
    messages = agent.intake.unreadable.state(time.monotonic())
    arrivals = agent.arrivals
    is_kept = (vehicle_broker, buffer) == (KEEPS, "stores") and messages != NONE
    silent = [one["mapping"] for one in agent.intake.parser.rows() if one["silent_s"] >= SILENT_S]
    near = alive and local and is_kept and arrivals != UNPROVEN and certificate not in {"none", "expired"}
    return {
        "healthy": None if near and uplink == "unknown" else near and uplink == "acknowledges",
        "threads": alive,
        "local_broker": local,
        "vehicle_broker": vehicle_broker,
        "messages": messages,
        "arrivals": arrivals,
        "mappings": f"no record: {', '.join(silent)}" if silent else "read",
        "buffer": buffer,
        "uplink": uplink,
        "certificate": certificate,
        "held_back": agent.link_budget.held_classes(),
    }


def is_alive(agent: Agent) -> bool:
    """Whether both threads run and have reported recently."""
    now_s = time.monotonic()
    beats = (agent.intake_loop.heartbeat_s, agent.drainer.heartbeat_s)
    return agent.is_running and all(now_s - beat_s < STALE_S for beat_s in beats)


log = structlog.get_logger("edge_agent")

STOP_WITHIN_S = 1.5
"""Time for the intake to commit what waits; systemd allows 5 s, the contract 2 s."""
LOCK_RETRY_S = 0.05
RESTART_WITHIN_S = 20.0
"""Time for a commit on a slow medium before a restart of the agent; after that the process has to end."""


class Agent:
    def __init__(
        self,
        settings: AgentSettings,
        clocks: Clocks | None = None,
        on_push: Callable[[bytes], None] = lambda _text: None,
    ) -> None:
        """Locks the buffer's folder and opens the buffer. `on_push` receives pushed settings. Raises StoreError."""
        self.settings = settings
        self._clocks = clocks or SystemClocks.of_this_boot()
        self._lock_file = _lock_folder(settings.buffer.path)
        options = BufferOptions(
            tenant=settings.device.tenant,
            device=settings.device.id,
            recent_size=settings.intake.receive_maximum + settings.buffer.commit_records,
            epoch_for=self._epoch_above,
            reserve_bytes=RESERVE_BYTES,
        )
        try:
            self.buffer = Buffer(settings.buffer.path, options)
        except BaseException:
            self._lock_file.close()
            raise
        rules = CorrectionRules()
        clock_corrector = ClockCorrector(self.buffer, rules)
        offset_us, _ = clock_corrector.resume(self._clocks.boot, self._clocks.wall_us() - self._clocks.monotonic_us())
        self.link_budget = LinkBudget(settings, self.buffer.counters)
        folder = certificate_folder(settings)
        self._certificates = None if folder is None else UplinkCertificates(folder)
        drain = DrainParts(
            buffer=self.buffer,
            clock_corrector=clock_corrector,
            link_budget=self.link_budget,
            make_uplink=self._uplink,
            random=random.Random(),
            on_push=on_push,
            on_certificate_answer=self._on_certificate_answer,
        )
        self.drainer = Drainer(settings, drain)
        self.enrolment = self._enrolment_loop(folder)
        """Keeps the device's certificate; None where that is given by hand."""
        self.retention = BufferRetention(self.buffer, settings.buffer, settings.classes)
        parts = IntakeParts(
            buffer=self.buffer,
            retention=self.retention,
            clocks=self._clocks,
            clock_monitor=ClockMonitor(self._clocks.boot, offset_us, rules.jump_us),
            correction=rules,
            parser=_parser_of(settings),
            on_commit=self.drainer.inbox.on_committed,
            on_missed=self.drainer.inbox.on_missed,
            on_jump=self.drainer.inbox.on_jump,
            on_statement=self.drainer.inbox.on_statement,
        )
        self.intake = Intake(settings, parts)
        self.intake_loop = IntakeLoop(settings.intake, self.intake, random.Random())
        self._threads = [log_thread("intake", self.intake_loop.run), log_thread("drain", self.drainer.run)]

    def start(self) -> None:
        log.info("started", device=self.settings.device.id, epoch=self.buffer.epoch, head=self.buffer.head)
        for thread in self._threads:
            thread.start()
        if self.enrolment is not None:
            log_thread("certificate", self.enrolment.run).start()

    def stop(self, within_s: float = STOP_WITHIN_S) -> bool:
        """Commits what waits, stores acknowledgements and closes the buffer; returns whether it finished in time.

        A thread that does not end in time may be committing. Then the buffer and its lock stay open, and the process
        must end without opening them again, which is as safe as SIGKILL.
        """
        deadline_s = time.monotonic() + within_s
        self.ask_to_stop()
        for thread in filter(threading.Thread.is_alive, self._threads):
            thread.join(max(0.0, deadline_s - time.monotonic()))
        stuck = [thread.name for thread in self._threads if thread.is_alive()]
        if stuck:
            log.error("a thread did not stop", threads=stuck)
            return False
        self.buffer.close()
        # After the buffer: without the lock another agent could open it.
        self._lock_file.close()
        log.info("stopped", head=self.buffer.head)
        return True

    def ask_to_stop(self) -> None:
        """Makes the threads end; `stop` waits for them."""
        self.intake_loop.stop()
        self.drainer.inbox.stop()
        if self.enrolment is not None:
            self.enrolment.stop()

    @property
    def is_running(self) -> bool:
        return all(thread.is_alive() for thread in self._threads)

    def _enrolment_loop(self, folder: CertificateFolder | None) -> EnrolmentLoop | None:
        if self.settings.enrolment is None or folder is None:
            return None
        from edge_agent.enrolment.enrolment_loop import EnrolmentLoop, EnrolmentParts  # noqa: PLC0415 - see its head

        inbox = self.drainer.inbox
        parts = EnrolmentParts(
            folder=folder,
            ask_region=inbox.ask_certificate,
            on_certificate=inbox.connect_now,
            random=random.Random(),
        )
        return EnrolmentLoop(self.settings.enrolment, self.settings.device, parts)

    def _epoch_above(self, least: int) -> int:
        return next_epoch(least, self._clocks.wall_us() // 1000)

    def _uplink(self, settings: UplinkSettings) -> Uplink:
        if self._certificates is None:
            return MqttUplink(self.settings.device, settings)
        shown = self._certificates.with_certificate(settings)
        return MqttUplink(
            self.settings.device,
            shown,
            is_enrolled=shown is not settings,
            on_opened=partial(self._certificates.on_opened, shown),
        )

    @property
    def arrivals(self) -> str:
        """Whether messages without a time get that of their arrival: the state of `ArrivalMarker`."""
        return self.intake.arrivals.state(self._clocks.monotonic_us())

    @property
    def certificate_problem(self) -> str:
        """Why the device has no certificate, cannot renew it, or does not use the newest one; "" if nothing is
        wrong.
        """
        asked = "" if self.enrolment is None else self.enrolment.problem
        used = "" if self._certificates is None else self._certificates.problem
        return asked or used

    def _on_certificate_answer(self, payload: bytes) -> None:
        if self.enrolment is not None:
            self.enrolment.on_answer(payload)


def _parser_of(settings: AgentSettings) -> MessageParser:
    if not settings.mappings:
        return MessageParser()
    from edge_agent.mapping.parser import compile_mappings  # noqa: PLC0415 - memory that most agents do not need

    return compile_mappings(settings.mappings, settings.device.levels)


def _lock_folder(folder: Path) -> IO[bytes]:
    """Locks the buffer's folder exclusively until the returned file is closed. Raises StoreInUse."""
    folder.mkdir(parents=True, exist_ok=True)
    lock_file = (folder / "lock").open("wb")
    for is_last in (False, False, False, True):
        try:
            fcntl.flock(lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except OSError as error:
            if is_last:
                lock_file.close()
                raise StoreInUse(f"another agent uses {folder}") from error
            time.sleep(LOCK_RETRY_S)  # `status` asks with this lock, for a moment, whether an agent runs
    os.set_inheritable(lock_file.fileno(), False)
    return lock_file
