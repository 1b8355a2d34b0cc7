"""A stack that outlives the command that started it, and the command that ends it."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from deploy.local.errors import ServerFailed, StackInUse, StackNotRunning
from deploy.local.state import StackState, is_held

__all__ = ["start_in_background", "stop_running"]

_POLL_S = 0.2
_STOP_S = 60.0


def start_in_background(
    folder: Path, arguments: Sequence[str], *, timeout_s: float, on_state: Callable[[StackState], None]
) -> StackState:
    """Run `waybill up` with these arguments in a session of its own; return when its stack is ready.

    Raises ServerFailed with the last lines of its output when it ends before, or is late.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if is_held(folder):
        raise StackInUse(folder)
    log = folder / "up.log"
    with log.open("wb") as output:
        supervisor = subprocess.Popen(
            [sys.executable, "-m", "deploy", "up", "--folder", str(folder), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if supervisor.poll() is not None:
            break
        state = _state(folder)
        if state is not None and state.pid == supervisor.pid:
            on_state(state)
            if state.phase == "ready":
                return state
        time.sleep(_POLL_S)
    reason = (
        "ended before the stack was ready" if supervisor.poll() is not None else f"was not ready after {timeout_s} s"
    )
    if supervisor.poll() is None:
        stop_running(folder)
    raise ServerFailed("waybill up", reason, log, log.read_text(errors="replace").splitlines()[-40:])


def stop_running(folder: Path, *, timeout_s: float = _STOP_S) -> bool:
    """Stop the stack of this folder; False when it had to be killed. Raises StackNotRunning."""
    state = StackState.load(folder)
    os.kill(state.pid, signal.SIGTERM)
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if not is_held(folder):
            return True
        time.sleep(_POLL_S)
    os.kill(state.pid, signal.SIGKILL)  # its servers are tied to it by the kernel and end with it
    return False


def _state(folder: Path) -> StackState | None:
    try:
        return StackState.load(folder)
    except StackNotRunning:
        return None
