"""The two commands on files: what anybody can try before they charge."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer import Typer
from typer.testing import CliRunner

from cloud_jobs.encounters import encounters
from cloud_jobs.measure import measure
from geo.spatial import FixError, read_fixes

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


def run(folder: Path, command: str, *options: str, fixes: str = FIXES) -> tuple[list[list[str]], str]:
    (folder / "fixes.csv").write_text(fixes, encoding="utf-8")
    text = '{"type": "FeatureCollection", "features": [\n' + ",\n".join(map(json.dumps, FENCES)) + "]}"
    (folder / "fences.geojson").write_text(text, encoding="utf-8")
    places = ["--fixes", str(folder / "fixes.csv"), "--out", str(folder / "out.csv")]
    if command == "measure":
        places += ["--fences", str(folder / "fences.geojson")]
    done = CliRunner().invoke(app, [command, *places, *options])
    assert done.exit_code == 0, done.output
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


def test_the_commands_load_no_spark() -> None:
    program = "import sys, cloud_jobs.measure, cloud_jobs.encounters; sys.exit('pyspark' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], timeout=60, check=False).returncode == 0
