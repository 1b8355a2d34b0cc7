"""The agent: buffer, intake and drain put together, started and stopped."""

from __future__ import annotations

import fcntl
import os
import random
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import IO

import structlog

from edge_agent.checking import PULSAR_MISSING
from edge_agent.clock.clocks import Clocks, SystemClocks
from edge_agent.clock.jumps import ClockMonitor, CorrectionRules
from edge_agent.config import AgentSettings, TimeSettings, UplinkSettings
from edge_agent.control_dead_letters import ControlDeadLetters
from edge_agent.data_usage import FlashMeter
from edge_agent.drain.drainer import Drainer, DrainParts
from edge_agent.drain.link_budget import LinkBudget
from edge_agent.enrolment.certificate_folder import CertificateFolder
from edge_agent.enrolment.certificate_state import certificate_folder
from edge_agent.enrolment.enrolment_loop import EnrolmentLoop, EnrolmentParts
from edge_agent.enrolment.uplink_certificates import UplinkCertificates
from edge_agent.errors import LinkError, StoreInUse
from edge_agent.intake.intake_loop import IntakeLoop
from edge_agent.intake.record_intake import Intake, IntakeParts
from edge_agent.process import flash_bytes
from edge_agent.store.buffer import Buffer
from edge_agent.store.buffer_file import RESERVE_BYTES
from edge_agent.store.clock_correction import ClockCorrector
from edge_agent.store.database import BufferOptions
from edge_agent.store.lineage import next_epoch
from edge_agent.store.retention import BufferRetention
from edge_agent.uplink.mqtt import MqttUplink
from edge_agent.uplink.protocol import Uplink

log = structlog.get_logger("edge_agent")

STOP_WITHIN_S = 1.5
"""Intake gets this long to commit what waits; systemd and the contract allow 2 s."""
LOCK_RETRY_S = 0.05
RESTART_WITHIN_S = 20.0
"""A commit on a slow medium gets this long before settings are loaded anew; after that the process has to end."""


class Agent:
    """One device's agent, from `start` to `stop`."""

    def __init__(
        self,
        settings: AgentSettings,
        clocks: Clocks | None = None,
        on_push: Callable[[bytes], None] = lambda _text: None,
    ) -> None:
        """Takes the buffer's folder and opens the buffer. `on_push` hears of pushed settings. Raises StoreError."""
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
        self.buffer = Buffer(settings.buffer.path, options)
        rules = _correction_rules(settings.time)
        clock_corrector = ClockCorrector(self.buffer, rules)
        offset_us, _ = clock_corrector.resume(self._clocks.boot, self._clocks.wall_us() - self._clocks.monotonic_us())
        self.link_budget = LinkBudget(settings, self.buffer.counters)
        self.dead_letters = ControlDeadLetters(settings.buffer.path)
        folder = certificate_folder(settings)
        self._certificates = None if folder is None else UplinkCertificates(folder)
        drain = DrainParts(
            buffer=self.buffer,
            clock_corrector=clock_corrector,
            link_budget=self.link_budget,
            make_uplink=self._uplink,
            random=random.Random(),
            dead_letters=self.dead_letters,
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
            on_commit=self.drainer.inbox.on_committed,
            on_missed=self.drainer.inbox.on_missed,
            on_jump=self.drainer.inbox.on_jump,
            on_statement=self.drainer.inbox.on_statement,
        )
        self.intake = Intake(settings, parts)
        self.intake_loop = IntakeLoop(settings.intake, self.intake, random.Random())
        self.flash = FlashMeter(self.buffer.counters, flash_bytes)
        self._threads = [
            threading.Thread(target=self.intake_loop.run, name="intake", daemon=True),
            threading.Thread(target=self.drainer.run, name="drain", daemon=True),
        ]

    def start(self) -> None:
        """Starts both threads."""
        log.info("started", device=self.settings.device.id, epoch=self.buffer.epoch, head=self.buffer.head)
        for thread in self._threads:
            thread.start()
        if self.enrolment is not None:
            threading.Thread(target=self.enrolment.run, name="certificate", daemon=True).start()

    def stop(self, within_s: float = STOP_WITHIN_S) -> bool:
        """Commits what waits, stores what was acknowledged, and closes the buffer; whether all of it was done in time.

        A thread that does not end in time may be in the middle of a commit: the buffer and its lock stay as they are,
        and the process must end without opening them again. That is as safe as SIGKILL.
        """
        deadline_s = time.monotonic() + within_s
        self.intake_loop.stop()
        self.drainer.inbox.stop()
        if self.enrolment is not None:
            self.enrolment.stop()
        for thread in filter(threading.Thread.is_alive, self._threads):
            thread.join(max(0.0, deadline_s - time.monotonic()))
        stuck = [thread.name for thread in self._threads if thread.is_alive()]
        if stuck:
            log.error("a thread does not end", threads=stuck)
            return False
        self.buffer.close()
        # After the buffer: without the lock another agent may open it.
        self._lock_file.close()
        log.info("stopped", head=self.buffer.head)
        return True

    @property
    def is_running(self) -> bool:
        """Whether both threads live."""
        return all(thread.is_alive() for thread in self._threads)

    def _enrolment_loop(self, folder: CertificateFolder | None) -> EnrolmentLoop | None:
        if self.settings.enrolment is None or folder is None:
            return None
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
        if settings.kind == "pulsar":
            try:
                from edge_agent.uplink.pulsar import PulsarUplink  # noqa: PLC0415 - only large sites have its library
            except ImportError as error:
                raise LinkError(f"{settings.region}: {PULSAR_MISSING}") from error
            return PulsarUplink(self.settings.device, settings)
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
    def certificate_problem(self) -> str:
        """Why the device has no certificate, no new one, or does not use the newest; "" where nothing is wrong."""
        asked = "" if self.enrolment is None else self.enrolment.problem
        used = "" if self._certificates is None else self._certificates.problem
        return asked or used

    def _on_certificate_answer(self, payload: bytes) -> None:
        if self.enrolment is not None:
            self.enrolment.on_answer(payload)


def _correction_rules(settings: TimeSettings) -> CorrectionRules:
    return CorrectionRules(
        same_clock_us=int(settings.same_clock_s * 1_000_000),
        drift_ppm=settings.drift_ppm,
        jump_us=int(settings.jump_s * 1_000_000),
    )


def _lock_folder(folder: Path) -> IO[bytes]:
    """An exclusive lock on the buffer's folder, held until the file is closed. Raises StoreInUse."""
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
