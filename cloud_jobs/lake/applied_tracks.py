"""The track settings that usage was last computed with, with the version of the engine: stated by its table, pinned by
each snapshot, and by their number named by each row.

They decide what a segment is, and so what a row of usage counts. Their files are never swept: a lake has as many as it
had different settings, and each is a line.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

from deltalake import DeltaTable

from cloud_jobs.errors import LakeError
from cloud_jobs.lake.applied_texts import AppliedTexts, text_number
from cloud_jobs.lake.tables import TRACKS, Lake
from cloud_jobs.lake.transactions import stated

_KEPT: Final = AppliedTexts(
    folder="applied_tracks",
    within="settings",
    ending="json",
    what="track settings that usage was computed with",
    else_="remove it: the next run of `cloud-jobs usage` writes it again",
)


def tracks_text(values: Mapping[str, float | None]) -> str:
    """Track settings by their names, as a snapshot pins them: JSON with sorted keys."""
    return json.dumps(dict(values), sort_keys=True, separators=(",", ":"))


def tracks_number(text: str | None) -> int | None:
    """The number of settings that a snapshot pins: as rows of usage name it. None: it pins none."""
    return None if text is None else text_number(text.encode())


def note_tracks(lake: Lake, values: Mapping[str, float | None]) -> int:
    """Writes track settings where `applied_tracks` finds them, and returns their number. Raises OSError, LakeError."""
    return _KEPT.note(lake, tracks_text(values).encode())


def applied_tracks(lake: Lake, usage: DeltaTable) -> str | None:
    """The settings that usage, as it was opened, was computed with, as text; None: it states none.

    Raises StoreUnavailable, LakeError also where they are stated and not kept.
    """
    number = stated(usage, TRACKS)
    if number is None:
        return None
    content = _KEPT.read(lake, number)
    if content is None:
        raise LakeError(
            f"the track settings that usage was computed with are not kept in {lake.path(_KEPT.folder)}:"
            " run `cloud-jobs usage`, which writes them again"
        )
    return content.decode()
