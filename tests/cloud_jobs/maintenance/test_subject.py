"""A data subject's request: the export has what the lake has of the device, and an erasure leaves none of it on disk.

Other devices' rows and the bills stay as they are, wherever the erasure is interrupted.
"""

import json
import shutil
import stat
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner, Result

from cloud_jobs.__main__ import app
from cloud_jobs.config import CloudSettings
from cloud_jobs.explain.issued_line import explain_line
from cloud_jobs.lake.erasures import Erasure
from cloud_jobs.lake.schemas import TABLES
from cloud_jobs.lake.tables import Lake
from cloud_jobs.maintenance.compaction import MaintenancePoint
from cloud_jobs.maintenance.erasing import access_log_of
from tests.cloud_jobs.billing.register.billed_lake import BilledLake
from tests.cloud_jobs.billing.register.metered_lake import FIXES, JANUARY, TEN, meter, metered_lake, state
from tests.cloud_jobs.maintenance.upkeep import run
from tests.system.lake_of_fixes import LakeFix, ingest

LATITUDE, LONGITUDE = 0.005678901, 0.020123189
DAY = datetime(2026, 1, 5, tzinfo=UTC)
REQUEST = Erasure("acme", "eu-1", DAY + timedelta(days=1), DAY)
OTHER_DAY = TEN + timedelta(days=3)
SETTINGS: dict[str, Any] = {"erase_after_jobs": True, "removed_files_kept_hours": 0}
_NO_END = {"erase_positions_after_days": 36_500, "erase_quarantine_after_days": 36_500}
"""These days are older than any default some day."""
_ABOUT = {"tenant": "acme", "epoch": 7, "seq": 1, "kind": "enter", "place": "square", "value": 0.0, "revision": 1}
_ABOUT |= {
    "region": "eu",
    "verdict": "confirmed",
    "retracted": False,
    "parts": "[]",
    "min_m": 1.0,
}
_DERIVED = ("alerts", "verdicts", "geofence_events")


