"""The files of pushed settings beside the buffer, each replaced or moved in one synced rename.

    pushed.toml          in force: a region acknowledged records with them
    pushed-trial.toml    on trial. One that is found at a start was cut short
    pushed-again.toml    will be tried again: its trial was cut short, or brought no acknowledgement
    pushed-refused.toml  the last one that was refused for good, after a digest of the device's own file and the reason;
                         the same text is not tried again while that file is the same
    pushed-attempts.json trials of the present proposal that count against it, and the boot of the last one

The first line of each text names the device and the machine that it was pushed to: what was proven there proves nothing
elsewhere, so a folder that was cloned or moved brings no settings along. They are kept as `pushed-foreign.toml`.
"""

from __future__ import annotations

from edge_agent.config import AgentSettings
from edge_agent.process import machine_id
from waybill.daemon.durable_file import replace_durably, sync_folder

IN_FORCE, ON_TRIAL, AGAIN, REFUSED = "pushed.toml", "pushed-trial.toml", "pushed-again.toml", "pushed-refused.toml"
ATTEMPTS, FOREIGN = "pushed-attempts.json", "pushed-foreign.toml"
_BEGIN = b"# pushed to "


class PushedFiles:
    """The files of one device on this machine; for it those of another are not there."""

    def __init__(self, settings: AgentSettings) -> None:
        device = settings.device
        self._folder = settings.buffer.path
        self._head = _BEGIN + f"{device.tenant}/{device.id} on machine {machine_id() or 'unknown'}".encode()

    def read(self, name: str) -> bytes | None:
        """The text of a file; None if there is none. Raises OSError."""
        head, text = self._parts(name)
        return text if head == self._head else None

    def archive_foreign(self) -> str:
        """Keeps what was in force for another device as FOREIGN and removes its proposals; whose they were, or ""."""
        whose = ""
        for name in (IN_FORCE, ON_TRIAL, AGAIN, REFUSED, ATTEMPTS):
            head, _ = self._parts(name)
            if head in {b"", self._head}:
                continue
            whose = whose or head.removeprefix(_BEGIN).decode("utf-8", "replace")[:200]
            if name == IN_FORCE:
                self.move(name, FOREIGN)
            else:
                self.remove(name)
        return whose

    def replace(self, name: str, text: bytes) -> None:
        """Raises OSError."""
        replace_durably(self._folder / name, self._head + b"\n" + text)

    def move(self, name: str, to: str) -> None:
        """Gives a file another meaning, which takes no room on the disk. Raises OSError."""
        (self._folder / name).replace(self._folder / to)
        sync_folder(self._folder)

    def remove(self, name: str) -> None:
        """Raises OSError."""
        (self._folder / name).unlink(missing_ok=True)

    def _parts(self, name: str) -> tuple[bytes, bytes]:
        try:
            head, _, text = (self._folder / name).read_bytes().partition(b"\n")
        except FileNotFoundError:
            return b"", b""
        return head or b"?", text
