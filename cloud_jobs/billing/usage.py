"""The track settings and engine of a snapshot's usage, and how far fixes around a period affect it."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any, Final, NamedTuple

from cloud_jobs.lake.snapshots import LakeState
from geo.spatial import TrackSettings

MAX_SEGMENT: Final = timedelta(days=1)
"""A usage row covers segments that end in its hour; a segment begins at most this long before."""


class Reach(NamedTuple):
    """How long before and after a period fixes affect what is metered in it."""

    before: timedelta = timedelta()
    after: timedelta = timedelta()


def reach_at(snapshot: LakeState) -> Reach:
    tracks = tracks_at(snapshot)
    return Reach(timedelta(milliseconds=tracks.margin_ms), timedelta(milliseconds=tracks.reach_ahead_ms))


def tracks_at(snapshot: LakeState) -> TrackSettings:
    stated = _stated(snapshot)
    # the text also has the engine version, and perhaps settings of earlier versions
    return TrackSettings.model_validate({name: stated[name] for name in TrackSettings.model_fields if name in stated})


def engine_at(snapshot: LakeState) -> int | None:
    """The engine version that computed the usage of a snapshot; None if it states none."""
    found: int | None = _stated(snapshot).get("engine_version")
    return found


def _stated(snapshot: LakeState) -> dict[str, Any]:
    # a lake without usage states none
    found: dict[str, Any] = json.loads(snapshot.usage_tracks or "{}")
    return found
