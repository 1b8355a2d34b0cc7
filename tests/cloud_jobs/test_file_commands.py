"""The two commands on files: what anybody can try before they charge."""

import csv
import io
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import ArrowException
from rich.cells import cell_len
from rich.console import Console
from typer import Typer
from typer.testing import CliRunner, Result

from cloud_jobs.measure import FixFile, encounters, measure, print_problems, read_fixes
from cloud_jobs.terminal import Column, FittedTable, write_csv
from geo.spatial import FixError

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
007,120000,50.005,10.015
"quoted, id",0,50.005,10.005
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


def test_a_refused_fence_is_named_with_its_place_and_hides_no_other(tmp_path: Path) -> None:
    _, said = run(tmp_path, "measure")
    assert "fences.geojson: feature 2: fence 'flat'" in said


HEADER = b"device_id,t_ms,lat,lon,speed_mps,accuracy_m\n"


def fixes_in(text: bytes) -> FixFile:
    return read_fixes(io.BytesIO(text))


@pytest.mark.parametrize(
    "row",
    [
        b"a,soon,50,10,,",
        b"a,1.5,50,10,,",
        b"a,,50,10,,",
        b"a,9007199254740992,50,10,,",
        b"a,1,fifty,10,,",
        b"a,1,,10,,",
        b"a,1,91,10,,",
        b"a,1,1e400,10,,",
        b"a,1,50",
        b",1,50,10,,",
        b"\xff,1,50,10,,",
        b'"a,1,50,10,,',
        b"a\x00,1,50,10,,",
        b"x" * 257 + b",1,50,10,,",
        b"d," + b"0" * (3 << 20) + b",50,10,,",
    ],
)
def test_a_row_that_cannot_be_used_refuses_the_file(row: bytes) -> None:
    with pytest.raises((FixError, ArrowException)):
        fixes_in(HEADER + b"a,0,50,10,,\n" + row + b"\n")


@pytest.mark.parametrize("header", [b"", b"device_id,t_ms,lat\n", b"device_id,t_ms,lat,lon,lat\n"])
def test_a_header_that_lacks_a_column_or_names_one_twice_is_refused(header: bytes) -> None:
    with pytest.raises(FixError, match="header"):
        fixes_in(header + b"a,0,50,10\n")


@pytest.mark.parametrize("name", ["accuracy", "speed", "speed_kmh"])
def test_a_column_that_looks_like_a_known_one_is_not_left_out_silently(name: str) -> None:
    with pytest.raises(FixError, match=f"column '{name}' looks like (speed_mps|accuracy_m)"):
        fixes_in(f"device_id,t_ms,lat,lon,{name}\na,0,50,10,8\n".encode())


def test_a_quote_that_is_not_closed_swallows_no_rows_silently() -> None:
    with pytest.raises(FixError, match="column 'note' holds a line break"):
        fixes_in(b'device_id,t_ms,lat,lon,note\na,0,50,10,"x\na,1,50,10,y\na,2,50,10,z"\n')


def test_columns_may_stand_in_any_order_beside_others_and_behind_a_mark() -> None:
    read = fixes_in(b"\xef\xbb\xbfhdop,LON, lat,t_ms,device_id\nx,10,50,7,b\ny,11,51,-8,a\n")
    assert read.devices == ("a", "b")
    assert read.fixes.device.tolist() == [1, 0]
    assert (read.fixes.lon.tolist(), read.fixes.t_ms.tolist()) == ([10, 11], [7, -8])


def test_an_accuracy_or_a_speed_with_the_sign_of_an_invalid_one_is_not_reported() -> None:
    lines = [f"a,{at},50,10,{cell},{cell}\n" for at, cell in enumerate(["-1", "0", "", "nan", "-0.0", "8"])]
    fixes = fixes_in(HEADER + "".join(lines).encode()).fixes
    nothing = float("nan")
    np.testing.assert_array_equal(fixes.accuracy_m, [nothing] * 5 + [8])
    np.testing.assert_array_equal(fixes.speed_mps, [nothing, 0, nothing, nothing, 0, 8])


@pytest.mark.parametrize(("factor", "unit"), [(1, "seconds"), (1_000_000, "microseconds")])
@pytest.mark.parametrize("others", [[], [0], [1_767_600_000_000]])
def test_times_in_another_unit_are_refused(factor: int, unit: str, others: list[int]) -> None:
    times = [*others, 1_767_600_000 * factor, 1_767_600_060 * factor]
    rows = "".join(f"a,{t_ms},50,10,,\n" for t_ms in times)
    with pytest.raises(FixError, match=f"looks like {unit}, but must be in milliseconds"):
        fixes_in(HEADER + rows.encode())


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
    assert measured(tmp_path, GOOD_FIXES, GOOD_FENCES + b"{").exit_code == 3
    for fixes, fences in (
        (b"device,t_ms\n", GOOD_FENCES),
        (GOOD_FIXES + b"a,soon,50,10\n", GOOD_FENCES),
        (GOOD_FIXES, b"[" * 100_000),
        (GOOD_FIXES, b"\xff\xfe"),
    ):
        done = measured(tmp_path, fixes, fences)
        assert (done.exit_code, done.exception.__class__, out.read_bytes()) == (1, SystemExit, written)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["fences.geojson", "fixes.csv", "out.csv"]


