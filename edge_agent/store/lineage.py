"""Whose a buffer is, and whether it is the one that was left: a small file beside it, and a mark inside it.

The file (`lineage.json`) is synced apart from the buffer. It names device, machine and epoch, and a number that the
head never was beyond. It has a token, and the buffer's mark has the same token and the file's change time, which nobody
can set. So a buffer is known to be another one than that which was left when

- the tokens differ: one of the two was put back from an image;
- the token is the same and the change time is not: both were, or the folder was copied;
- the machine is another one: a clone.

Then a new epoch begins, so that no id is given to a second record. The token changes with every start, every clean end,
every 65,536 records, and before the first record after a checkpoint. So the present token is in SQLite's log and not in
the main file, which has an older one if its log is lost. The buffer is told the next token first, so a crash in between
is none of these.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from edge_agent.store.connection import Connection, transaction, without_checkpoints
from runtime import replace_durably
from telemetry import new_epoch

LINEAGE = "lineage.json"
HEAD_STEP = 65_536
_VERSION = 2
_MACHINE_FILES = ("/etc/machine-id", "/sys/firmware/devicetree/base/serial-number", "/sys/class/dmi/id/product_uuid")


@dataclass(frozen=True, slots=True)
class Lineage:
    """What a small file beside the buffer remembers of its present epoch.

    `head_limit`: `head` never was beyond this. `pruned_through`: ids up to this had been acknowledged or declared.
    """

    device: str
    ordinal: int
    epoch: int
    head_limit: int
    pruned_through: int
    machine: str = ""
    token: int = 0


@dataclass(frozen=True, slots=True)
class LineageMark:
    """What the buffer remembers of the file. `next_token`: the token that it may have by now; 0: none."""

    token: int
    next_token: int
    changed_ns: int


def machine_id() -> str:
    """Identifies the machine, as far as it says who it is; "" where it does not."""
    known = b""
    for name in _MACHINE_FILES:
        with suppress(OSError):
            known += Path(name).read_bytes().strip(b"\0\n ") + b"\n"
    return hashlib.blake2b(known, digest_size=8).hexdigest() if known else ""


def read_lineage(folder: Path) -> Lineage | None:
    """What the file says; None if there is none that can be read."""
    try:
        version, device, ordinal, epoch, head_limit, pruned_through, machine, token = json.loads(
            (folder / LINEAGE).read_bytes()
        )
        found = Lineage(
            str(device), int(ordinal), int(epoch), int(head_limit), int(pruned_through), str(machine), int(token)
        )
    except (OSError, ValueError, TypeError, OverflowError, RecursionError):
        return None
    return found if version == _VERSION else None


def write_lineage(folder: Path, lineage: Lineage) -> None:
    """Replaces the file, synced. Raises OSError."""
    fields = (lineage.device, lineage.ordinal, lineage.epoch, lineage.head_limit, lineage.pruned_through)
    text = json.dumps([_VERSION, *fields, lineage.machine, lineage.token])
    replace_durably(folder / LINEAGE, text.encode("ascii"), mode=0o600)
    descriptor = os.open(folder / LINEAGE, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)  # the rename changed its change time
    finally:
        os.close(descriptor)


def next_epoch(least: int, wall_ms: int) -> int:
    """The number of a new epoch, above `least`, which no other life that an image of this buffer had may draw too.

    While the clock is not set, or behind, the time says nothing, so chance has to: 35 bits, or 17 minutes of epochs.
    """
    drawn = new_epoch(wall_ms, secrets.randbits(15))
    return drawn if drawn > least else least + 1 + secrets.randbits(35)


def new_token() -> int:
    """A number that no image has."""
    return secrets.randbits(62) + 1


def read_mark(connection: Connection) -> LineageMark | None:
    """The buffer's mark; None in a new one. Raises sqlite3.Error."""
    row = connection.execute("SELECT token, following, changed_ns FROM mark").fetchone()
    return LineageMark(*row) if row else None


def replace_lineage(connection: Connection, folder: Path, lineage: Lineage) -> None:
    """Writes the file under its new token, and the mark before and after. Raises StoreError, OSError."""
    before = read_mark(connection) or LineageMark(0, 0, 0)
    present = read_lineage(folder)
    if present is not None and present.token == before.next_token:
        # The last time failed between the file and the mark; this time may fail before the file.
        before = LineageMark(present.token, 0, _changed_ns(folder))
    with without_checkpoints(connection):
        _set_mark(connection, LineageMark(before.token, lineage.token, before.changed_ns))
        write_lineage(folder, lineage)
        _set_mark(connection, LineageMark(lineage.token, 0, _changed_ns(folder)))


def resume_lineage(connection: Connection, lineage: Lineage | None, folder: Path, machine: str) -> bool:
    """Whether a buffer goes on in its epoch; one without a mark is new. Raises StoreError."""
    mark = read_mark(connection)
    if mark is None:
        return True
    if lineage is None or lineage.machine != machine:
        return False
    if lineage.token == mark.next_token:
        # A crash came between the file and the mark; another may come before the next token.
        _set_mark(connection, LineageMark(lineage.token, 0, _changed_ns(folder)))
        return True
    return lineage.token == mark.token and _changed_ns(folder) == mark.changed_ns


def _changed_ns(folder: Path) -> int:
    return (folder / LINEAGE).stat().st_ctime_ns


def _set_mark(connection: Connection, mark: LineageMark) -> None:
    with transaction(connection):
        row = (1, mark.token, mark.next_token, mark.changed_ns)
        connection.execute("INSERT OR REPLACE INTO mark VALUES (?, ?, ?, ?)", row)
