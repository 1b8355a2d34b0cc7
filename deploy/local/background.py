"""A stack that outlives the command that started it, and the command that ends it."""

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from deploy.local.errors import FolderDamaged, ServerFailed, StackInUse, StackNotRunning
from deploy.local.folder import claim, holder
from deploy.local.process import ProcessIdentity
from deploy.local.stack_state import StackState, running

__all__ = ["DETACHED_LOG", "start_in_background", "stop_running"]

DETACHED_LOG = "up.log"
_POLL_S = 0.2
_STOP_S = 60.0


def start_in_background(
    folder: Path, arguments: Sequence[str], *, timeout_s: float, on_state: Callable[[StackState], None]
) -> StackState:
    """Run `waybill up` with these arguments in a session of its own; return when its stack is ready.

    Raises ServerFailed with the last lines of its output when it ends before, or is late; FolderNotOurs, StackInUse.
    """
    # Claimed first: the log of the supervisor must not be written into a folder that is somebody else's.
    claim(folder)
    if holder(folder) is not None:
        raise StackInUse(folder)
    log = folder / DETACHED_LOG
    with log.open("wb") as output:
        supervisor = subprocess.Popen(
            [sys.executable, "-m", "waybill", "up", "--folder", str(folder), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            # In a session of its own the terminal's Ctrl-C and hang-up do not reach it.
            start_new_session=True,
        )
    try:
        state = _when_ready(supervisor, folder, timeout_s, on_state)
    except BaseException:  # an interrupted start leaves nothing running
        _end(supervisor)
        raise
    if state is not None:
        return state
    # Asked before `_end`, after which every supervisor has ended.
    ended = supervisor.poll() is not None
    reason = "ended before the stack was ready" if ended else f"was not ready after {timeout_s} s"
    _end(supervisor)
    raise ServerFailed("waybill up", reason, log, log.read_text(errors="replace").splitlines()[-40:])


def _when_ready(
    supervisor: subprocess.Popen[bytes], folder: Path, timeout_s: float, on_state: Callable[[StackState], None]
) -> StackState | None:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline and supervisor.poll() is None:
        state = _state(folder)
        # Another stack may have taken the folder since it was looked at: its state says nothing of ours.
        if state is not None and state.supervisor.pid == supervisor.pid:
            on_state(state)
            if state.phase == "ready":
                return state
        time.sleep(_POLL_S)
    return None


def _end(supervisor: subprocess.Popen[bytes]) -> None:
    supervisor.terminate()
    try:
        supervisor.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        supervisor.kill()  # its servers are tied to it by the kernel and end with it
        supervisor.wait(_STOP_S)


def stop_running(folder: Path, *, timeout_s: float = _STOP_S) -> bool:
    """Stop the stack of this folder; False when it had to be killed. Raises StackNotRunning, PermissionError."""
    supervisor = running(folder)
    if not supervisor.send(signal.SIGTERM):
        raise StackNotRunning(folder)
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if not _runs(folder, supervisor):
            return True
        time.sleep(_POLL_S)
    supervisor.send(signal.SIGKILL)  # its servers are tied to it by the kernel and end with it
    return False


def _runs(folder: Path, supervisor: ProcessIdentity) -> bool:
    try:
        return running(folder) == supervisor
    except StackNotRunning:
        return False


def _state(folder: Path) -> StackState | None:
    try:
        return StackState.load(folder)
    except (StackNotRunning, FolderDamaged):
        return None
