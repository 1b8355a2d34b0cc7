"""The file that a command writes: the old one, or the whole new one, never a part."""

from __future__ import annotations

import csv
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path


def write_csv(path: Path, header: tuple[str, ...], rows: Iterable[tuple[object, ...]]) -> None:
    """Writes rows beside `path` and renames; whatever is raised, by the rows too, leaves `path` as it was."""
    if path.exists() and not path.is_file():
        # a pipe or /dev/stdout holds nothing that a part could replace
        with path.open("w", encoding="utf-8", newline="") as stream:
            _write(stream, header, rows)
        return
    path = path.resolve()
    try:
        handle, name = tempfile.mkstemp(prefix=".written-", dir=path.parent)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None
    beside = Path(name)
    try:
        with open(handle, "w", encoding="utf-8", newline="") as file:  # noqa: PTH123  # a descriptor, not a path
            _write(file, header, rows)
            file.flush()
            os.fsync(file.fileno())
        beside.chmod(path.stat().st_mode & 0o777 if path.exists() else 0o666 & ~_umask())
        beside.replace(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


def _write(file: object, header: tuple[str, ...], rows: Iterable[tuple[object, ...]]) -> None:
    writer = csv.writer(file, lineterminator="\n")  # type: ignore[arg-type]  # any text stream
    writer.writerow(header)
    writer.writerows(rows)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
