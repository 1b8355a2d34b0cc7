"""The process and its machine: what the operating system says of them, and what systemd hears (sd_notify(3))."""

from __future__ import annotations

import hashlib
import os
import socket
from contextlib import suppress
from pathlib import Path

# Notifications to systemd (sd_notify(3)).


def notify(*states: str) -> None:
    """Sends states such as `READY=1`, `WATCHDOG=1` or `STATUS=…` to the socket that systemd gave."""
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
        # "@" stands for the NUL that begins a name in Linux's abstract namespace.
        sock.connect("\0" + address[1:] if address.startswith("@") else address)
        sock.sendall("\n".join(states).encode())


def watchdog_interval_s() -> float | None:
    """How often systemd wants to hear of us; None if it does not watch."""
    usec, pid = os.environ.get("WATCHDOG_USEC", ""), os.environ.get("WATCHDOG_PID", "")
    if not usec.isdigit() or (pid and pid != str(os.getpid())):
        return None
    # Half of the limit, as sd_watchdog_enabled(3) advises: one late sign of life is no death.
    return int(usec) / 1_000_000 / 2


# /etc/machine-id is cloned with the disk; the numbers of the board are not.
_MACHINE_FILES = ("/etc/machine-id", "/sys/firmware/devicetree/base/serial-number", "/sys/class/dmi/id/product_uuid")


def machine_id() -> str:
    """Identifies the machine, as far as it says who it is; "" where it does not."""
    known = b""
    for name in _MACHINE_FILES:
        with suppress(OSError):
            known += Path(name).read_bytes().strip(b"\0\n ") + b"\n"
    return hashlib.blake2b(known, digest_size=8).hexdigest() if known else ""
