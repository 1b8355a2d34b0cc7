"""The fences that a derived table was last computed with: kept beside the tables, and named by the table's own commit.

A commit states the number of a set of fences, which follows from what they are; their file is written before it. So
what the table was computed with is always known, or was never committed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from contextlib import suppress
from typing import Final
from uuid import uuid4

from deltalake import DeltaTable
from pyarrow.fs import FileSelector, FileType

from cloud_jobs.errors import LakeError
from cloud_jobs.fence_changes import EVERYTHING, FenceChange, changes_between
from cloud_jobs.lake.location import error_text
from cloud_jobs.lake.tables import FENCES, Lake
from cloud_jobs.lake.transactions import stated
from geo.spatial import FenceError

COMPUTED_WITH_FENCES: Final = ("usage", "geofence_events")
"""The tables that may state it."""
_FOLDER: Final = "applied_fences"
_FEATURES: Final = "features"


def fences_number(features: Sequence[str]) -> int:
    """The number of a set of fences (features, each on one line): of another set it is another one."""
    # a signed 64-bit integer that is not negative
    return int.from_bytes(hashlib.sha256(_content(features)).digest()[:8], "big") >> 1


def note_fences(lake: Lake, features: Sequence[str]) -> int:
    """Writes a set of fences where `changes_since` finds it, and returns its number. Raises OSError, LakeError."""
    files, number = lake.files(_FOLDER), fences_number(features)
    if _read(lake, number) is None:
        files.create_dir(_FEATURES, recursive=True)
        beside = f"{_FEATURES}/{uuid4().hex}.part"
        with files.open_output_stream(beside) as file:
            file.write(_content(features))
        files.move(beside, _path(number))
    return number


def changes_since(lake: Lake, opened: DeltaTable, features: Sequence[str], reach_ms: int) -> list[FenceChange]:
    """How fences differ from those that a table was computed with. Where that is not known, everything may differ.

    Raises StoreUnavailable, LakeError: a file that is there and gives no answer says nothing of what it holds.
    """
    number = stated(opened, FENCES)
    # also of the same ones the file must be there: to remove it is to have everything computed again
    if number == fences_number(features) and _is_kept(lake, number):
        return []
    before = None if number is None else _read(lake, number)
    if before is None:
        return [EVERYTHING]
    try:
        return changes_between(before, features, reach_ms)
    except (ValueError, RecursionError, FenceError):
        return [EVERYTHING]


def _is_kept(lake: Lake, number: int) -> bool:
    with lake.location.errors_named():
        return lake.files(_FOLDER).get_file_info(_path(number)).type is not FileType.NotFound


def sweep_fences(lake: Lake, older_than_s: float) -> int:
    """Deletes the sets that were written before a moment since 1970 and that no table was last computed with.

    Returns how many. Raises LakeError, OSError. Nothing is wrong without a set: a run computes more than it had to.
    """
    files, used = lake.files(_FOLDER), [stated(lake.open(table), FENCES) for table in COMPUTED_WITH_FENCES]
    listed = files.get_file_info(FileSelector(_FEATURES, allow_not_found=True))
    kept = {_path(number) for number in used if number is not None}
    gone = [info for info in listed if info.is_file and info.path not in kept and info.mtime.timestamp() < older_than_s]
    for info in gone:
        # another run may have been faster
        with suppress(FileNotFoundError):
            files.delete_file(info.path)
    return len(gone)


def _read(lake: Lake, number: int) -> tuple[str, ...] | None:
    """A set of fences by its number; None: it is not kept, or its file holds something else."""
    try:
        with lake.location.errors_named(), lake.files(_FOLDER).open_input_file(_path(number)) as file:
            text = file.read().decode()
    except (FileNotFoundError, UnicodeDecodeError):
        return None
    except OSError as error:
        place = f"{lake.path(_FOLDER)}/{_path(number)}"
        raise LakeError(
            f"the fences that were applied last cannot be read: {place}: {error_text(error)};"
            " if it stays so, remove it: all is computed again then"
        ) from error
    # a carriage return between the tokens of a feature does not end it
    found = tuple(text.split("\n")[:-1])
    return found if fences_number(found) == number else None


def _content(features: Sequence[str]) -> bytes:
    return "".join(f"{feature}\n" for feature in features).encode()


def _path(number: int) -> str:
    return f"{_FEATURES}/{number:016x}.geojson"
