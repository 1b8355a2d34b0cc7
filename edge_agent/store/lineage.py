"""Whose a buffer is, and whether it is the one that was left: small files beside it, and a mark inside it.

The lineage (`lineage.json`) is synced apart from the buffer. It names owner (`tenant/device`), machine and epoch, and a
number that the head never was beyond. It has a token, and the buffer's mark has the same token and the file's change
time, which nobody can set. So a buffer is known to be another one than that which was left when

- the tokens differ: one of the two was put back from an image;
- the token is the same and the change time is not: both were, or the folder was copied;
- the machine is another one: a clone.

Then a new epoch begins, so that no id is given to a second record. The token changes with every start, every clean end,
every 65,536 records, and before the first record after a checkpoint. So the present token is in SQLite's log and not in
the main file, which has an older one if its log is lost. The buffer stores the next token first, so a crash in between
is none of these.

The high-water mark (`head`) is not synced: it is the head behind the last commit, and shows a log that was cut.
SQLite takes a log that was cut, or of which a frame is damaged, for one that ends there. The commits behind the cut are
gone without a trace, and the lineage file knows only what the head never was beyond. This file is written behind each
commit. What it says can be too old (after a power cut) and never too new: a head that it knows was committed. It is
believed within the bound of the lineage, so a damaged one declares no more than a lost log does.
"""

from __future__ import annotations

import json
import os
import secrets
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from struct import Struct

from edge_agent.store.connection import Connection
from edge_agent.store.database import transaction, without_checkpoints
from waybill.daemon.bounded_file import read_bounded
from waybill.daemon.durable_file import replace_durably
from waybill.record import new_epoch

LINEAGE, HIGH_WATER = "lineage.json", "head"
_MAX_BYTES = 16 << 10
HEAD_STEP = 65_536
_VERSION = 3
_HIGH_WATER = Struct(">QQ")


@dataclass(frozen=True, slots=True)
class Lineage:
    """What a small file beside the buffer remembers of its present epoch.

    `owner`: `tenant/device`. `head_limit`: `head` never was beyond this. `pruned_through`: ids up to this had been
    acknowledged or declared.
    """

    owner: str
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


def read_lineage(folder: Path) -> Lineage | None:
    """What the file says; None if there is none that can be read."""
    try:
        version, owner, ordinal, epoch, head_limit, pruned_through, machine, token = json.loads(
            read_bounded(folder / LINEAGE, _MAX_BYTES)
        )
        lineage = Lineage(
            str(owner), int(ordinal), int(epoch), int(head_limit), int(pruned_through), str(machine), int(token)
        )
    except (OSError, ValueError, TypeError, OverflowError, RecursionError):
        # A damaged file may hold anything: int() of `Infinity` overflows, and nothing but brackets is too deep.
        return None
    return lineage if version == _VERSION else None


def write_lineage(folder: Path, lineage: Lineage) -> None:
    """Replaces the file, synced. Raises OSError."""
    fields = (lineage.owner, lineage.ordinal, lineage.epoch, lineage.head_limit, lineage.pruned_through)
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


def read_high_water(folder: Path, epoch: int) -> int:
    """The highest head that is known of an epoch; 0 if none is."""
    with suppress(OSError, ValueError):
        data = read_bounded(folder / HIGH_WATER, _HIGH_WATER.size)
        if len(data) == _HIGH_WATER.size and _HIGH_WATER.unpack(data)[0] == epoch:
            return int(_HIGH_WATER.unpack(data)[1])
    return 0


def write_high_water(folder: Path, epoch: int, head: int) -> None:
    """Notes the head of an epoch, in place, as far as the file system lets it."""
    with suppress(OSError):
        descriptor = os.open(folder / HIGH_WATER, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            # In place and not synced: it is written behind every commit, and a sync for it would double the wear.
            os.pwrite(descriptor, _HIGH_WATER.pack(epoch, head), 0)
        finally:
            os.close(descriptor)
