"""What a running stack publishes for other processes: one JSON file in its folder."""

import time
from difflib import get_close_matches
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from deploy.local.errors import FolderDamaged, LinkControlError, StackNotRunning
from deploy.local.folder import ProcessIdentity, holder, proportional_bytes
from deploy.local.links import CuttableLink
from deploy.local.server import Health, ask_all
from waybill.daemon.bounded_file import read_bounded
from waybill.daemon.durable_file import replace_durably
from waybill.settings import Settings

Phase = Literal["starting", "connecting", "ready", "stopping", "stopped", "failed"]

_STATE = "stack.json"
_MAX_BYTES = 4 << 20
_ENDED = ("stopped", "failed")


class ServerRecord(Settings):
    """One server of a stack, as it was when the state was written."""

    name: str
    kind: str
    state: str
    process: ProcessIdentity | None
    health: Health | None = None
    log: Path
    addresses: dict[str, str]

    @property
    def pid(self) -> int | None:
        """The process id that it had."""
        return self.process.pid if self.process else None

    @property
    def lives(self) -> bool:
        """Whether its process is there now."""
        return self.process is not None and self.process.lives

    def as_answered(self, healthy: bool) -> "ServerRecord":
        """The same server in the state that it has now, if this is what its `health` said."""
        if self.state in _ENDED:
            return self
        if not self.lives:
            now = "gone"
        elif self.health is None:
            now = "unknown"
        elif healthy:
            now = "healthy"
        else:
            now = "starting" if self.state == "starting" else "not answering"
        return self.model_copy(update={"state": now})

    @property
    def memory_bytes(self) -> int:
        """Resident memory now, of the process and its children; 0 when it is gone."""
        return proportional_bytes(self.process.pid) if self.process and self.lives else 0


class LinkRecord(Settings):
    """One cuttable link."""

    port: int
    target: int
    control: int
    secret: str


class StackState(Settings):
    """A running stack: its supervisor, servers, addresses and links.

    The servers' states are what they answered at `asked_s` (seconds since the epoch; 0: never). `is_insecure`: they ask
    nobody who they are.
    """

    supervisor: ProcessIdentity
    phase: Phase
    detail: str = ""
    started_s: float
    asked_s: float = 0.0
    is_insecure: bool = False
    servers: list[ServerRecord]
    links: dict[str, LinkRecord]

    @classmethod
    def load(cls, folder: Path) -> "StackState":
        """The state of the stack that runs in this folder. Raises StackNotRunning, FolderDamaged, OSError.

        What an earlier stack left is no state: its supervisor is not the one that holds the folder.
        """
        supervisor = running(folder)
        file = folder / _STATE
        if not file.exists():
            raise StackNotRunning(folder)
        try:
            state = cls.model_validate_json(read_bounded(file, _MAX_BYTES))
        # A ValidationError is a ValueError, and so is a file that is too large.
        except ValueError as error:
            mistakes = f"{error.error_count()} mistakes" if isinstance(error, ValidationError) else str(error)
            raise FolderDamaged(
                file,
                f"is not the state of a stack ({mistakes})",
                f"stop the stack with `waybill down --folder {folder}` and start it again",
            ) from error
        if state.supervisor != supervisor:
            raise StackNotRunning(folder)
        return state

    @property
    def is_well(self) -> bool:
        """Whether all was ready, and every server healthy when it was asked."""
        return self.phase == "ready" and all(server.state == "healthy" for server in self.servers)

    def asked_now(self) -> "StackState":
        """The same stack as its servers answer now: asked by us, side by side, for a few seconds at most."""
        asked_s = time.time()
        found = ask_all({one.name: one.health for one in self.servers if one.health is not None and one.lives})
        servers = [one.as_answered(found.get(one.name, False)) for one in self.servers]
        return self.model_copy(update={"servers": servers, "asked_s": asked_s})

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
        """A link to cut or heal. Raises LinkControlError when the stack has none of this name."""
        if name not in self.links:
            nearest = get_close_matches(name, self.links, n=1)
            advice = f"did you mean {nearest[0]!r}? " if nearest else ""
            raise LinkControlError(name, f"no such link; {advice}this stack has {', '.join(sorted(self.links))}")
        record = self.links[name]
        return CuttableLink(name, record.port, record.target, record.control, record.secret)


def running(folder: Path) -> ProcessIdentity:
    """The process that runs a stack in this folder. Raises StackNotRunning with the last one's end, FolderDamaged.

    It is the one that holds the folder; where the mark was removed, the one that the state names, if it lives.
    """
    held = holder(folder)
    if held is not None:
        return held
    try:
        last = StackState.model_validate_json(read_bounded(folder / _STATE, _MAX_BYTES))
    except (OSError, ValueError):
        raise StackNotRunning(folder) from None
    if last.phase in _ENDED or last.supervisor == ProcessIdentity.mine() or not last.supervisor.lives:
        raise StackNotRunning(folder, last.detail if last.phase == "failed" else "")
    return last.supervisor
