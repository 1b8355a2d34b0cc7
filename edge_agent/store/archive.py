"""Database files that were moved out of the way, kept for whoever wants to look into them."""

from __future__ import annotations

from pathlib import Path

from runtime import sync_folder

FOREIGN = "foreign"
"""Why a file was kept that belongs to another device, or to another tenant's of this name."""


def archive_database(database: Path, why: str = "damaged") -> Path:
    """Moves a file and its log out of the way; where to. Interrupted, it is ended by `finish_archiving`.

    The file goes first: without its log it would be an older buffer, and give ids a second time.
    """
    before = archived_databases(database, why)
    number = int(before[-1].name.rpartition("-")[2]) + 1 if before else 1
    archived = database.with_name(f"{database.stem}.{why}-{number}")
    if database.exists():
        database.rename(archived)
        # In between: a power cut may keep the second rename and take back the first.
        sync_folder(database.parent)
    finish_archiving(database, archived)
    return archived


def archived_databases(database: Path, why: str = "damaged") -> list[Path]:
    """The files that were archived, the oldest first."""
    paths = [
        path for path in database.parent.glob(f"{database.stem}.{why}-*") if path.name.rpartition("-")[2].isdigit()
    ]
    return sorted(paths, key=lambda path: int(path.name.rpartition("-")[2]))


def finish_archiving(database: Path, archived: Path) -> None:
    """Moves what belongs to an archived file, so that no new file takes it for its own."""
    for suffix in ("-wal", "-shm"):
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
