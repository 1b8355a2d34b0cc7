"""The agent's process: signals, logs, reloading and pushed settings.

`edge-agent run` replaces itself with a process that runs `main` and imports no command line.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
import time
from collections import deque
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog

from edge_agent.agent import (
    RESTART_WITHIN_S,
    Agent,
    current_state,
    health_state,
    is_alive,
)
from edge_agent.checking import check_user, problems
from edge_agent.clocks import SystemClocks
from edge_agent.config import AgentSettings
from edge_agent.errors import AgentError, StoreError, StoreVersion
from edge_agent.inspection import read_status
from edge_agent.process import notify, watchdog_interval_s
from edge_agent.push.pushed import PushRefused
from edge_agent.push.trial import PushTrial, TrialEvaluator
from waybill.daemon.logs import LineLimit, start_logging
from waybill.daemon.stack_folder import registered
from waybill.settings import SettingsError, load

if TYPE_CHECKING:
    from waybill.daemon.status_server import StatusServer


log = structlog.get_logger("edge_agent")

WAKE_EVERY_S = 5.0
SUPPRESSED_EVERY_S = 10.0
"""How often suppressed log lines are reported."""
MAX_PUSHES = 8
_SIGNALS = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1}
_EXIT_FAILED = 1


def main(arguments: list[str]) -> int:
    """Runs the agent with the settings file `arguments[0]`; returns the exit code."""
    config = Path(arguments[0])
    try:
        base = load(AgentSettings, config)
    except SettingsError as error:
        sys.stderr.write("\n".join(error.lines) + "\n")
        return os.EX_CONFIG
    limit = start_logging(base.log)
    for problem in problems(base):
        log.error("settings", problem=problem)
    for warning in base.plain_text():
        log.warning("settings", problem=warning)
    # For all files from here on: only the owner may read what the vehicle did.
    os.umask(0o077)
    # Blocked in every thread, and waited for in `serve`: no handler may run in the middle of a commit.
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        check_user(base)
        with registered("edge-agent run", config, "127.0.0.1", base.status.port):
            return Daemon(config, base, limit).serve()
    except (AgentError, OSError) as error:
        log.error("cannot run", error=str(error))
        # No restart gives the buffer another version.
        return os.EX_CONFIG if isinstance(error, StoreVersion) else _EXIT_FAILED
    finally:
        limit.log_suppressed(log)


class Daemon:
    """Owns the agent's process. `serve` waits for signals, so no handler interrupts a commit."""

    def __init__(self, config: Path, base: AgentSettings, limit: LineLimit | None = None) -> None:
        """`limit`: the limit that log lines pass through already."""
        self._config = config
        self._limit = limit or LineLimit()
        self._suppressed_at_s = 0.0
        self._trial = PushTrial(config, base, SystemClocks.of_this_boot().boot)
        self._pushes: deque[bytes] = deque(maxlen=MAX_PUSHES)
        was_interrupted = self._trial.recover()
        self._agent = self._new_agent()
        self._health = self._serve_health(base.status.port)
        self._evaluator: TrialEvaluator | None = None
        self._started_s = time.monotonic()
        self._reloads_refused = 0
        if was_interrupted:
            self._report_taken_back("the agent stopped during the trial")

    def serve(self) -> int:
        """Runs until SIGTERM; returns the exit code."""
        self._agent.start()
        # Objects that live as long as the process are exempt from garbage collection.
        gc.collect()
        gc.freeze()
        notify("READY=1")
        watched_s = watchdog_interval_s() or WAKE_EVERY_S
        while self._agent.is_running:
            wake_s = min(WAKE_EVERY_S if self._evaluator is None and not self._pushes else 0.5, watched_s)
            received = signal.sigtimedwait(_SIGNALS, wake_s)
            number = received.si_signo if received else None
            if number in {signal.SIGTERM, signal.SIGINT}:
                notify("STOPPING=1")
                self._agent.stop()
                # Not counted: stopping the agent says nothing about the settings.
                self._trial.take_back(counts=False)
                return 0
            if number == signal.SIGHUP:
                self._reload()
            self._tick(time.monotonic())
        log.error("a thread ended")
        self._agent.stop()
        return _EXIT_FAILED

    def _tick(self, now_s: float) -> None:
        # Only while both threads work: systemd restarts an agent with a stuck thread.
        if is_alive(self._agent):
            notify("WATCHDOG=1", f"STATUS={self._agent.drainer.health.connected_region or 'no uplink'}")
        if now_s >= self._suppressed_at_s:
            self._suppressed_at_s = now_s + SUPPRESSED_EVERY_S
            self._limit.log_suppressed(log)
        if self._evaluator is not None:
            self._evaluate_trial(now_s, self._evaluator)
        elif self._pushes:
            self._try_pushed(self._pushes.popleft())

    def _reload(self) -> None:
        """Executes the program again in this process, with the present settings file. A wrong file changes nothing."""
        try:
            self._check_buffer(load(AgentSettings, self._config))
        except SettingsError as error:
            self._reloads_refused += 1
            log.error("settings cannot be used; the current ones stay", error=str(error))
            return
        try:
            # The new settings may remove the reason of a refusal.
            self._agent.buffer.requeue_dead_letters()
        except StoreError as error:
            log.error("cannot requeue dead letters", reason=error.reason, error=str(error))
        notify("RELOADING=1")
        self._trial.take_back(counts=False)
        self._stop_agent()
        log.info("settings loaded")
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606 - this program, once more

    def _check_buffer(self, settings: AgentSettings) -> None:
        """Opens another buffer once, while the current agent still runs. Raises SettingsError."""
        path = settings.buffer.path
        if os.path.realpath(path) == os.path.realpath(self._agent.settings.buffer.path):
            return
        try:
            Agent(settings).stop()
        except (AgentError, OSError) as error:
            raise SettingsError(str(self._config), [f"buffer.path: {path} cannot be used: {error}"]) from error

    def _try_pushed(self, text: bytes) -> None:
        """Begins the trial of a push. An error never ends the process: a retained push comes with every connection."""
        try:
            if not self._trial.begin(text, datetime.now(UTC)):
                return
        except PushRefused as error:
            self._report("refused", str(error))
            return
        except Exception as error:  # noqa: BLE001 - see above
            self._report("refused", f"not tried, and tried when it is delivered again: {error}")
            return
        log.info("trying pushed settings")
        self._restart()
        self._evaluator = TrialEvaluator(time.monotonic(), self._agent.settings.push.confirm_s)

    def _evaluate_trial(self, now_s: float, evaluator: TrialEvaluator) -> None:
        health = self._agent.drainer.health
        waits = any(depth.records for depth in self._agent.buffer.depth().values())
        verdict = evaluator.evaluate(
            now_s,
            is_acked=health.region_acked is not None,
            is_well=health.is_healthy,
            is_idle=health.connected_region is not None and not waits,
        )
        if verdict == "running":
            return
        self._evaluator = None
        if verdict == "confirmed" and self._trial.try_confirm():
            self._report("applied", "")
            return
        self._trial.take_back(counts=verdict == "failed")
        self._restart()
        self._report_taken_back("no region acknowledged with them" if verdict == "failed" else "the disk is full")

    def _report_taken_back(self, reason: str) -> None:
        self._report("taken back" if self._trial.may_try_again else "refused", reason)

    def _report(self, outcome: str, reason: str) -> None:
        log.info("pushed settings", outcome=outcome, reason=reason)
        self._agent.drainer.inbox.report(json.dumps({"outcome": outcome, "reason": reason}).encode())

    def _restart(self) -> None:
        """Opens the same buffer with the settings that are effective now."""
        self._stop_agent()
        self._agent = self._new_agent()
        self._agent.start()

    def _stop_agent(self) -> None:
        if not self._agent.stop(RESTART_WITHIN_S):
            # Its thread still has the buffer: only the end of the process takes it away for certain.
            raise AgentError("a thread does not end, so the process does")
        self._limit.log_suppressed(log)  # the new settings may not write lines of this level any more

    def _new_agent(self) -> Agent:
        effective = self._trial.effective()
        start_logging(effective.settings.log, self._limit)
        if effective.reason:
            log.warning("pushed settings are skipped", reason=effective.reason)
        log.info("settings", pushed=effective.pushed)
        return Agent(effective.settings, on_push=self._pushed)

    def _serve_health(self, port: int) -> StatusServer | None:
        """Serves the status; a port that is in use stops nothing else."""
        if port == 0:
            return None
        from edge_agent.status_endpoint import serve_status  # noqa: PLC0415 - 0 saves the memory of its libraries

        try:
            return serve_status(port, self._state, lambda: health_state(self._agent))
        except OSError as error:
            log.error("no status server", port=port, error=str(error))
            return None

    def _state(self) -> dict[str, Any]:
        agent = self._agent
        return {
            **read_status(agent.settings),
            "running": True,
            "uptime_s": round(time.monotonic() - self._started_s, 1),
            **current_state(agent),
            "pushed_settings": self._trial.effective().pushed,
            "reloads_refused": self._reloads_refused,
        }

    def _pushed(self, text: bytes) -> None:
        self._pushes.append(text)
        # Ends the wait of `serve`: a restart stops the drain, so the drain's thread cannot do it.
        os.kill(os.getpid(), signal.SIGUSR1)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
