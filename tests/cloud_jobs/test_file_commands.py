"""The two commands on files: what anybody can try before they charge."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest
from typer import Typer
from typer.testing import CliRunner, Result

from cloud_jobs.encounters import encounters
from cloud_jobs.measure import measure
from geo.spatial import FixError, bounded_lines, read_fixes
from geo.spatial.fix_csv import MAX_LINE_CHARS

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


def test_a_gap_longer_than_the_limit_is_not_measured(tmp_path: Path) -> None:
    rows, said = run(tmp_path, "measure", "--max-gap-s", "59")
    assert all(float(row[2]) == 0 for row in rows[1:])
    assert "unknown" in said


def test_without_plausibility_every_fix_counts(tmp_path: Path) -> None:
    wild = "device_id,t_ms,lat,lon,speed_mps,accuracy_m\na,0,50,9,,\na,1000,50.005,10.005,1,5000\na,2000,50,9,,\n"
    kept, _ = run(tmp_path, "measure", "--no-plausibility", fixes=wild)
    checked, said = run(tmp_path, "measure", fixes=wild)
    assert float(kept[1][2]) > 0
    assert float(checked[1][2]) == 0
    assert "1 inaccurate" in said


def test_encounters_names_each_pair_once_in_text_order(tmp_path: Path) -> None:
    fixes = "device_id,t_ms,lat,lon\n" + "".join(
        f"{name},{t},50.0,{10 + at / 1000}\n" for at, name in enumerate(["b", "a", "10"]) for t in (0, 60_000)
    )
    rows, _ = run(tmp_path, "encounters", "--distance-m", "100", "--max-gap-s", "600", fixes=fixes)
    assert rows[0] == ["device_a", "device_b", "start_ms", "end_ms", "min_m", "t_min_ms"]
    assert [row[:4] for row in rows[1:]] == [["10", "a", "0", "60000"], ["a", "b", "0", "60000"]]
    assert float(rows[1][4]) == pytest.approx(71.695, abs=0.01)


def test_a_header_without_a_column_is_refused() -> None:
    with pytest.raises(FixError, match="t_ms"):
        read_fixes(["device_id,lat,lon\n", "a,1,2\n"])


def test_columns_may_stand_in_any_order_and_others_are_passed_over() -> None:
    read = read_fixes(["lon,note,lat,t_ms,device_id\n", "1,x,2,3,d\n", "\n", "1,,2,4,d\n"])
    assert (read.fixes.lon[0], read.fixes.lat[0], read.fixes.t_ms.tolist(), read.devices) == (1.0, 2.0, [3, 4], ("d",))


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


@pytest.mark.parametrize("out", ["nowhere/out.csv", "fixes.csv/out.csv"])
def test_a_path_that_cannot_be_written_is_named(tmp_path: Path, out: str) -> None:
    done = measured(tmp_path, GOOD_FIXES, GOOD_FENCES, out=out)
    assert (done.exit_code, done.exception.__class__) == (1, SystemExit)
    assert out in done.stderr


@pytest.mark.parametrize("gap", ["inf", "nan", "-1", "1e300"])
def test_a_gap_that_is_no_time_is_a_wrong_option(tmp_path: Path, gap: str) -> None:
    assert measured(tmp_path, GOOD_FIXES, GOOD_FENCES, "--max-gap-s", gap).exit_code == 2


def test_rows_beyond_all_measure_are_named_and_the_rest_is_measured(tmp_path: Path) -> None:
    bad = [b"a,%d,50,10" % 10**19, b"a,%d,50,10" % -(2**63), b"a,1,%s,10" % (b"1" * 400), b"LKW-\xdc1,1,50,10"]
    bad += [b"LKW-\xd61,1,50,10", b"a,1_0,50,10", b"a,1,50,1_0", b"a" * 100_000 + b",1,50,10", b"\xff" * 70_000]
    done = measured(tmp_path, GOOD_FIXES + b"\n".join(bad) + b"\n", GOOD_FENCES)
    assert done.exit_code == 3, done.output
    named = [line for line in done.stderr.splitlines() if "fixes.csv: line" in line]
    assert [int(line.split("line ")[1].split(":")[0]) for line in named] == list(range(4, 4 + len(bad)))
    assert "2 fixes kept" in done.stderr


MALFORMED = {
    "a time below the least": f"a,{-(2**63)},50,10",
    "a time at the bound": f"a,{2**53},50,10",
    "an id in another encoding": "LKW-\udcd61,1,50,10",
    "half of a character in an id": "\ud800,1,50,10",
    "a line end in an id": '"a\x0bb",1,50,10',
    "an escape in an id": "a\x1b[2J,1,50,10",
    "an id that turns the line": "\u202edepot,1,50,10",
    "an id too long": "x" * 257 + ",1,50,10",
    "no id": ",1,50,10",
    "a latitude too far": "a,1,91,10",
    "an infinite longitude": "a,1,50,1e999",
}


@pytest.mark.parametrize("row", MALFORMED.values(), ids=MALFORMED.keys())
@pytest.mark.parametrize("count", [1, 1000])
def test_a_block_of_rows_takes_none_that_is_malformed_though_all_are_plainly_written(row: str, count: int) -> None:
    """No other row of the block is malformed or odd, so that nothing but this one can send it to be read row by row."""
    good = [f"a,{at},50,10" for at in range(count)]
    read = read_fixes(["device_id,t_ms,lat,lon", *good, row])
    assert (len(read.fixes), read.fault_count, read.devices) == (count, 1, ("a",))
    assert read.faults[0].startswith(f"line {count + 2}: ")


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("over", [-1, 0, 1, 2, MAX_LINE_CHARS])
def test_a_line_as_long_as_may_be_is_one_line_however_it_ends(tmp_path: Path, end: str, over: int) -> None:
    long = "a,1,50,10,".ljust(MAX_LINE_CHARS + over, "x")
    rows = ["device_id,t_ms,lat,lon,note", long, "a,2,50,10,", "a,soon,50,10,", ""]
    (tmp_path / "fixes.csv").write_bytes(end.join(rows).encode())
    with (tmp_path / "fixes.csv").open(encoding="utf-8") as file:
        read = read_fixes(bounded_lines(file))
    assert len(read.fixes) == (2 if over <= 0 else 1)
    assert [fault.split(":")[0] for fault in read.faults] == [*(["line 2"] if over > 0 else []), "line 4"]


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


@pytest.mark.parametrize(("unit", "factor"), [("seconds", 1), ("microseconds", 1_000_000)])
def test_a_device_whose_times_are_in_another_unit_is_refused_and_the_others_are_measured(
    tmp_path: Path, unit: str, factor: int
) -> None:
    times = range(1_767_600_000, 1_767_600_300, 60)
    rows = [f"good,{time * 1_000},50.005,{9.995 + at / 500}\n" for at, time in enumerate(times)]
    rows += [f"other,{time * factor},50.005,{9.995 + at / 500}\n" for at, time in enumerate(times)]
    done = measured(tmp_path, ("device_id,t_ms,lat,lon\n" + "".join(rows)).encode(), GOOD_FENCES)
    assert done.exit_code == 3, done.output
    assert f"fixes.csv: line 7: device 'other': t_ms holds {unit} (" in done.stderr
    with (tmp_path / "out.csv").open(encoding="utf-8", newline="") as file:
        assert {row[0] for row in csv.reader(file)} == {"device_id", "good"}
    places = ["--fixes", str(tmp_path / "fixes.csv"), "--out", str(tmp_path / "met.csv")]
    done = CliRunner().invoke(app, ["encounters", *places, "--distance-m", "500"])
    assert (done.exit_code, "device 'other'" in done.stderr) == (3, True)


def test_fixes_that_are_nowhere_near_a_fence_are_said_to_be_with_the_places_of_both(tmp_path: Path) -> None:
    swapped = b"device_id,t_ms,lon,lat\na,0,50.005,9.995\na,60000,50.005,10.005\n"
    done = measured(tmp_path, swapped, GOOD_FENCES)
    assert done.exit_code == 0
    assert "no fence is where a fix is: fixes lie at lat 9.9950 to 10.0050" in done.stderr
    assert "no fence is where" not in measured(tmp_path, GOOD_FIXES, GOOD_FENCES).stderr
    kept = measured(tmp_path, b"device_id,t_ms,lat,lon\na,0,0,0\n", GOOD_FENCES)
    assert "no fix was kept" in kept.stderr


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


def test_two_versions_of_a_gate_have_one_row_and_count_a_crossing_once(tmp_path: Path) -> None:
    line = {"type": "LineString", "coordinates": [[10.0, 49.0], [10.0, 51.0]]}
    gates = [
        {"type": "Feature", "properties": {"id": "gate", "gate": True} | since, "geometry": line}
        for since in ({}, {"effective_from": "1969-01-01T00:00:00Z"})
    ]
    assert measured(tmp_path, GOOD_FIXES, "\n".join(map(json.dumps, gates)).encode()).exit_code == 0
    assert (tmp_path / "out.csv").read_text().splitlines()[1:2] == ["a,gate,0.000000000,0.000000,1"]


def test_the_commands_load_no_spark() -> None:
    program = "import sys, cloud_jobs.measure, cloud_jobs.encounters; sys.exit('pyspark' in sys.modules)"
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


HALF = {
    "type": "Feature",
    "properties": {"id": "half"},
    "geometry": {
        "type": "Polygon",
        "coordinates": [[[9.99, 53.54], [10.0, 53.54], [10.0, 53.56], [9.99, 53.56], [9.99, 53.54]]],
    },
}


def test_entries_are_charged_by_the_buffer_and_the_accuracy_that_are_given(tmp_path: Path) -> None:
    """Through the depot, 150 m a step, never more than 30 m from its border."""
    way = "".join(f"a,{10_000 * at},50.0002697,{9.995 + at * 0.002092:.7f}\n" for at in range(19))

    def entries(*options: str) -> str:
        return run(tmp_path, "measure", *options, fixes=f"device_id,t_ms,lat,lon\n{way}")[0][1][4]

    assert (entries(), entries("--buffer-m", "100"), entries("--accuracy-not-said-m", "100")) == ("1", "0", "0")


def test_who_stands_near_another_meets_it_once_by_the_buffer_and_the_accuracy_that_are_given(tmp_path: Path) -> None:
    random, lines = Random(7), ["device_id,t_ms,lat,lon"]
    for at in range(360):
        for name, lat in (("a", 50.0), ("b", 50.00036)):
            place = random.gauss(lat, 1.8e-4), random.gauss(10.0, 2.8e-4)
            lines.append(f"{name},{10_000 * at},{place[0]:.7f},{place[1]:.7f}")

    def met(buffer_m: int, accuracy_m: int) -> int:
        options = ["--buffer-m", str(buffer_m), "--accuracy-not-said-m", str(accuracy_m), "--distance-m", "50"]
        return len(run(tmp_path, "encounters", *options, fixes="\n".join(lines))[0]) - 1

    assert (met(10, 2) > 50, met(100, 2), met(10, 60)) == (True, 1, 1)


def a_parked_day(header: str, said: str, spike: str = "") -> str:
    """A fix a minute of a van at the border of the fence, with noise of four metres; a spike each ten minutes."""
    random = Random(7)
    lines = [header]
    for minute in range(1440):
        lat, lon = 53.55 + random.gauss(0, 3.6e-5), 9.99 + random.gauss(0, 6e-5)
        place = spike if spike and minute % 10 == 5 else f"{lat:.7f},{lon:.7f}"
        lines.append(f"v1,{1_767_600_000_000 + 60_000 * minute},{place}{said}")
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize(
    ("header", "said", "spike", "noisy_km"),
    [
        ("device_id,t_ms,lat,lon,speed_mps,accuracy_m", ",0.0,8.0", "", 5.0),
        ("device_id,t_ms,lat,lon", "", "", 5.0),
        ("device_id,t_ms,lat,lon", "", "53.5500000,9.9673", 400.0),
    ],
)
def test_a_parked_van_is_measured_as_parked(
    header: str, said: str, spike: str, noisy_km: float, tmp_path: Path
) -> None:
    fixes, fences, out = (tmp_path / name for name in ("fixes.csv", "fences.geojson", "usage.csv"))
    fixes.write_text(a_parked_day(header, said, spike))
    fences.write_text(json.dumps(HALF))

    def whole(*more: str) -> tuple[float, int]:
        words = ["measure", "--fixes", str(fixes), "--fences", str(fences), "--out", str(out), *more]
        result = CliRunner().invoke(app, words)
        assert result.exit_code == 0, result.output
        rows = {row["fence_id"]: row for row in csv.DictReader(out.read_text().splitlines())}
        return float(rows["*"]["km"]), int(rows["half"]["entries"])

    km, entries = whole()
    assert (km <= 0.02, entries) == (True, 0)
    km, entries = whole("--rule", "every_fix")
    assert km > noisy_km
    assert entries > 100
