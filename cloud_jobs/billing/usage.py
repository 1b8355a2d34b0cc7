"""How far the usage of a period reaches into the time before it and after it."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Final, NamedTuple

from cloud_jobs.lake.snapshots import LakeState
from geo.spatial import TrackSettings

MAX_SEGMENT: Final = timedelta(days=1)
"""A row is of the hour in which its segments end; the fix where one begins is at most this long before the other."""


class Reach(NamedTuple):
    """How long before a period, and after it, fixes have a say in what is metered in it."""

    before: timedelta = timedelta()
    after: timedelta = timedelta()


def reach_at(snapshot: LakeState) -> Reach:
    """By the track settings that the usage of a snapshot was computed with."""
    tracks = tracks_at(snapshot)
    return Reach(timedelta(milliseconds=tracks.margin_ms), timedelta(milliseconds=tracks.reach_ahead_ms))


def tracks_at(snapshot: LakeState) -> TrackSettings:
    """The track settings that the usage of a snapshot was computed with."""
    text = snapshot.usage_tracks
    # a lake whose usage was never computed states none, and nothing is metered
    stated = {} if text is None else json.loads(text)
    # beside the version of the engine, and perhaps what only an earlier one knew
    return TrackSettings.model_validate({name: stated[name] for name in TrackSettings.model_fields if name in stated})
