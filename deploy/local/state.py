"""What a running stack tells other processes: one JSON file in its folder."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from deploy.local.errors import StackInUse, StackNotRunning
from deploy.local.link import CuttableLink
from deploy.local.memory import resident_bytes
from settings import Settings

__all__ = ["LinkRecord", "Phase", "ServerRecord", "StackState", "hold", "is_held"]

Phase = Literal["starting", "connecting", "ready", "stopping", "failed"]

_STATE = "stack.json"
_LOCK = "stack.lock"


class ServerRecord(Settings):
    """One server of a stack, as it was when the state was written."""

    name: str
    kind: str
    state: str
    pid: int | None
    log: Path
    addresses: dict[str, str]

    @property
    def is_well(self) -> bool:
        """Whether it was healthy, and its process still lives."""
        return self.state == "healthy" and self.memory_bytes > 0

    @property
    def memory_bytes(self) -> int:
        """Resident memory now, of the process and its children."""
        return resident_bytes(self.pid) if self.pid else 0


class LinkRecord(Settings):
    """One cuttable link."""

    port: int
    target: int
    control: int


class StackState(Settings):
    """A running stack: its supervisor, servers, addresses and links."""

    pid: int
    phase: Phase
    detail: str = ""
    started_s: float
    servers: list[ServerRecord]
    links: dict[str, LinkRecord]

    @classmethod
    def load(cls, folder: Path) -> "StackState":
        """The state of the stack that runs in this folder; raises StackNotRunning when none does."""
        file = folder / _STATE
        if not file.exists() or not is_held(folder):
            raise StackNotRunning(folder)
        return cls.model_validate_json(file.read_text())

    def save(self, folder: Path) -> None:
        """Write atomically: a reader sees the old state or the new one."""
        part = folder / f"{_STATE}.part"
        part.write_text(self.model_dump_json(indent=2))
        part.replace(folder / _STATE)

    def address(self, server: str, name: str) -> str:
        """An address of a server, such as ("pulsar-hq", "service_url")."""
        for record in self.servers:
            if record.name == server:
                return record.addresses[name]
        raise KeyError(f"no server {server} in this stack; it has {', '.join(one.name for one in self.servers)}")

    def link(self, name: str) -> CuttableLink:
        """A link to cut or heal."""
        record = self.links[name]
        return CuttableLink(name, record.port, record.target, record.control)


@contextmanager
def hold(folder: Path) -> Iterator[None]:
    """Own the folder while the block runs; the kernel lets go of it however this process ends."""
    folder.mkdir(parents=True, exist_ok=True)
    lock = os.open(folder / _LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StackInUse(folder) from None
        yield
    finally:
        os.close(lock)


def is_held(folder: Path) -> bool:
    """Whether a process owns the folder now."""
    try:
        with hold(folder):
            return False
    except StackInUse:
        return True
