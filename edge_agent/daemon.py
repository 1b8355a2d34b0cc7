"""The agent's process: signals, logs, reloading and pushed settings.

`edge-agent run` replaces itself with a process that runs `main` and imports no command line.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from logging import getLevelNamesMapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog

from edge_agent.agent import RESTART_WITHIN_S, STOP_WITHIN_S, Agent, health_state, is_alive
from edge_agent.checking import check_user, problems
from edge_agent.config import AgentSettings
from edge_agent.device_runner import DeviceRunner
from edge_agent.devices import DeviceConfig, load_devices
from edge_agent.errors import AgentError, StoreError, StoreVersion
from edge_agent.process import notify, watchdog_interval_s
from waybill.daemon.logs import LineLimit, start_logging
from waybill.daemon.stack_folder import registered
from waybill.settings import SettingsError

if TYPE_CHECKING:
    from waybill.daemon.status_server import StatusServer


log = structlog.get_logger("edge_agent")

WAKE_EVERY_S = 5.0
SUPPRESSED_EVERY_S = 10.0
"""How often suppressed log lines are reported."""
_SIGNALS = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1}
_EXIT_FAILED = 1


def main(arguments: list[str]) -> int:
    """Runs the agent with the settings file `arguments[0]`; returns the exit code."""
    config = Path(arguments[0])
    try:
        devices = load_devices(config)
    except SettingsError as error:
        sys.stderr.write("\n".join(error.lines) + "\n")
        return os.EX_CONFIG
    base = devices[0].settings
    limit = start_logging(base.log)
    for problem in dict.fromkeys(problem for one in devices for problem in problems(one.settings)):
        log.error("settings", problem=problem)
    for warning in base.plain_text():
        log.warning("settings", problem=warning)
    # For all files from here on: only the owner may read what the vehicle did.
    os.umask(0o077)
    # Blocked in every thread, and waited for in `serve`: no handler may run in the middle of a commit.
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        for one in devices:
            check_user(one.settings)
        with registered("edge-agent run", config, "127.0.0.1", base.status.port):
            return Daemon(config, devices, limit).serve()
    except (AgentError, OSError) as error:
        log.error("cannot run", error=str(error))
        # No restart gives the buffer another version.
        return os.EX_CONFIG if isinstance(error, StoreVersion) else _EXIT_FAILED
    finally:
        limit.log_suppressed(log)


def _rank(health: dict[str, Any]) -> int:
    """How bad a device's health is: 0 if it does not run, then unhealthy, unknown and healthy."""
    return 0 if "problem" in health else {False: 1, None: 2, True: 3}[health["healthy"]]


