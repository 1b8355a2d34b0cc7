"""Notifications to systemd (sd_notify(3))."""

from __future__ import annotations

import os
import socket
from contextlib import suppress


def notify(*states: str) -> None:
    """Sends states such as `READY=1`, `WATCHDOG=1` or `STATUS=…` to systemd's socket, if there is one."""
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
        # "@" stands for the NUL that begins a name in Linux's abstract namespace.
        sock.connect("\0" + address[1:] if address.startswith("@") else address)
        sock.sendall("\n".join(states).encode())


def watchdog_interval_s() -> float | None:
    """The interval of watchdog notifications; None without a watchdog."""
    usec, pid = os.environ.get("WATCHDOG_USEC", ""), os.environ.get("WATCHDOG_PID", "")
    if not usec.isdigit() or (pid and pid != str(os.getpid())):
        return None
    # Half of the limit, as sd_watchdog_enabled(3) advises: one late sign of life is no death.
    return int(usec) / 1_000_000 / 2
