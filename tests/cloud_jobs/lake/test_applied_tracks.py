"""The track settings that usage was computed with: stated by its commit, pinned by each snapshot, never guessed."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from cloud_jobs.errors import LakeError
from cloud_jobs.lake.snapshots import note_tracks, read_snapshot, take_snapshot
from cloud_jobs.lake.tables import TRACKS, Lake
from geo.spatial import TrackSettings
from tests.system.lake_of_fixes import derive, lake_of

NOW = datetime(2026, 2, 1, tzinfo=UTC)
USUAL = TrackSettings()


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return lake_of(tmp_path / "lake")


def apply(lake: Lake, tracks: TrackSettings) -> None:
    derive(lake, "usage", states={TRACKS: note_tracks(lake, tracks.model_dump())})


def test_other_settings_are_another_snapshot_and_each_says_its_own(lake: Lake) -> None:
    apply(lake, USUAL)
    first = take_snapshot(lake, NOW)
    apply(lake, TrackSettings(max_gap_s=60))
    second = take_snapshot(lake, NOW)
    assert (first.number, second.number) == (1, 2)
    gaps = [json.loads(read_snapshot(lake, one.id).usage_tracks or "")["max_gap_s"] for one in (first, second)]
    assert gaps == [300.0, 60.0]


def test_a_snapshot_has_its_settings_whatever_becomes_of_their_file(lake: Lake) -> None:
    apply(lake, USUAL)
    taken = take_snapshot(lake, NOW)
    for file in Path(lake.path("applied_tracks")).rglob("*.json"):
        file.unlink()
    assert read_snapshot(lake, taken.id) == taken
    # a new one would say something that nobody knows
    with pytest.raises(LakeError, match="run `cloud-jobs usage`, which writes them again"):
        take_snapshot(lake, NOW)
    note_tracks(lake, USUAL.model_dump())
    assert take_snapshot(lake, NOW) == taken