@pytest.mark.parametrize(
    ("fixes", "said"),
    [
        (b"device_id,t_ms,lat,lon\n", "Empty CSV file"),
        (b"device_id,t_ms,lat,lon\na,1,50,10\na,2,500,10\n", "row 2: latitude 500.0, longitude 10.0 is not a valid"),
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
    assert done.exit_code == 1, done.output
    assert f"these ids read the same: {', '.join(map(ascii, sorted((first, second))))}" in done.stderr


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


PROGRAM = [sys.executable, "-m", "cloud_jobs", "measure"]


def failing(error: BaseException) -> Iterator[tuple[str, int]]:
    yield "a", 1
    raise error


@pytest.mark.parametrize("error", [ValueError("no"), OSError(5, "no"), KeyboardInterrupt(), MemoryError()])
@pytest.mark.parametrize("before", [None, "old\n"])
def test_an_error_among_the_rows_leaves_the_old_file_and_no_other(
    tmp_path: Path, error: BaseException, before: str | None
) -> None:
    out = tmp_path / "out.csv"
    if before is not None:
        out.write_text(before)
    with pytest.raises(type(error)):
        write_csv(out, ("name", "count"), failing(error))
    assert [(one.name, one.read_text()) for one in tmp_path.iterdir()] == (
        [] if before is None else [("out.csv", before)]
    )


@pytest.mark.parametrize("sign", ["=", "+", "-", "@", "\t", "\n", "＝"])
def test_no_spreadsheet_computes_a_name_and_a_number_stays_a_number(tmp_path: Path, sign: str) -> None:
    name = f"{sign}HYPERLINK(1)"
    write_csv(tmp_path / "out.csv", ("name", "metres", "count"), [(name, "0.125", -3)])
    with (tmp_path / "out.csv").open(newline="") as file:
        assert [*csv.reader(file)][1] == [f"'{name}", "0.125", "-3"]


@pytest.mark.parametrize("name", ["/dev/fd/1", "linked"])
def test_what_a_shell_sent_to_a_file_is_added_to_it(tmp_path: Path, name: str) -> None:
    (tmp_path / "fixes.csv").write_bytes(GOOD_FIXES)
    (tmp_path / "fences.geojson").write_bytes(GOOD_FENCES)
    (tmp_path / "linked").symlink_to("/dev/stdout")
    everything = tmp_path / "all.csv"
    everything.write_text("old\n")
    before = everything.stat().st_ino
    options = ["--fixes", "fixes.csv", "--fences", "fences.geojson", "--out", name]
    with everything.open("a") as file:
        done = subprocess.run(
            [*PROGRAM, *options], cwd=tmp_path, stdout=file, stderr=subprocess.PIPE, timeout=60, check=False
        )
    assert done.returncode == 0, done.stderr
    lines = everything.read_text().splitlines()
    assert (lines[:2], len(lines)) == (["old", "device_id,fence_id,km,seconds,entries"], 4)
    assert everything.stat().st_ino == before


def test_a_message_that_repeats_a_file_moves_no_cursor_and_starts_no_line(capsys: pytest.CaptureFixture[str]) -> None:
    print_problems(Path("a\x1b.csv"), ["\x1b[2J\nrow ok\r\x85\u2028\u202e\x9b", "é \ud800"])
    lines = capsys.readouterr().err.split("\n")
    assert lines == [r"a\x1b.csv: \x1b[2J\nrow ok\r\x85\u2028\u202e\x9b", r"a\x1b.csv: é \ud800", ""]


NUMBER = "WE-00000001"
WORDS = st.text("abc ", max_size=40).map(str.strip)


def shown(table: FittedTable, width: int) -> str:
    paper = io.StringIO()
    Console(file=paper, width=width).print(table)
    return paper.getvalue()


@given(st.integers(60, 200), WORDS, st.lists(st.integers(-(10**9), 10**9), max_size=5))
def test_names_and_numbers_are_whole_and_no_line_is_wider_than_the_terminal(
    width: int, word: str, amounts: list[int]
) -> None:
    table = FittedTable(Column("id"), Column.text("words"), Column.number("amount"))
    for place, amount in enumerate(amounts):
        table.add(f"WE-{place:08}", word, f"{amount}")
    out = shown(table, width)
    found = re.findall(r"WE-\d{8}|-?\d+", out)
    for place, amount in enumerate(amounts):
        assert f"WE-{place:08}" in found
        assert str(amount) in found
    assert max(map(cell_len, out.splitlines()), default=0) <= width


def test_with_room_each_row_is_one_line_and_without_it_texts_fold() -> None:
    table = FittedTable(Column("number"), Column.text("type"), Column.number("net"), Column.text("reason"))
    table.add(NUMBER, "credit note (void)", "-1,234.56 EUR", "wrong buyer")
    wide = shown(table, 120)
    assert [line for line in wide.splitlines() if "wrong buyer" in line and "credit note (void)" in line]
    narrow = shown(table, 60)
    assert NUMBER in narrow
    assert "-1,234.56 EUR" in narrow
    assert "credit note (void)" not in narrow
