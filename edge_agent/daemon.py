"""The process: signals, logs, reloading, and the agent between them.

`edge-agent run` replaces itself with a process that runs `main` here and imports no command line.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog

from edge_agent.agent import (
    RESTART_WITHIN_S,
    Agent,
    add_counters,
    counters_of,
    current_state,
    health_state,
    is_alive,
)
from edge_agent.checking import problems, warnings
from edge_agent.clocks import SystemClocks
from edge_agent.config import AgentSettings
from edge_agent.errors import AgentError, StoreError, StoreVersion
from edge_agent.inspection import read_status
from edge_agent.process import notify, watchdog_interval_s
from edge_agent.push.pushed import EffectiveSettings, PushRefused, effective_settings
from edge_agent.push.trial import NO_ACKNOWLEDGEMENT, PushSignatures, RetryTimes, Trial, TrialEvaluator
from waybill.daemon.logs import LineLimit, start_logging
from waybill.settings import SettingsError, load

if TYPE_CHECKING:
    from waybill.daemon.status_server import StatusServer


log = structlog.get_logger("edge_agent")

WAKE_EVERY_S = 5.0
EXPIRE_EVERY_S = 60.0
SUPPRESSED_EVERY_S = 10.0
"""How often it is said which log lines were suppressed."""
MAX_PUSHES = 8
PUSH_EVERY_S = 1.0
"""One push in so long is looked at: each may write to flash."""
_SIGNALS = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1}
_EXIT_FAILED = 1


def main(arguments: list[str]) -> int:
    """Runs the agent with the settings in the file named first; its exit code."""
    config = Path(arguments[0])
    try:
        base = load(AgentSettings, config)
    except SettingsError as error:
        sys.stderr.write("\n".join(error.lines) + "\n")
        return os.EX_CONFIG
    limit = start_logging(base.log)
    for problem in problems(base):
        log.error("settings", problem=problem)
    for warning in warnings(base):
        log.warning("settings", problem=warning)
    # For whatever is made from here on: what a vehicle did is its owner's alone.
    os.umask(0o077)
    # Blocked in every thread, and waited for in `serve`: no handler may run in the middle of a commit.
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        return Daemon(config, base, limit).serve()
    except (AgentError, OSError) as error:
        log.error("cannot run", error=str(error))
        # No restart gives the buffer another version.
        return os.EX_CONFIG if isinstance(error, StoreVersion) else _EXIT_FAILED
    finally:
        limit.log_suppressed(log)


class Daemon:
    """Owns the agent's process. Signals are waited for in `serve`, so no handler ever runs in between."""

    def __init__(self, config: Path, base: AgentSettings, limit: LineLimit | None = None) -> None:
        """`limit`: what the lines of the log pass through already."""
        self._config = config
        self._base = base
        self._limit = limit or LineLimit()
        self._suppressed_at_s = 0.0
        self._trial = Trial(config, base, SystemClocks.of_this_boot().boot)
        self._signatures = PushSignatures(base)
        self._pushes: deque[bytes] = deque(maxlen=MAX_PUSHES)
        self._next_push_s = 0.0
        cut_short = self._trial.recover()
        self._present = self._settings()
        self._agent = self._new_agent()
        self._shown: tuple[Agent, dict[str, Any]] = (self._agent, {})
        self._health: StatusServer | None = None
        self._serve_health()
        self._evaluator: TrialEvaluator | None = None
        self._started_s = time.monotonic()
        self._retries = RetryTimes(base.push.retry_after_s)
        self._expire_at_s = 0.0
        if cut_short:
            self._report_taken_back("the agent stopped during the trial")

    def serve(self) -> int:
        """Until SIGTERM; the exit code."""
        self._agent.start()
        # What lives as long as the process is not looked at again by every collection.
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
                # Not counted: that the agent is stopped says nothing about the settings.
                self._trial.take_back(counts=False)
                return 0
            if number == signal.SIGHUP:
                self._reload()
            self._tick(time.monotonic())
        log.error("a thread ended")
        self._agent.stop()
        return _EXIT_FAILED

    def _tick(self, now_s: float) -> None:
        # Only while both threads are seen: systemd restarts an agent of which one is stuck.
        if is_alive(self._agent):
            notify("WATCHDOG=1", f"STATUS={self._agent.drainer.health.connected_region or 'no uplink'}")
        self._agent.flash.sample(time.time())
        if now_s >= self._suppressed_at_s:
            self._suppressed_at_s = now_s + SUPPRESSED_EVERY_S
            self._limit.log_suppressed(log)
        if self._evaluator is not None:
            self._evaluate_trial(now_s, self._evaluator)
        elif self._pushes and now_s >= self._next_push_s:
            self._next_push_s = now_s + PUSH_EVERY_S
            self._try_pushed(self._pushes.popleft())
        elif self._trial.waiting is not None and now_s >= self._retries.due_s:
            self._try(self._trial.begin_again)
        if now_s >= self._expire_at_s:
            self._expire_at_s = now_s + EXPIRE_EVERY_S
            try:
                self._agent.retention.expire(time.time_ns() // 1_000_000, int(now_s * 1000))
            except StoreError as error:
                log.error("cannot drop what is too old", reason=error.reason, error=str(error))

    def _reload(self) -> None:
        """New settings from the file; wrong ones change nothing."""
        if self._wanted() is None:
            return
        notify("RELOADING=1")
        self._requeue_dead_letters()
        self._restart()
        notify("READY=1")
        log.info("settings loaded")

    def _requeue_dead_letters(self) -> None:
        """A reload may have removed the reason of a refusal, so dead letters are sent once more."""
        try:
            self._agent.buffer.requeue_dead_letters()
        except StoreError as error:
            log.error("cannot requeue dead letters", reason=error.reason, error=str(error))

    def _try_pushed(self, text: bytes) -> None:
        if not self._agent.settings.push.accept:
            self._report("refused", "no settings are accepted now")
            return
        try:
            settings = self._signatures.open(text, datetime.now(UTC))
        except PushRefused as error:
            self._report("refused", str(error))
            return
        except (SettingsError, OSError) as error:
            self._postpone(str(error), text)
            return
        self._try(lambda: self._trial.begin(settings), settings)

    def _try(self, begin: Callable[[], bool], text: bytes = b"") -> None:
        """Begins a trial. Whatever is wrong with the text, it is refused and the next one is served."""
        try:
            self._settings()
            if not begin():
                return
        except PushRefused as error:
            self._report("refused", str(error))
            return
        except (SettingsError, OSError) as error:
            self._postpone(str(error), text)
            return
        except Exception as error:  # noqa: BLE001 - a retained push comes back with every connection
            self._agent.dead_letters.add("config", repr(error), text)
            self._report("refused", "it cannot be handled")
            return
        log.info("trying pushed settings")
        if text:
            self._retries.reset()
        self._restart()
        self._evaluator = TrialEvaluator(time.monotonic(), self._agent.settings.push.confirm_s)

    def _postpone(self, reason: str, text: bytes) -> None:
        """Nothing was wrong with the proposal. One that waits goes on waiting, and that was said when it began to."""
        with suppress(OSError):
            self._trial.take_back(counts=False)
        self._retries.schedule_next(time.monotonic())
        log.warning("pushed settings cannot be tried now", reason=reason)
        if text and self._trial.waiting == text:
            self._report_taken_back(reason)
        elif text:
            self._report("refused", f"not tried, for nothing that is wrong with them: {reason}")

    def _evaluate_trial(self, now_s: float, evaluator: TrialEvaluator) -> None:
        if self._present.pushed != "on trial":
            # The device's own file was loaded anew, and they do not fit it.
            self._refuse_trial(self._present.reason)
            return
        drainer = self._agent.drainer
        verdict = evaluator.evaluate(
            now_s,
            is_connected=drainer.health.connected_region is not None,
            is_acked=drainer.health.region_acked is not None,
            is_well=drainer.health.is_healthy,
            batches=drainer.dispatcher.counters.batches,
        )
        if verdict == "running":
            return
        if verdict == "confirmed":
            self._confirm()
            return
        reason = NO_ACKNOWLEDGEMENT if verdict == "failed" else "nothing was there to send"
        self._take_back(reason, counts=verdict == "failed")

    def _confirm(self) -> None:
        """What was proven is in force, if it still is what the device's own file makes of the push."""
        wanted = self._wanted()
        if wanted is not None and wanted.pushed != "on trial":
            self._refuse_trial(wanted.reason)
            return
        self._evaluator = None
        self._trial.confirm()
        self._present = replace(self._present, pushed="in force")
        self._restart_if_changed()
        self._report("applied", "")

    def _refuse_trial(self, reason: str) -> None:
        self._evaluator = None
        self._trial.refuse(reason)
        self._restart_if_changed()
        self._report("refused", f"the device's own file has changed: {reason}")

    def _take_back(self, reason: str, *, counts: bool) -> None:
        self._evaluator = None
        self._trial.take_back(counts=counts)
        self._retries.schedule_next(time.monotonic())
        self._restart_if_changed()
        self._report_taken_back(reason)

    def _report_taken_back(self, reason: str) -> None:
        after = "they will be tried again" if self._trial.waiting is not None else "they will not be tried again"
        self._report("taken back", f"{reason}; {after}")

    def _report(self, outcome: str, reason: str) -> None:
        log.info("pushed settings", outcome=outcome, reason=reason)
        self._agent.drainer.inbox.report(json.dumps({"outcome": outcome, "reason": reason}).encode())

    def _restart_if_changed(self) -> None:
        """A restart, if other settings are to be in force than are."""
        wanted = self._wanted()
        if wanted is None or wanted.settings == self._agent.settings:
            self._present = wanted or self._present
        else:
            self._restart()

    def _restart(self) -> None:
        """The same buffer with the settings that are in force now; stored data are not touched."""
        wanted = self._wanted()
        if wanted is None:
            return
        if not self._agent.stop(RESTART_WITHIN_S):
            # Its thread still has the buffer: only the end of the process takes it away for certain.
            raise AgentError("a thread does not end, so the process does")
        self._limit.log_suppressed(log)  # the new settings may not write lines of this level any more
        before = add_counters(self._shown[1], counters_of(self._agent))
        self._present = wanted
        self._agent = self._new_agent()
        # Both at once: who asks in between hears of the former agent and of nothing twice.
        self._shown = (self._agent, before)
        self._serve_health()
        self._agent.start()

    def _settings(self) -> EffectiveSettings:
        """What is to be in force now. Raises SettingsError, also for what only a new process can change."""
        wanted = effective_settings(self._config)
        present, other = (
            {"buffer.path": str(it.buffer.path), "device.id": it.device.id, "device.tenant": it.device.tenant}
            for it in (self._base, wanted.settings)
        )
        problems = [
            f"{key}: {other[key]!r} needs a restart; what waits stays in {present['buffer.path']} under"
            f" '{present['device.tenant']}/{present['device.id']}', and only an agent with these settings delivers it"
            for key in present
            if other[key] != present[key]
        ]
        if problems:
            raise SettingsError(str(self._config), problems)
        return wanted

    def _wanted(self) -> EffectiveSettings | None:
        try:
            return self._settings()
        except SettingsError as error:
            log.error("settings are wrong, the present ones stay", error=str(error))
            return None

    def _new_agent(self) -> Agent:
        """An agent with the present settings."""
        start_logging(self._present.settings.log, self._limit)
        if self._present.reason:
            log.warning("pushed settings are passed over", reason=self._present.reason)
        log.info("settings", pushed=self._present.pushed)
        return Agent(self._present.settings, on_push=self._pushed)

    def _serve_health(self) -> None:
        """Listens on the port of the present settings. A port that is taken stops nothing else."""
        port = self._agent.settings.status.port
        if self._health is not None:
            if self._health.port == port:
                return
            self._health.close()
            self._health = None
        if port == 0:
            return
        from edge_agent.status_endpoint import serve_status  # noqa: PLC0415 - only who is asked pays for it

        try:
            self._health = serve_status(port, self._state, lambda: health_state(self._agent))
        except OSError as error:
            log.error("no status server", port=port, error=str(error))

    def _state(self) -> dict[str, Any]:
        agent, before = self._shown
        return {
            **read_status(agent.settings),
            "running": True,
            "uptime_s": round(time.monotonic() - self._started_s, 1),
            **current_state(agent),
            **add_counters(before, counters_of(agent)),
            "pushed_settings": self._present.pushed,
            "pushed_settings_waiting": self._trial.waiting is not None,
        }

    def _pushed(self, text: bytes) -> None:
        self._pushes.append(text)
        # Ends the wait of `serve`: a restart stops the drain, so the drain's thread cannot do it.
        os.kill(os.getpid(), signal.SIGUSR1)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
