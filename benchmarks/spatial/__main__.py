"""`make bench-spatial`: what the spatial engine does in a second of one core: processor time, the best of repetitions.

Each size of fence set has a process of its own, which never held the fences as they were made.
"""

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
import shapely

from benchmarks.harness import parser_of
from benchmarks.spatial.worlds import outlines, polygons, read, scattered, vehicles
from geo.spatial import (
    EventSettings,
    Fence,
    FenceSet,
    Fixes,
    TrackRule,
    TrackSettings,
    ZoneSet,
    build_tracks,
    find_encounters,
    find_events,
)
from geo.spatial.grid import GridIndex
from geo.spatial.predicates import Spots

ROOT = Path(__file__).parents[2]
REPEATS = 3
POINTS = 1_000_000
RULES: tuple[TrackRule, ...] = ("every_fix", "standstill")
Row = tuple[str, str, str]


def seconds(work: Callable[[], object], repeats: int = REPEATS) -> float:
    taken = []
    for _ in range(repeats):
        begin = time.process_time()
        work()
        taken.append(time.process_time() - begin)
    return min(taken)


def lookups(count: int) -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        maker = [sys.executable, "-m", "benchmarks.spatial.worlds", str(count), folder]
        subprocess.run(maker, cwd=ROOT, check=True, timeout=600)
        made = read(Path(folder))
    begin = time.process_time()
    index = GridIndex(made)
    build = time.process_time() - begin
    # all that this process ever held until now: Python with its libraries, the corners, what building takes
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    held = index.nbytes()
    fixes = vehicles(count, 1000, POINTS // 1000, step_m=100.0, seconds=10.0)
    driving = POINTS / seconds(lambda: index.locate(Spots(fixes.lon, fixes.lat)))
    name, corners = f"{count:,} fences", f"{len(made.points) / 1e6:.1f} M corners"
    return [
        (f"{name}: build", f"{build:.1f} s", corners),
        (f"{name}: index", f"{held / 1e6:.0f} MB", f"the process that built it: {peak / 1e6:.0f} MB at most"),
        (f"{name}: fixes of vehicles", f"{driving / 1e6:.2f} M/s", ""),
    ]


def ratios(count: int = 100_000, points: int = 100_000) -> list[Row]:
    """The same points and fences by the lattice and by an STRtree with a predicate."""
    made = outlines(count)
    index, tree = GridIndex(made), shapely.STRtree(polygons(made))
    lon, lat = scattered(count, points)
    lattice = seconds(lambda: index.locate(Spots(lon, lat))) / points
    by_tree = seconds(lambda: tree.query(shapely.points(lon, lat), predicate="intersects"), 2) / points
    what = f"{count:,} fences: against STRtree query + predicate"
    return [(what, f"{by_tree / lattice:.0f}x", f"{1e-6 / by_tree:.3f} M/s")]


def fence_sets(count: int) -> tuple[ZoneSet, FenceSet]:
    shapes = polygons(outlines(count))
    made = [Fence(f"zone-{at:06}", shape, at % 3) for at, shape in enumerate(shapes)]
    return ZoneSet(made), FenceSet(made)


def standstill(count: int = 10_000, devices: int = 200, fixes: int = 1000) -> list[Row]:
    """What it takes to leave the receivers' noise out, against every fix: tracks, zones, events."""
    zones, every = fence_sets(count)
    settings = EventSettings(buffer_m=20, min_stay_s=10)

    def path(rows: Fixes, rules: TrackSettings) -> None:
        tracks = build_tracks(rows, rules)
        zones.split(tracks)
        find_events(tracks, every, settings=settings)

    rows: list[Row] = []
    for name, step_m, seconds_apart, bound in (
        ("a fix each 150 m", 150.0, 10.0, "5 %"),
        ("dense, 1 Hz at 15 m/s", 15.0, 1.0, "60 %"),
        ("parked, 1 Hz with 4 m of noise", 0.0, 1.0, "60 %"),
    ):
        made = vehicles(count, devices, fixes, step_m=step_m, seconds=seconds_apart, noise_m=0.0 if step_m else 4.0)
        # in turns: what else the machine does is then the same for both
        turns = [
            [seconds(lambda: path(made, TrackSettings(rule=rule)), 1) for rule in RULES]  # noqa: B023  # called at once
            for _ in range(2 * REPEATS)
        ]
        exact, clean = (min(turn) for turn in zip(*turns, strict=True))
        more = f"{(clean - exact) / len(made) * 1e6:+.2f} µs a fix; allowed {bound}"
        rows.append((f"`standstill` against `every_fix`: {name}", f"{100 * (clean / exact - 1):+.0f} %", more))
    return rows


def whole_path(count: int = 10_000, devices: int = 200, fixes: int = 1000) -> list[Row]:
    """Fixes to tracks, crossings, split lengths and events with hysteresis."""
    zones, every = fence_sets(count)
    rows = vehicles(count, devices, fixes, step_m=150.0, seconds=10.0)
    tracks, settings = build_tracks(rows), EventSettings(buffer_m=20, min_stay_s=10)
    taken = seconds(lambda: build_tracks(rows), 2) + seconds(lambda: zones.split(tracks), 2)
    taken += seconds(lambda: find_events(tracks, every, settings=settings), 2)
    events = len(find_events(tracks, every, settings=settings))
    return [("whole path", f"{len(rows) / taken:,.0f} fixes/s", f"{len(rows):,} fixes, {events:,} events")]


def meetings(devices: int = 10_000, length_s: int = 30) -> list[Row]:
    """Encounters of moving devices at one fix a second, over a city of 75 by 50 km and over a country."""
    rows: list[Row] = []
    for name, fences in (("a country of 330 by 230 km", 3000), ("a city of 75 by 50 km", 150)):
        tracks = build_tracks(vehicles(fences, devices, length_s, step_m=15.0, seconds=1.0))
        taken = seconds(lambda: find_encounters(tracks, 100.0), 1)  # noqa: B023  # called at once
        what = f"encounters of {devices:,} devices at 1 Hz within 100 m, {name}"
        count = len(find_encounters(tracks, 100.0))
        rows.append((what, f"{length_s / taken:.1f}x real time", f"{count:,} in {length_s} s"))
    return rows


def files(count: int = 1_000, devices: int = 1_000, fixes: int = 1_000) -> list[Row]:
    """The two commands on files: wall time of the process, with Python and all reading and writing."""
    rows = vehicles(count, devices, fixes, step_m=150.0, seconds=10.0)
    features = [
        {"type": "Feature", "properties": {"id": f"zone-{at:06}"}, "geometry": shapely.geometry.mapping(shape)}
        for at, shape in enumerate(polygons(outlines(count)))
    ]
    columns = (rows.device.tolist(), rows.t_ms.tolist(), rows.lat.tolist(), rows.lon.tolist())
    lines = (f"{device:05},{t_ms},{lat},{lon}\n" for device, t_ms, lat, lon in zip(*columns, strict=True))
    figures: list[Row] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "fixes.csv").write_text("device_id,t_ms,lat,lon\n" + "".join(lines))
        (folder / "fences.geojson").write_text(json.dumps({"type": "FeatureCollection", "features": features}))
        for command, options in (
            ("measure", ["--fences", str(folder / "fences.geojson"), "--max-gap-s", "120"]),
            ("encounters", ["--distance-m", "500", "--max-gap-s", "600"]),
        ):
            out = folder / f"{command}.csv"
            program = [sys.executable, "-m", "cloud_jobs", command, "--fixes", str(folder / "fixes.csv")]
            begin = time.monotonic()
            subprocess.run([*program, "--out", str(out), *options], cwd=ROOT, check=True, timeout=600)
            taken = time.monotonic() - begin
            with out.open() as file:
                written = sum(1 for _ in file) - 1
            figures.append(
                (f"`cloud-jobs {command}`", f"{taken:.1f} s", f"{len(rows):,} fixes, {written:,} rows written")
            )
    return figures


