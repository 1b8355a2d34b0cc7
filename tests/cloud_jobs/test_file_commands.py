"""The two commands on files: what anybody can try before they charge."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer import Typer
from typer.testing import CliRunner, Result

from cloud_jobs.measure import encounters, measure

app = Typer()
app.command("measure")(measure)
app.command("encounters")(encounters)

SQUARE = {
    "type": "Polygon",
    "coordinates": [[[10.0, 50.0], [10.01, 50.0], [10.01, 50.01], [10.0, 50.01], [10.0, 50.0]]],
}
FENCES = [
    {"type": "Feature", "properties": {"id": "depot"}, "geometry": SQUARE},
    {
        "type": "Feature",
        "properties": {"id": "flat"},
        "geometry": {"type": "Polygon", "coordinates": [[[0, 0], [1, 1], [0, 0]]]},
    },
    {
        "type": "Feature",
        "properties": {"id": "far"},
        "geometry": {"type": "Polygon", "coordinates": [[[0, 0], [1, 0], [1, 1], [0, 0]]]},
    },
]
FIXES = """device_id,t_ms,lat,lon
007,0,50.005,9.995
007,60000,50.005,10.005
007,120000,fifty,10.006
007,120000,50.005,10.015
"quoted, id",0,50.005,10.005
007,bad
\"
"quoted, id",60000,50.005,10.006
"""


def run(folder: Path, command: str, *options: str, fixes: str = FIXES, status: int = 0) -> tuple[list[list[str]], str]:
    (folder / "fixes.csv").write_bytes(fixes.encode(errors="surrogateescape"))
    text = '{"type": "FeatureCollection", "features": [\n' + ",\n".join(map(json.dumps, FENCES)) + "]}"
    (folder / "fences.geojson").write_text(text, encoding="utf-8")
    places = ["--fixes", str(folder / "fixes.csv"), "--out", str(folder / "out.csv")]
    if command == "measure":
        places += ["--fences", str(folder / "fences.geojson")]
    done = CliRunner().invoke(app, [command, *places, *options])
    assert done.exit_code == (status or (3 if command == "measure" else 0)), done.output
    with (folder / "out.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.reader(file)), done.stderr


def test_measure_writes_each_fence_on_its_own_and_the_whole_track(tmp_path: Path) -> None:
    rows, _ = run(tmp_path, "measure", "--max-gap-s", "120")
    assert rows[0] == ["device_id", "fence_id", "km", "seconds", "entries"]
    table = {(row[0], row[1]): [float(cell) for cell in row[2:]] for row in rows[1:]}
    assert set(table) == {(device, fence) for device in ("007", "quoted, id") for fence in ("depot", "far", "*")}
    assert table["007", "depot"][1:] == [60.0, 1.0]
    assert table["007", "*"][1:] == [120.0, 0.0]
    assert table["007", "depot"][0] == pytest.approx(table["007", "*"][0] / 2, rel=1e-6)
    assert table["quoted, id", "depot"][1:] == [60.0, 0.0]
    assert table["007", "far"] == [0.0, 0.0, 0.0]


def test_what_is_malformed_is_named_with_its_line_and_hides_nothing(tmp_path: Path) -> None:
    _, said = run(tmp_path, "measure")
    for part in (
        "fixes.csv: line 4: lat 'fifty' is not a number",
        "fixes.csv: line 7: 2 columns",
        "fixes.csv: line 8:",
    ):
        assert part in said
    assert "fences.geojson: line 3: fence 'flat'" in said
    assert "line 2" not in said


def test_encounters_names_each_pair_once_in_text_order(tmp_path: Path) -> None:
    fixes = "device_id,t_ms,lat,lon\n" + "".join(
        f"{name},{t},50.0,{10 + at / 1000}\n" for at, name in enumerate(["b", "a", "10"]) for t in (0, 60_000)
    )
    rows, _ = run(tmp_path, "encounters", "--distance-m", "100", "--max-gap-s", "600", fixes=fixes)
    assert rows[0] == ["device_a", "device_b", "start_ms", "end_ms", "min_m", "t_min_ms"]
    assert [row[:4] for row in rows[1:]] == [["10", "a", "0", "60000"], ["a", "b", "0", "60000"]]
    assert float(rows[1][4]) == pytest.approx(71.695, abs=0.01)


def measured(folder: Path, fixes: bytes, fences: bytes, *options: str, out: str = "out.csv") -> Result:
    (folder / "fixes.csv").write_bytes(fixes)
    (folder / "fences.geojson").write_bytes(fences)
    places = ["--fixes", str(folder / "fixes.csv"), "--fences", str(folder / "fences.geojson")]
    return CliRunner().invoke(app, ["measure", *places, "--out", str(folder / out), *options])


GOOD_FIXES = b"device_id,t_ms,lat,lon\na,0,50.005,9.995\na,60000,50.005,10.005\n"
GOOD_FENCES = json.dumps(FENCES[0]).encode()


def test_the_exit_status_says_whether_all_was_used_and_a_failure_leaves_the_old_file_as_it_was(tmp_path: Path) -> None:
    out = tmp_path / "out.csv"
    assert measured(tmp_path, GOOD_FIXES, GOOD_FENCES).exit_code == 0
    written = out.read_bytes()
    assert measured(tmp_path, GOOD_FIXES + b"a,soon,50,10\n", GOOD_FENCES).exit_code == 3
    assert measured(tmp_path, GOOD_FIXES, GOOD_FENCES + b"{").exit_code == 3
    for fixes, fences in ((b"device,t_ms\n", GOOD_FENCES), (GOOD_FIXES, b"[" * 100_000), (GOOD_FIXES, b"\xff\xfe")):
        done = measured(tmp_path, fixes, fences)
        assert (done.exit_code, done.exception.__class__, out.read_bytes()) == (1, SystemExit, written)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["fences.geojson", "fixes.csv", "out.csv"]


@pytest.mark.parametrize(
    ("fixes", "said"),
    [
        (b"device_id,t_ms,lat,lon\n", "holds no fix that can be used"),
        (b"device_id,t_ms,lat,lon\na,1,500,10\n", "holds no fix that can be used"),
        (b"device_id,t_ms,lat,lon\na,1767603402,50,10\na,1767603462,50,10\n", "seconds"),
    ],
)
def test_a_file_of_which_nothing_can_be_used_is_refused_and_says_why(tmp_path: Path, fixes: bytes, said: str) -> None:
    done = measured(tmp_path, fixes, GOOD_FENCES)
    assert (done.exit_code, said in done.stderr, (tmp_path / "out.csv").exists()) == (1, True, False)


def test_a_fence_in_latitude_longitude_order_is_named_where_fixes_show_it(tmp_path: Path) -> None:
    swapped = json.loads(json.dumps(FENCES[0]))
    swapped["properties"]["id"] = "turned"
    (ring,) = swapped["geometry"]["coordinates"]
    swapped["geometry"]["coordinates"] = [[[lat, lon] for lon, lat in ring]]
    said = "'turned' may have the latitude first, and GeoJSON has the longitude first: swapped, it would be where fixes"
    both = {"type": "FeatureCollection", "features": [FENCES[0], swapped]}
    for fences in (swapped, both):
        done = measured(tmp_path, GOOD_FIXES, json.dumps(fences).encode())
        assert (done.exit_code, said in done.stderr) == (0, True), done.stderr


def test_fences_of_another_datum_are_refused_and_nothing_is_measured(tmp_path: Path) -> None:
    crs = {"type": "name", "properties": {"name": "urn:ogc:def:crs:EPSG::4314"}}
    done = measured(
        tmp_path, GOOD_FIXES, json.dumps({"type": "FeatureCollection", "crs": crs, "features": FENCES}).encode()
    )
    assert (done.exit_code, (tmp_path / "out.csv").exists()) == (1, False)
    assert "its crs is 'urn:ogc:def:crs:EPSG::4314', and positions are WGS84" in done.stderr


@pytest.mark.parametrize(
    ("first", "second"), [("12", "12.0"), ("K\u00f6ln-1", "Ko\u0308ln-1"), ("van 1", "van\u00a01")]
)
def test_devices_whose_ids_read_the_same_are_refused_with_both_spelled_out(
    tmp_path: Path, first: str, second: str
) -> None:
    rows = "".join(f"{name},{time},50.005,10\n" for time in (0, 60_000) for name in (first, "other", second))
    done = measured(tmp_path, f"device_id,t_ms,lat,lon\n{rows}".encode(), GOOD_FENCES)
    assert done.exit_code == 3, done.output
    assert f"line 2: the device is written {first!a}, and {second!a} (line 4) reads the same" in done.stderr
    with (tmp_path / "out.csv").open(encoding="utf-8", newline="") as file:
        assert {row[0] for row in csv.reader(file)} == {"device_id", "other"}


def test_the_commands_load_no_spark() -> None:
    program = "import sys, cloud_jobs.measure, cloud_jobs.measure; sys.exit('pyspark' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], timeout=60, check=False).returncode == 0


@pytest.mark.parametrize("which", ["fixes.csv", "fences.geojson", "linked.csv"])
def test_a_result_never_replaces_an_input(tmp_path: Path, which: str) -> None:
    fixes, fences, linked = tmp_path / "fixes.csv", tmp_path / "fences.geojson", tmp_path / "linked.csv"
    fixes.write_text("device_id,t_ms,lat,lon\na,0,0,0\na,1000,0,0.001\n")
    fences.write_text("{}")
    linked.symlink_to(fixes)
    before = fixes.read_text()
    files = ["--fixes", str(fixes), "--out", str(tmp_path / which)]
    ran = CliRunner().invoke(app, ["measure", *files, "--fences", str(fences)])
    assert (ran.exit_code, "input" in ran.output) == (2, True)
    if which != "fences.geojson":
        assert CliRunner().invoke(app, ["encounters", *files, "--distance-m", "10"]).exit_code == 2
    assert (fixes.read_text(), fences.read_text()) == (before, "{}")


def test_the_name_of_a_device_is_no_formula_in_what_the_commands_write(tmp_path: Path) -> None:
    fixes = "device_id,t_ms,lat,lon\n"
    for t_ms in (0, 60_000):
        fixes += f"=A1,{t_ms},50.005,10.005\n@SUM(A1),{t_ms},50.005,10.005\n"
    rows, _ = run(tmp_path, "encounters", "--distance-m", "100", fixes=fixes)
    assert [row[:2] for row in rows[1:]] == [["'=A1", "'@SUM(A1)"]]
    rows, _ = run(tmp_path, "measure", fixes=fixes)
    assert {row[0] for row in rows[1:]} == {"'=A1", "'@SUM(A1)"}
