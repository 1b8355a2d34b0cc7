"""One device of the agent's process: its `Agent`, restarts of it, and the trial of settings that were pushed to it."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

import structlog

from edge_agent.agent import RESTART_WITHIN_S, STOP_WITHIN_S, Agent, current_state
from edge_agent.clocks import SystemClocks
from edge_agent.devices import DeviceConfig
from edge_agent.errors import AgentError
from edge_agent.inspection import read_status
from edge_agent.push.pushed import PushRefused
from edge_agent.push.trial import PushTrial, TrialEvaluator
from waybill.daemon.backoff import Backoff

log = structlog.get_logger("edge_agent")

MAX_PUSHES: Final = 8
RETRY_FIRST_S: Final = 1.0
RETRY_MAX_S: Final = 60.0
"""The longest wait before a device that failed is tried again."""


class DeviceRunner:
    """Used by the thread of `Daemon.serve`, except `state` and what asks for a push.

    `on_settings` is called when other settings become effective, before the agent starts with them.
    """

    def __init__(self, device: DeviceConfig, on_settings: Callable[[], None]) -> None:
        self._device, self._on_settings = device, on_settings
        self._pushes: deque[bytes] = deque(maxlen=MAX_PUSHES)
        self._read_trial()
        self._agent: Agent | None = None
        self.is_open = False
        self._backoff = Backoff(RETRY_FIRST_S, RETRY_MAX_S, random.random)
        self._started_s = self._opened_s = time.monotonic()
        self.settings = self.trial.effective().settings
        self.retry_at_s = 0.0
        self.error = Exception("a thread ended")
        """Why no agent runs."""

    def _read_trial(self) -> None:
        """What the buffer's folder has of pushed settings; a trial that was interrupted ends."""
        self.trial = PushTrial(self._device.tables, self._device.settings, SystemClocks.of_this_boot().boot)
        self._evaluator: TrialEvaluator | None = None
        self._was_interrupted = self.trial.recover()

    @property
    def agent(self) -> Agent:
        """The one that runs, or ran last."""
        assert self._agent is not None, "it was opened"
        return self._agent

    @property
    def is_running(self) -> bool:
        return self.is_open and self.agent.is_running

    @property
    def is_busy(self) -> bool:
        """Whether `tick` has something to do soon."""
        return self._evaluator is not None or bool(self._pushes)

    def open(self) -> None:
        """Opens the buffer with the settings that are effective now. Raises AgentError, OSError."""
        effective = self.trial.effective()
        self.settings = effective.settings
        self._on_settings()
        if effective.reason:
            log.warning("pushed settings are skipped", reason=effective.reason)
        log.info("settings", pushed=effective.pushed)
        self._agent = Agent(effective.settings, on_push=self._pushed)
        self.is_open, self._opened_s = True, time.monotonic()
        if self._was_interrupted:
            self._was_interrupted = False
            self._report_taken_back("the agent stopped during the trial")

    def close(self, within_s: float) -> None:
        """Ends the agent. Raises AgentError if a thread does not end in time."""
        if self.is_open and not self.agent.stop(within_s):
            # Only the end of the process takes the buffer away from it for certain.
            raise AgentError("a thread does not end, and keeps the buffer")
        self.is_open = False

    def fail(self, error: Exception) -> None:
        """Remembers why the device does not run, and when to try it again."""
        now_s = time.monotonic()
        if now_s - self._opened_s > RETRY_MAX_S:
            self._backoff.reset()
        self.error, self.retry_at_s = error, now_s + self._backoff.take_delay_s()
        log.error("the device cannot run", error=str(error), again_in_s=round(self.retry_at_s - now_s, 1))

    def retry(self) -> None:
        """Starts a device again that failed: once it is closed, and after a wait. Raises AgentError, OSError."""
        if self.is_open:
            self.close(STOP_WITHIN_S)
            raise AgentError("a thread ended")
        self._read_trial()
        self._restart()

    def tick(self, now_s: float) -> None:
        """Goes on with a trial, or begins one of settings that were pushed."""
        if self._evaluator is not None:
            self._evaluate_trial(now_s, self._evaluator)
        elif self._pushes:
            self._try_pushed(self._pushes.popleft())

    def _try_pushed(self, text: bytes) -> None:
        """Begins the trial of a push. An error never ends the process: a retained push comes with every connection."""
        try:
            if not self.trial.begin(text, datetime.now(UTC)):
                return
        except PushRefused as error:
            self._report("refused", str(error))
            return
        except Exception as error:  # noqa: BLE001 - see above
            self._report("refused", f"not tried, and tried when it is delivered again: {error}")
            return
        log.info("trying pushed settings")
        self._restart()
        self._evaluator = TrialEvaluator(time.monotonic(), self.settings.push.confirm_s)

    def _evaluate_trial(self, now_s: float, evaluator: TrialEvaluator) -> None:
        health = self.agent.drainer.health
        waits = any(depth.records for depth in self.agent.buffer.depth().values())
        verdict = evaluator.evaluate(
            now_s,
            is_acked=health.region_acked is not None,
            is_well=health.is_healthy,
            is_idle=health.connected_region is not None and not waits,
        )
        if verdict == "running":
            return
        self._evaluator = None
        if verdict == "confirmed" and self.trial.try_confirm():
            self._report("applied", "")
            return
        self.trial.take_back(counts=verdict == "failed")
        self._restart()
        self._report_taken_back("no region acknowledged with them" if verdict == "failed" else "the disk is full")

    def _restart(self) -> None:
        """Opens the same buffer with the settings that are effective now."""
        self.close(RESTART_WITHIN_S)
        self.open()
        self.agent.start()

    def _report_taken_back(self, reason: str) -> None:
        self._report("taken back" if self.trial.may_try_again else "refused", reason)

    def _report(self, outcome: str, reason: str) -> None:
        log.info("pushed settings", outcome=outcome, reason=reason)
        self.agent.drainer.inbox.report(json.dumps({"outcome": outcome, "reason": reason}).encode())

    def _pushed(self, text: bytes) -> None:
        self._pushes.append(text)
        # Ends the wait of `serve`: a restart stops the drain, so the drain's thread cannot do it.
        os.kill(os.getpid(), signal.SIGUSR1)

    def state(self) -> dict[str, Any]:
        """The state of a device that was opened, as plain values. Raises StoreError."""
        return {
            **read_status(self.settings),
            "running": True,
            "uptime_s": round(time.monotonic() - self._started_s, 1),
            **current_state(self.agent),
            "pushed_settings": self.trial.effective().pushed,
        }
