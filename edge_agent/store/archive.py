"""Database files that were moved out of the way, kept for whoever wants to look into them."""

from __future__ import annotations

from pathlib import Path

from waybill.daemon.durable_file import sync_folder

_LOG_OF = "log-of-"
"""Before the name that a file is about to get: its log, until the file has that name."""
FOREIGN = "foreign"
"""Why a file was kept that belongs to another device, or to another tenant's of this name."""


def archive_database(database: Path, why: str = "damaged") -> Path:
    """Moves a file and its log out of the way; where to. Interrupted, it is ended by `finish_archiving`.

    The log goes first, to a name that says where both belong: a file without its log would be an older buffer, and a
    log without its file SQLite deletes.
    """
    before = archived_databases(database, why)
    number = int(before[-1].name.rpartition("-")[2]) + 1 if before else 1
    archived = database.with_name(f"{database.stem}.{why}-{number}")
    log = database.with_name(database.name + "-wal")
    if log.exists():
        log.rename(database.with_name(_LOG_OF + archived.name))
        # In between: a power cut may keep the second rename and take back the first.
        sync_folder(database.parent)
        finish_archiving(database)
    else:
        _move(database, archived)
    return archived


def archived_databases(database: Path, why: str = "damaged") -> list[Path]:
    """The files that were archived, the oldest first."""
    paths = [
        path for path in database.parent.glob(f"{database.stem}.{why}-*") if path.name.rpartition("-")[2].isdigit()
    ]
    return sorted(paths, key=lambda path: int(path.name.rpartition("-")[2]))


def finish_archiving(database: Path) -> None:
    """Ends what broke off `archive_database`, before the file is opened. Raises OSError."""
    for log in database.parent.glob(f"{_LOG_OF}{database.stem}.*"):
        archived = database.with_name(log.name.removeprefix(_LOG_OF))
        if not archived.exists():
            _move(database, archived)
        log.rename(archived.with_name(archived.name + "-wal"))
        sync_folder(database.parent)


def _move(database: Path, archived: Path) -> None:
    for suffix in ("-shm", ""):
        part = database.with_name(database.name + suffix)
        if part.exists():
            part.rename(archived.with_name(archived.name + suffix))
    sync_folder(database.parent)


def delete_damaged(database: Path, keep: int) -> int:
    """Deletes the oldest of the files that were rebuilt: what can be read of them was taken over. How many."""
    old = archived_databases(database)[: -keep or None]
    for path in old:
        delete_database(path)
    return len(old)


def delete_database(database: Path) -> None:
    """Deletes a file and what belongs to it."""
    for suffix in ("", "-wal", "-shm", "-journal"):
        database.with_name(database.name + suffix).unlink(missing_ok=True)
