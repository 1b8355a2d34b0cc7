"""A recorded track as a fleet."""

import json
from collections import Counter
from pathlib import Path

import pytest

from simulator import TrackError, drive, read_folder, read_recording, recorded_scenario, write_folder
from tests.simulator.runs import RECORDING, run_in

HEADER = "id,vehicle_id,trip_id,timestamp,latitude,longitude,bearing\n"
needs_recording = pytest.mark.skipif(not RECORDING.exists(), reason=f"{RECORDING.name} is not here")


def written(folder: Path, *rows: str, header: str = HEADER) -> Path:
    path = folder / "track.csv"
    path.write_text(header + "".join(f"{row}\n" for row in rows))
    return path


@needs_recording
def test_the_recorded_buses_are_all_read() -> None:
    recording = read_recording(RECORDING)
    assert recording.rows == 1533
    assert recording.left_out == {}
    assert len(recording.fixes) == 8
    assert sum(len(fixes) for fixes in recording.fixes.values()) == 1533


@needs_recording
def test_the_recorded_buses_are_driven_as_they_drove(tmp_path: Path) -> None:
    recording = read_recording(RECORDING)
    scenario, track = recorded_scenario(recording, seed=7, regions=("eu", "us"))
    truth = run_in(tmp_path, scenario, track)
    assert Counter(device[:2] for device in truth.devices) == {"eu": 4, "us": 4}
    assert sum(len(truth.positions(device)) for device in truth.devices) == 1533
    first = min(fix.time_us for device in truth.devices for fix in truth.positions(device))
    assert first == round(scenario.start.timestamp() * 1_000_000)
    assert all(truth.owed(payer).gross_minor > 0 for payer in truth.payers)


@needs_recording
def test_a_recorded_scenario_reads_back_from_its_folder(tmp_path: Path) -> None:
    scenario, track = recorded_scenario(read_recording(RECORDING), seed=7, regions=("eu", "us"))
    write_folder(tmp_path, scenario, track)
    again, track_again = read_folder(tmp_path)
    assert again == scenario
    assert list(drive(again, track_again)) == list(drive(scenario, track))


def test_odd_rows_are_left_out_and_counted(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        "1,a,t1,2026-01-26 10:00:00,53.4,-2.9,10",
        "2,a,t1,2026-01-26 10:00:00,53.5,-2.9,10",
        "3,a,t1,2026-01-26 09:59:00,53.3,-2.9,",
        "4,a,t1,yesterday,53.4,-2.9,10",
        "5,a,t1,2026-01-26 10:02:00,153.4,-2.9,10",
        "6,,t1,2026-01-26 10:03:00,53.4,-2.9,10",
        "7,a,t1",
    )
    recording = read_recording(path)
    assert recording.rows == 7
    assert [fix.latitude for fix in recording.fixes["a"]] == [53.3, 53.4], "in order of time, first of a time kept"
    assert recording.left_out == {
        "second row of the same vehicle and time": 1,
        "a field that cannot be read": 2,
        "a position that is not on Earth": 1,
        "no vehicle": 1,
    }


def test_times_are_utc_unless_they_say_otherwise(tmp_path: Path) -> None:
    path = written(tmp_path, "1,a,t,2026-01-26 10:00:00,53.4,-2.9,", "2,a,t,2026-01-26T11:30:00+01:00,53.4,-2.9,")
    first, second = read_recording(path).fixes["a"]
    assert second.time_ms - first.time_ms == 30 * 60 * 1000


def test_a_trip_begins_and_ends_with_an_event(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        "1,a,t1,2026-01-26 10:00:00,53.40,-2.90,",
        "2,a,t1,2026-01-26 10:01:00,53.41,-2.91,",
        "3,a,t2,2026-01-26 10:02:00,53.42,-2.92,",
    )
    scenario, track = recorded_scenario(read_recording(path), seed=1, regions=("eu",))
    said = [json.loads(m.payload) for m in drive(scenario, track) if m.topic == "vehicle/event"]
    assert [(event["name"], event["attributes"]["trip"]) for event in said] == [
        ("trip_start", "t1"),
        ("trip_end", "t1"),
        ("trip_start", "t2"),
        ("trip_end", "t2"),
    ]


@pytest.mark.parametrize(
    ("header", "rows", "reason"),
    [
        ("a,b\n", (), "columns are missing: vehicle_id, trip_id, timestamp"),
        (HEADER, (), "none of 0 rows can be used"),
        (HEADER, ("1,a,t,never,1,2,",), "none of 1 rows can be used"),
    ],
)
def test_a_file_that_is_no_track_is_refused(tmp_path: Path, header: str, rows: tuple[str, ...], reason: str) -> None:
    with pytest.raises(TrackError, match=reason):
        read_recording(written(tmp_path, *rows, header=header))