class Daemon:
    """Owns the agent's process. `serve` waits for signals, so no handler interrupts a commit.

    A single device ends the process when it fails, and systemd starts it again. Of several devices, the one that fails
    is tried again here, and the others go on.
    """

    def __init__(self, config: Path, devices: Sequence[DeviceConfig], limit: LineLimit | None = None) -> None:
        """Opens the buffers. `limit`: the limit that log lines pass through already.

        Raises AgentError or OSError if no device can run.
        """
        self._config = config
        self._limit = limit or LineLimit()
        self._suppressed_at_s = 0.0
        self._runners = [DeviceRunner(one, self._apply_log_settings) for one in devices]
        self._is_single = len(devices) == 1
        for runner in self._runners:
            self._guard(runner, runner.open)
        if not any(runner.is_open for runner in self._runners):
            raise self._runners[0].error
        self._reloads_refused = 0
        self._health = self._serve_health(devices[0].settings.status.port)

    def serve(self) -> int:
        """Runs until SIGTERM; returns the exit code."""
        for runner in self._runners:
            if runner.is_open:
                self._guard(runner, runner.agent.start)
        # Objects that live as long as the process are exempt from garbage collection.
        gc.collect()
        gc.freeze()
        notify("READY=1")
        watched_s = watchdog_interval_s() or WAKE_EVERY_S
        while not self._is_single or self._runners[0].is_running:
            wake_s = min(0.5 if any(runner.is_busy for runner in self._runners) else WAKE_EVERY_S, watched_s)
            received = signal.sigtimedwait(_SIGNALS, wake_s)
            number = received.si_signo if received else None
            if number in {signal.SIGTERM, signal.SIGINT}:
                notify("STOPPING=1")
                self._stop(STOP_WITHIN_S)
                self._take_trials_back()
                return 0
            if number == signal.SIGHUP:
                self._reload()
            self._tick(time.monotonic())
        log.error("a thread ended")
        self._stop(STOP_WITHIN_S)
        return _EXIT_FAILED

    def _guard(self, runner: DeviceRunner, act: Callable[[], None]) -> None:
        """Acts for one device. Of several devices, a failure stops this one alone."""
        if self._is_single:
            act()
            return
        with structlog.contextvars.bound_contextvars(device=runner.settings.device.id):
            try:
                act()
            except Exception as error:  # noqa: BLE001 - whatever it is, the other devices go on
                runner.fail(error)

    def _tick(self, now_s: float) -> None:
        # Only while both threads of a device work: systemd restarts an agent with a stuck thread.
        if alive := [runner for runner in self._runners if runner.is_open and is_alive(runner.agent)]:
            region = alive[0].agent.drainer.health.connected_region or "no uplink"
            notify("WATCHDOG=1", f"STATUS={region if self._is_single else f'{len(alive)} devices work'}")
        if now_s >= self._suppressed_at_s:
            self._suppressed_at_s = now_s + SUPPRESSED_EVERY_S
            self._limit.log_suppressed(log)
        for runner in self._runners:
            if runner.is_running:
                self._guard(runner, partial(runner.tick, now_s))
            elif not self._is_single and now_s >= runner.retry_at_s:
                self._guard(runner, runner.retry)

    def _reload(self) -> None:
        """Executes the program again in this process, with the present settings file. A wrong file changes nothing."""
        try:
            for one in load_devices(self._config):
                self._check_buffer(one.settings)
        except SettingsError as error:
            self._reloads_refused += 1
            log.error("settings cannot be used; the current ones stay", error=str(error))
            return
        for agent in self._agents():
            try:
                # The new settings may remove the reason of a refusal.
                agent.buffer.requeue_dead_letters()
            except StoreError as error:
                log.error("cannot requeue dead letters", reason=error.reason, error=str(error))
        notify("RELOADING=1")
        self._take_trials_back()
        if not self._stop(RESTART_WITHIN_S):
            # Its thread still has the buffer: only the end of the process takes it away for certain.
            raise AgentError("a thread does not end, so the process does")
        self._limit.log_suppressed(log)
        log.info("settings loaded")
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606 - this program, once more

    def _agents(self) -> list[Agent]:
        return [runner.agent for runner in self._runners if runner.is_open]

    def _take_trials_back(self) -> None:
        for runner in self._runners:
            # Not counted: stopping the agent says nothing about the settings.
            runner.trial.take_back(counts=False)

    def _check_buffer(self, settings: AgentSettings) -> None:
        """Opens another buffer once, while the current agent still runs. Raises SettingsError."""
        path = settings.buffer.path
        if os.path.realpath(path) in {os.path.realpath(runner.settings.buffer.path) for runner in self._runners}:
            return
        try:
            Agent(settings).stop()
        except (AgentError, OSError) as error:
            raise SettingsError(str(self._config), [f"buffer.path: {path} cannot be used: {error}"]) from error

    def _stop(self, within_s: float) -> bool:
        """Ends all agents; returns whether they finished in time."""
        ends_s = time.monotonic() + within_s
        for agent in self._agents():
            agent.ask_to_stop()
        have_ended = [agent.stop(max(0.0, ends_s - time.monotonic())) for agent in self._agents()]
        return all(have_ended)

    def _apply_log_settings(self) -> None:
        """The most detailed level of the devices counts."""
        if self._suppressed_at_s > 0:  # it runs, and the new settings may not write lines of this level any more
            self._limit.log_suppressed(log)
        wanted = [runner.settings.log for runner in self._runners]
        start_logging(min(wanted, key=lambda one: getLevelNamesMapping()[one.level.upper()]), self._limit)

    def _serve_health(self, port: int) -> StatusServer | None:
        """Serves the status; a port that is in use stops nothing else."""
        if port == 0:
            return None
        from edge_agent.status_endpoint import serve_status  # noqa: PLC0415 - 0 saves the memory of its libraries

        try:
            return serve_status(port, self._states, self._health_of_all)
        except OSError as error:
            log.error("no status server", port=port, error=str(error))
            return None

    def _states(self) -> dict[str, dict[str, Any]]:
        """The state of each device by its id; of a single one by ""."""
        return {"" if self._is_single else one.settings.device.id: self._state(one) for one in self._runners}

    def _state(self, runner: DeviceRunner) -> dict[str, Any]:
        """The state of a device; if it does not run, why."""
        problem = str(runner.error)
        if self._is_single or runner.is_running:
            try:
                return {**runner.state(), "reloads_refused": self._reloads_refused}
            except StoreError as error:
                if self._is_single:
                    raise
                problem = str(error)
        device = runner.settings.device
        down = {"local_broker": False, "uplink_healthy": False}
        return {"device": device.id, "tenant": device.tenant, "running": False, "problem": problem, **down}

    def _health_of_all(self) -> dict[str, Any]:
        """The health of a single device. Of several devices: that of the worst one, and of each."""
        if self._is_single:
            return health_state(self._runners[0].agent)
        by_device = {
            one.settings.device.id: health_state(one.agent)
            if one.is_running
            else {"healthy": False, "problem": str(one.error)}
            for one in self._runners
        }
        worst = min(by_device, key=lambda device: _rank(by_device[device]))
        return {**by_device[worst], "device": worst, "devices": by_device}


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
