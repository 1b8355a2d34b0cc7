"""The state of a running stack for other processes: one JSON file in its folder."""

import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Literal

from deploy.local.errors import LinkControlError, LocalStackError, StackNotRunning
from deploy.local.folder import holder
from deploy.local.links import CuttableLink
from waybill.daemon.bounded_file import read_bounded
from waybill.daemon.durable_file import replace_durably
from waybill.settings import Settings

Phase = Literal["starting", "connecting", "ready", "stopping", "stopped", "failed"]

_STATE = "stack.json"
_MAX_BYTES = 4 << 20
_POLL_S = 0.2
_START_S = 600.0


class ServerRecord(Settings):
    name: str
    state: str
    pid: int | None
    log: Path
    addresses: dict[str, str]


class StackState(Settings):
    """A running stack: the process that supervises it, servers, addresses and links.

    The servers' states are what they answered at `asked_s` (seconds since 1970; 0: never).
    """

    supervisor: int
    phase: Phase
    detail: str = ""
    asked_s: float = 0.0
    servers: list[ServerRecord]
    links: dict[str, CuttableLink]

    @classmethod
    def load(cls, folder: Path) -> "StackState":
        """The state of the stack that runs in this folder. Raises StackNotRunning, LocalStackError, OSError."""
        supervisor, file = holder(folder), folder / _STATE
        if supervisor is None or not file.exists():
            raise StackNotRunning(folder)
        try:
            state = cls.model_validate_json(read_bounded(file, _MAX_BYTES))
        except ValueError as error:
            raise LocalStackError(
                f"{file} is not the state of a stack; stop the stack with `waybill down --folder {folder}` and start "
                "it again"
            ) from error
        # An earlier stack may have left the file.
        if state.supervisor != supervisor:
            raise StackNotRunning(folder)
        return state

    def save(self, folder: Path) -> None:
        """Write durably: a reader sees the old state or the new one."""
        replace_durably(folder / _STATE, self.model_dump_json(indent=2).encode(), mode=0o600)

    def address(self, server: str, name: str) -> str:
        """An address of a server, such as ("pulsar-hq", "service_url")."""
        for record in self.servers:
            if record.name == server:
                return record.addresses[name]
        raise KeyError(f"no server {server} in this stack; it has {', '.join(one.name for one in self.servers)}")

    def link(self, name: str) -> CuttableLink:
        """Raises LinkControlError when the stack has no such link."""
        if name not in self.links:
            raise LinkControlError(name, f"no such link; this stack has {', '.join(sorted(self.links))}")
        return self.links[name]


def wait_for_stack(folder: Path, stop: threading.Event, phases: tuple[Phase, ...] = ("ready",)) -> StackState | None:
    """The state of the folder's stack once it is in one of these phases; None if `stop` was set before.

    Raises LocalStackError when it is in none of them in time.
    """
    ends_s = time.monotonic() + _START_S
    while not stop.is_set():
        with suppress(LocalStackError, OSError):
            if (state := StackState.load(folder)).phase in phases:
                return state
        if time.monotonic() > ends_s:
            raise LocalStackError(f"the stack in {folder} is not {' or '.join(phases)} after {_START_S:.0f} s")
        stop.wait(_POLL_S)
    return None
