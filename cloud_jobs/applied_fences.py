"""The fences that a derived table was last computed with: kept beside the tables, and named by the table's commit."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from deltalake import DeltaTable
from pyarrow.fs import FileSelector

from cloud_jobs.lake.applied_texts import AppliedTexts, text_number
from cloud_jobs.lake.tables import FENCES, Lake
from cloud_jobs.lake.transactions import stated
from geo.spatial import FenceError

if TYPE_CHECKING:
    from cloud_jobs.fence_changes import FenceChange

COMPUTED_WITH_FENCES: Final = ("usage", "geofence_events")
"""The tables that may state it."""
_KEPT: Final = AppliedTexts(
    folder="applied_fences",
    within="features",
    ending="geojson",
    what="fences that were applied last",
    else_="remove it: all is computed again then",
)


def fences_number(features: Sequence[str]) -> int:
    """The number of a set of fences (features, each on one line): of another set it is another one."""
    return text_number(_content(features))


def note_fences(lake: Lake, features: Sequence[str]) -> int:
    """Writes a set of fences where `changes_since` finds it, and returns its number. Raises OSError, LakeError."""
    return _KEPT.note(lake, _content(features))


def changes_since(lake: Lake, opened: DeltaTable, features: Sequence[str], reach_ms: int) -> list[FenceChange]:
    """How fences differ from those that a table was computed with. Where that is not known, everything may differ.

    Raises StoreUnavailable, LakeError: a file that is there and gives no answer says nothing of what it holds.
    """
    # who only asks for a number, as billing does, does not wait for Shapely and PROJ
    from cloud_jobs.fence_changes import EVERYTHING, changes_between  # noqa: PLC0415

    number = stated(opened, FENCES)
    # also of the same ones the file must be there: to remove it is to have everything computed again
    if number == fences_number(features) and _KEPT.is_kept(lake, number):
        return []
    before = None if number is None else _read(lake, number)
    if before is None:
        return [EVERYTHING]
    try:
        return changes_between(before, features, reach_ms)
    except (ValueError, RecursionError, FenceError):
        return [EVERYTHING]


def sweep_fences(lake: Lake, older_than_s: float) -> int:
    """Deletes the sets that were written before a moment since 1970 and that no table was last computed with.

    Returns how many. Raises LakeError, OSError. Nothing is wrong without a set: a run computes more than it had to.
    """
    files, used = lake.files(_KEPT.folder), [stated(lake.open(table), FENCES) for table in COMPUTED_WITH_FENCES]
    listed = files.get_file_info(FileSelector(_KEPT.within, allow_not_found=True))
    kept = {_KEPT.path(number) for number in used if number is not None}
    gone = [info for info in listed if info.is_file and info.path not in kept and info.mtime.timestamp() < older_than_s]
    for info in gone:
        # another run may have been faster
        with suppress(FileNotFoundError):
            files.delete_file(info.path)
    return len(gone)


def _read(lake: Lake, number: int) -> tuple[str, ...] | None:
    """A set of fences by its number; None: it is not kept, or its file holds something else."""
    content = _KEPT.read(lake, number)
    try:
        # a carriage return between the tokens of a feature does not end it
        return None if content is None else tuple(content.decode().split("\n")[:-1])
    except UnicodeDecodeError:
        return None


def _content(features: Sequence[str]) -> bytes:
    return "".join(f"{feature}\n" for feature in features).encode()