def depot(count: int = 10_000, corners: int = 100) -> list[Row]:
    """Tenants with the same fence around one depot; a process of its own measures what indexing them takes at most."""
    angle = np.linspace(0, 2 * np.pi, corners, endpoint=False)
    ring = np.round(np.column_stack([10 + 0.01 * np.cos(angle), 50 + 0.01 * np.sin(angle)]), 7)
    fences = [Fence(f"tenant-{at:06}", shapely.Polygon(ring)) for at in range(count)]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    begin = time.process_time()
    FenceSet(fences)
    taken = time.process_time() - begin
    more = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before
    return [
        (f"{count:,} identical fences: index", f"{taken:.1f} s", f"{more / 1e6:.0f} MB; allowed are 5 s and 200 MB")
    ]


PARTS: dict[str, Callable[[], list[Row]]] = {
    "1k": lambda: lookups(1_000),
    "100k": lambda: lookups(100_000),
    "1m": lambda: lookups(1_000_000),
    "ratios": ratios,
    "depot": depot,
    "path": whole_path,
    "standstill": standstill,
    "encounters": meetings,
    "files": files,
}


def main() -> None:
    parser = parser_of(__doc__, PARTS)
    parser.add_argument("--json", action="store_true", help="one part, as JSON")
    options = parser.parse_args()
    if options.json:
        json.dump(PARTS[options.parts[0]](), sys.stdout)
        return
    print("| what | figure | with |\n|---|---:|---|")
    for part in options.parts:
        command = [sys.executable, "-m", "benchmarks.spatial", part, "--json"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=1800)
        for row in json.loads(done.stdout):
            print("| " + " | ".join(row) + " |", flush=True)


if __name__ == "__main__":
    main()
