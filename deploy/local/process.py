"""A process as Linux's /proc shows it: its id with the moment of its start, its children, its memory."""

import contextlib
import os
import signal
from pathlib import Path
from typing import Self

from waybill.settings import Settings

__all__ = ["ProcessIdentity", "children", "cpu_seconds", "proportional_bytes"]

_CPU_TICKS = slice(11, 15)  # fields 14 to 17: its own, and of the children that it has waited for
_START_TICKS = 19  # field 22 of /proc/PID/stat, counted from the first one behind the command's name


class ProcessIdentity(Settings):
    """One process, distinguished from every later one that gets its id.

    Linux gives an id again, but never the same id with the same start within one boot. `start_ticks` counts from the
    boot that `boot_id` names.
    """

    pid: int
    start_ticks: int
    boot_id: str

    @classmethod
    def of(cls, pid: int) -> Self | None:
        """The process that has this id now; None when there is none."""
        try:
            # The command's name may itself hold blanks and brackets; the fields begin behind the last bracket.
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return None
        boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return cls(pid=pid, start_ticks=int(fields[_START_TICKS]), boot_id=boot_id)

    @classmethod
    def mine(cls) -> Self:
        """This process."""
        me = cls.of(os.getpid())
        assert me is not None, "/proc shows no process of our own"
        return me

    @property
    def lives(self) -> bool:
        """Whether this very process is there now (one that ended and was not waited for is)."""
        return ProcessIdentity.of(self.pid) == self

    def send(self, number: signal.Signals) -> bool:
        """Send a signal to this very process; False when it is gone. Raises PermissionError for another user's."""
        with contextlib.suppress(ProcessLookupError):
            descriptor = os.pidfd_open(self.pid)
            try:
                # The descriptor stays with its process, so the one that is looked at is the one that is signalled.
                if self.lives:
                    signal.pidfd_send_signal(descriptor, number)
                    return True
            finally:
                os.close(descriptor)
        return False


_PROC = Path("/proc")


def children(pid: int) -> list[int]:
    """Ids of the direct children of all threads of a process; empty when it is gone."""
    pids: list[int] = []
    for file in (_PROC / str(pid) / "task").glob("*/children"):
        try:
            pids += [int(word) for word in file.read_text().split()]
        except OSError:
            continue
    return pids


def proportional_bytes(pid: int) -> int:
    """Resident bytes of a process and all its descendants; shared pages are counted in proportion (PSS)."""
    return _own_proportional_bytes(pid) + sum(proportional_bytes(child) for child in children(pid))


def cpu_seconds(pid: int) -> float:
    """Processor time of a process and all its descendants since they began; 0 for one that is gone."""
    try:
        fields = (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    own = sum(map(int, fields[_CPU_TICKS])) / os.sysconf("SC_CLK_TCK")
    return own + sum(cpu_seconds(child) for child in children(pid))


def _own_proportional_bytes(pid: int) -> int:
    try:
        for line in (_PROC / str(pid) / "smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    except OSError:
        return 0
    return 0
