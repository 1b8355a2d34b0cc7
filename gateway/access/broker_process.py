"""The process of a broker beside the daemon: found by its settings, and made to read its files by one signal."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import NamedTuple

from gateway.access.config import BrokerProcessPlace
from gateway.errors import BrokerUnreachable

__all__ = ["BrokerProcess", "reload_broker", "running_broker"]


class BrokerProcess(NamedTuple):
    """Which process it is. `started`: by the system's clock ticks, so that a number used again is another process."""

    pid: int
    started: str


def running_broker(place: BrokerProcessPlace) -> BrokerProcess:
    """The broker's process. Raises BrokerUnreachable if there is none, or it is another program."""
    try:
        pid = place.pid or int(place.pid_file.read_bytes().strip() if place.pid_file else 0)
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (OSError, ValueError) as error:
        raise BrokerUnreachable(f"no broker runs ({place.pid_file or place.pid})") from error
    # The name stands in parentheses and may have any character, also those.
    name, after = stat[stat.index("(") + 1 : stat.rindex(")")], stat[stat.rindex(")") + 2 :].split()
    if name != place.program or after[0] == "Z":
        raise BrokerUnreachable(f"process {pid} is {name}, no running {place.program}: it gets no signal")
    return BrokerProcess(pid, after[19])


def reload_broker(place: BrokerProcessPlace) -> BrokerProcess:
    """Have a broker read its files. Raises BrokerUnreachable."""
    process = running_broker(place)
    # Before it handles the signal, a broker that is starting would end by it.
    if not _handles_hangup(process.pid):
        raise BrokerUnreachable(f"the broker, process {process.pid}, is not ready for a signal yet")
    try:
        os.kill(process.pid, signal.SIGHUP)
    except OSError as error:
        raise BrokerUnreachable(f"the broker, process {process.pid}, takes no signal: {error}") from error
    return process


def _handles_hangup(pid: int) -> bool:
    """Whether a process has a handler for SIGHUP (`SigCgt` of proc(5))."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return False
    caught = next((line.split()[1] for line in lines if line.startswith("SigCgt:")), "0")
    return bool(int(caught, 16) >> (signal.SIGHUP - 1) & 1)