@pytest.fixture(scope="module")
def driven(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A lake of four devices with usage and bills; eu-1 was at an unmistakable place, and drove on another day, too."""
    billed = metered_lake(tmp_path_factory.mktemp("driven") / "lake")
    moments = [*(TEN + timedelta(hours=2, minutes=at) for at in range(3)), OTHER_DAY]
    ingest(billed.lake, [LakeFix("eu-1", FIXES + 2 + at, one, LATITUDE, LONGITUDE) for at, one in enumerate(moments)])
    state(billed.lake, "eu-1", count=FIXES + 1 + len(moments))
    meter(billed)
    for device in ("eu-1", "eu-2"):
        for time in (TEN, OTHER_DAY):
            about = _ABOUT | {"id": f"{device} {time}", "device": device, "time": time, "day": time.date()}
            about["quarantined_at"] = time
            for table in _DERIVED:
                append(billed.lake, table, about)
            detail = {"kind": "position", "device_time": time.isoformat(), "latitude": LATITUDE}
            detail |= {"latitude": 1.0} if device == "eu-2" else {}
            append(
                billed.lake,
                "quarantine",
                about | {"cause": "conflict", "fingerprint": f"{device} {time}"} | {"detail": json.dumps(detail)},
            )
    for other in ("eu-2", "us-1"):
        met = _ABOUT | {"id": f"met-{other[:2]}", "device_a": "eu-1" if other == "eu-2" else "eu-2", "device_b": other}
        append(billed.lake, "encounters", met | {"start": TEN, "end": TEN, "min_at": TEN, "day": TEN.date()})
    append(billed.lake, "quarantine", {"cause": "malformed", "fingerprint": "m", "payload": b"not a batch"})
    return Path(billed.lake.path("records")).parent


@pytest.fixture
def lake(driven: Path, tmp_path: Path) -> Lake:
    return Lake(Path(shutil.copytree(driven, tmp_path / "lake")))


def append(lake: Lake, table: str, row: dict[str, Any]) -> None:
    """One row, with what its table does not leave empty and a test says nothing of."""
    schema = TABLES[table].schema
    number = 1 + max(lake.rows(table, ["commit_number"])["commit_number"].to_pylist(), default=0)
    row = row | {"commit_number": number}
    empty: dict[Any, Any] = {pa.timestamp("us", "UTC"): TEN}
    lake.append(
        table,
        [{field.name: row.get(field.name, empty.get(field.type) if not field.nullable else None) for field in schema}],
    )


def subject(lake: Lake, command: str, *options: str, **settings: object) -> Result:
    folder = Path(lake.path("records")).parent
    config = folder.parent / "cloud.toml"
    kept = "".join(f"{name} = {str(value).lower()}\n" for name, value in (SETTINGS | _NO_END | settings).items())
    config.write_text(
        f'lake = "{folder}"\ncheckpoints = "{folder.parent}"\n'
        '[[clusters]]\nname = "hq"\nservice_url = "pulsar://127.0.0.1:1"\nadmin_url = "http://127.0.0.1:1"\n'
        f"[maintenance]\n{kept}",
        encoding="utf-8",
    )
    days = ("--from", "2026-01-05", "--until", "2026-01-06")
    return CliRunner().invoke(app, ["subject", command, "acme/eu-1", "-c", str(config), *days, *options])


def rows_but(lake: Lake, device: str) -> dict[str, list[str]]:
    return {
        table: sorted(str(row) for row in lake.rows(table).to_pylist() if device not in str(row))
        for table in ("records", *_DERIVED, "encounters", "usage", "quarantine")
    }


def places_on_disk(lake: Lake) -> Iterator[Path]:
    """The files that have the unmistakable place, named by a commit or not."""
    for path in sorted(Path(lake.path("records")).parent.rglob("*")):
        if path.suffix == ".parquet" and "_delta_log" not in path.parts:
            read = str(pq.read_table(path, partitioning=None).to_pylist())
        else:
            read = path.read_bytes().decode("latin-1") if path.is_file() else ""
        if str(LATITUDE) in read or str(LONGITUDE) in read:
            yield path


def bills(billed: BilledLake, name: str) -> list[tuple[str, int]]:
    return [(one.key.payer, one.net_minor) for one in billed.close(name, days=JANUARY)]


def test_the_export_has_what_the_lake_has_of_the_device_and_the_days(lake: Lake, tmp_path: Path) -> None:
    assert subject(lake, "export", "--to", str(tmp_path / "out")).exit_code == 0
    out = {path.name: path.read_text() for path in (tmp_path / "out").iterdir()}
    records = [json.loads(line) for line in out["records.jsonl"].splitlines()]
    expected = [
        row
        for row in lake.rows("records").to_pylist()
        if row["device"] == "eu-1" and row["device_time"] < REQUEST.before
    ]
    assert sorted(one["seq"] for one in records) == sorted(row["seq"] for row in expected)
    times = [one["device_time"] for one in records]
    assert times == sorted(times)
    assert all(name in out["README.txt"] for name in out if name != "README.txt")
    manifest = json.loads(out["manifest.json"])
    lines = {name: len(text.splitlines()) for name, text in out.items() if name.endswith(".jsonl")}
    assert {f"{name}.jsonl": count for name, count in manifest["rows"].items()} == lines
    assert {name: lines[f"{name}.jsonl"] for name in (*_DERIVED, "encounters", "quarantine")} == {
        **dict.fromkeys((*_DERIVED, "encounters"), 1),
        "quarantine": 1,
    }
    assert not any("eu-2" in text for text in out.values()), "the other one of an encounter is another person"
    assert {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "out").iterdir()} == {0o600}
    again = subject(lake, "export", "--to", str(tmp_path / "out"))
    assert (again.exit_code, "is not empty" in again.output) == (1, True)


def test_after_an_erasure_nothing_of_the_device_is_on_the_disk_and_the_bills_are_the_same(lake: Lake) -> None:
    # of the other day it may have been at the same place: that goes, too
    whole = Erasure("acme", "eu-1", OTHER_DAY + timedelta(days=1), DAY)
    billed, others = BilledLake(lake), rows_but(lake, "eu-1")
    owed, place = bills(billed, "before"), [*places_on_disk(lake)]
    number = next(one.number for one in billed.issue("clerk", JANUARY).documents if one.key.payer == "acme")
    assert place
    assert not run(lake, whole, **SETTINGS).all_errors
    assert not run(lake, **SETTINGS).all_errors
    assert [*places_on_disk(lake)] == []
    assert rows_but(lake, "eu-1") == others
    assert bills(billed, "after") == owed
    found = explain_line(billed.register, number, 1)
    assert (found.erased_before, found.explanation.agrees) == (OTHER_DAY + timedelta(days=1), None)


def test_the_command_says_erased_only_when_the_files_are_gone(lake: Lake) -> None:
    counted = subject(lake, "erase", "--dry-run")
    assert (counted.exit_code, f"records: {FIXES + 4} rows" in counted.output) == (0, True)
    assert subject(lake, "erase").exit_code == 1, "nobody confirmed it"
    # another tenant's device has the same name
    append(lake, "geofence_events", _ABOUT | {"id": "other", "tenant": "other", "device": "eu-1", "day": TEN.date()})
    first = subject(lake, "erase", "--yes", removed_files_kept_hours=24)
    assert (first.exit_code, "unreadable from now on" in first.output) == (3, True)
    assert not run(lake, **SETTINGS).all_errors
    second = subject(lake, "erase", "--yes")
    assert (second.exit_code, "acme/eu-1: erased" in second.output) == (0, True)
    left = lake.rows("records", ["device", "device_time"]).to_pylist()
    assert [row["device_time"] for row in left if row["device"] == "eu-1"] == [OTHER_DAY]
    assert lake.rows("encounters")["id"].to_pylist() == ["met-us"]
    for table in _DERIVED:
        others = ["other"] * (table == "geofence_events")
        ids = [f"eu-1 {OTHER_DAY}", f"eu-2 {TEN}", f"eu-2 {OTHER_DAY}", *others]
        assert sorted(lake.rows(table)["id"].to_pylist()) == ids


@pytest.mark.parametrize("stride", [6, pytest.param(1, marks=pytest.mark.nightly)])
def test_an_erasure_that_is_killed_between_any_two_of_its_steps_is_finished_by_the_next_run(
    driven: Path, tmp_path: Path, stride: int
) -> None:
    def killed_at(step: int) -> Lake | None:
        """A lake whose erasure was killed at a step, and run again; None: it was done before that."""
        lake, steps = Lake(Path(shutil.copytree(driven, tmp_path / f"lake-{step}"))), iter(range(step + 1))
        erased = list[bool]()

        def reached(point: MaintenancePoint) -> None:
            erased.append(point is MaintenancePoint.ERASED)
            if next(steps, None) == step:
                raise KeyboardInterrupt

        try:
            run(lake, REQUEST, reached=reached, **SETTINGS)
        except KeyboardInterrupt:
            # whoever comes next knows of the request from the lake
            run(lake, **SETTINGS)
        return None if any(erased) else lake

    expected, steps = Lake(Path(shutil.copytree(driven, tmp_path / "whole"))), 0
    run(expected, REQUEST, **SETTINGS)
    while (lake := killed_at(steps)) is not None:
        assert rows_but(lake, "nobody") == rows_but(expected, "nobody"), f"killed at step {steps}"
        shutil.rmtree(Path(lake.path("records")).parent)
        steps += stride
    assert steps > 10


def test_by_default_positions_go_after_400_days_but_not_before_the_ingest_takes_them_for_old(tmp_path: Path) -> None:
    given: dict[str, Any] = {"lake": str(tmp_path), "checkpoints": tmp_path}
    given["clusters"] = [{"name": "hq", "service_url": "pulsar://h:1", "admin_url": "http://h:1"}]
    assert CloudSettings.model_validate(given).upkeep.erase_positions_after_days == 400
    replay = CloudSettings.model_validate(given | {"ingest": {"max_age_days": 36_500}}).upkeep
    assert replay.erase_positions_after_days == replay.erase_events_after_days == 36_500
    chosen = CloudSettings.model_validate(given | {"maintenance": {"erase_positions_after_days": 30}}).upkeep
    assert (chosen.erase_positions_after_days, chosen.erase_events_after_days) == (30, 30)
    with pytest.raises(ValueError, match="are computed again"):
        CloudSettings.model_validate(given | {"maintenance": {"erase_events_after_days": 30}})


def test_whoever_reads_positions_is_logged_first_or_reads_nothing(lake: Lake, tmp_path: Path) -> None:
    log = access_log_of(lake.location)
    assert subject(lake, "export", "--to", str(tmp_path / "one")).exit_code == 0
    [line] = [json.loads(one) for one in log.read_text().splitlines()]
    assert (line["command"], line["devices"], bool(line["user"])) == ("cloud-jobs subject export", ["acme/eu-1"], True)
    assert (line["since"], line["until"]) == ("2026-01-05T00:00:00Z", "2026-01-06T00:00:00Z")
    log.unlink()
    log.mkdir()
    refused = subject(lake, "export", "--to", str(tmp_path / "two"))
    assert (refused.exit_code, "cannot be written" in refused.output, (tmp_path / "two").exists()) == (1, True, False)
