"""Checkpoints are of one lake: with another one, or with an earlier state of it, nothing is read past or left out."""

import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from cloud_jobs import jobs
from cloud_jobs.config import BoundCheckpoints, CloudSettings
from cloud_jobs.errors import OtherLake
from cloud_jobs.ingest import job
from cloud_jobs.lake.tables import INGEST, Lake
from cloud_jobs.lake.transactions import newest_number
from tests.new_lakes import new_lake
from tests.system.lake_of_fixes import ingest

CLUSTER = {"name": "hq", "service_url": "pulsar://hq:6650", "admin_url": "http://hq:8080"}
PAGE = Path(__file__).parents[2] / "docs/centre.md"
NO_SPARK: Any = None


def bound(lake: Lake, folder: Path) -> BoundCheckpoints:
    made = BoundCheckpoints(folder, lake)
    made.bind()
    return made


def ingest_noted(checkpoints: BoundCheckpoints) -> None:
    ingest(checkpoints.lake, [])
    checkpoints.note(newest_number(checkpoints.lake.open("records"), INGEST) or 0)


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return new_lake(tmp_path / "lake")


@pytest.fixture
def checkpoints(lake: Lake, tmp_path: Path) -> BoundCheckpoints:
    return bound(lake, tmp_path / "notes")


def test_the_checkpoints_of_a_lake_stay_those_of_it_while_it_grows(checkpoints: BoundCheckpoints) -> None:
    ingest_noted(checkpoints)
    # committed, and the process died before the note
    ingest(checkpoints.lake, [])
    bound(checkpoints.lake, checkpoints.folder)
    ingest_noted(checkpoints)
    bound(checkpoints.lake, checkpoints.folder)


@pytest.mark.parametrize("is_gone", [False, True])
def test_after_what_the_page_removes_they_are_those_of_a_lake_that_was_brought_back_or_begun_anew(
    checkpoints: BoundCheckpoints, tmp_path: Path, is_gone: bool
) -> None:
    folder, copy = Path(checkpoints.lake.path("")), tmp_path / "copy"
    (checkpoints.folder / "published").mkdir()
    for name in ("published/encounters", "reading-from"):
        (checkpoints.folder / name).write_text("{}", encoding="utf-8")
    shutil.copytree(folder, copy)
    ingest_noted(checkpoints)
    shutil.rmtree(folder)
    if is_gone:
        checkpoints.lake.create()
    else:
        shutil.copytree(copy, folder)
    with pytest.raises(OtherLake):
        checkpoints.check()
    removed = re.search(r"^\$ rm -rf (checkpoints/.*)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert removed is not None
    for name in removed[1].split():
        path = checkpoints.folder / Path(name).relative_to("checkpoints")
        shutil.rmtree(path, ignore_errors=True)
        path.unlink(missing_ok=True)
    checkpoints.bind()
    assert sorted(path.name for path in checkpoints.folder.iterdir()) == ["of-lake.json", "reading-from"]


def test_a_lake_that_was_brought_back_from_a_copy_needs_the_checkpoints_of_that_copy(
    checkpoints: BoundCheckpoints, tmp_path: Path
) -> None:
    ingest_noted(checkpoints)
    folder = Path(checkpoints.lake.path(""))
    for place in (folder, checkpoints.folder):
        shutil.copytree(place, tmp_path / "copy" / place.name)
    ingest_noted(checkpoints)
    shutil.rmtree(folder)
    shutil.copytree(tmp_path / "copy" / folder.name, folder)
    with pytest.raises(OtherLake, match="of ingest number 2, and it is at 1: it was restored from a backup"):
        checkpoints.check()
    # the commits of another history have other numbers, though they count as far
    ingest(checkpoints.lake, [])
    with pytest.raises(OtherLake, match="of ingest number 2, and it is at 2"):
        checkpoints.check()
    shutil.rmtree(checkpoints.folder)
    shutil.copytree(tmp_path / "copy" / checkpoints.folder.name, checkpoints.folder)
    bound(checkpoints.lake, checkpoints.folder)


def test_no_job_begins_with_the_checkpoints_of_another_lake_and_the_ingest_begins_none_for_them(
    checkpoints: BoundCheckpoints, tmp_path: Path
) -> None:
    def settings(lake: str) -> CloudSettings:
        document = {
            "lake": tmp_path / lake,
            "checkpoints": checkpoints.folder,
            "clusters": [CLUSTER],
            "reference": {"unsigned": True},
        }
        return CloudSettings.model_validate(document)

    with pytest.raises(OtherLake, match="elsewhere"):
        job.start_ingest(NO_SPARK, settings("elsewhere"), available_now=True)
    assert not (tmp_path / "elsewhere").exists()
    Lake(tmp_path / "other").create()
    for run in (jobs.run_usage, jobs.run_geofence, jobs.run_proximity):
        with pytest.raises(OtherLake, match="Check `lake` and `checkpoints`"):
            run(settings("other"))
