"""What the console costs in a real browser with software rendering: live, replay, first paint, sizes, memory.

Parts: `live`: 10,000 devices that move each second, the longest task of the main thread in each second. `endurance`:
the heap after ten minutes. `replay`: an hour of 1,000 vehicles at 60×. `paint`: the first useful paint of each
page. `large`: the same on a lake of 100 million records in 10,000 files, and how many of them are read. `sizes`:
JavaScript as it is shipped. `memory`: the server with 20 open streams.
"""

import gzip
import json
import math
import re
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import httpx
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from benchmarks.harness import Figure, benchmark_folder, limited, peak_mib, percentile, print_figures, quiet, run_parts
from cloud_jobs.config import CloudSettings
from cloud_jobs.lake.coverage import Coverage, DeviceStream
from cloud_jobs.lake.data_files import DataFile, write_data_files
from cloud_jobs.lake.schemas import RECORDS
from cloud_jobs.lake.tables import Lake
from console.app import make_app
from console.assets import STATIC
from console.context import Console
from console.fixes import LastFix
from console.http import NAVIGATION
from console.serve import open_socket, serve
from waybill.record import IntervalSet
from waybill.settings import load

LIVE_DEVICES = 10_000
LIVE_S = 120.0
VEHICLES = 1_000
REPLAY_S = 60.0
RATE = 60
TABS = 20
MEMORY_S = 20.0
LARGE_DAYS = 50
LARGE_VEHICLES = 2_000
LARGE_FIXES = 1_000
"""Of a vehicle a day."""
LARGE_FILES = 200
"""Of a day."""
LARGE_ROWS = 10_000
"""Of a file."""
LARGE_COMMIT = 10
"""Files of a commit of the last day."""

START: Final = datetime(2026, 1, 5, 8, tzinfo=UTC)
STEP_S: Final = 10
HOUR_S: Final = 3_600
DEMO: Final = Path("var/demo/cloud.toml")
_TRACED: Final = ("toplevel", "devtools.timeline")


# The server, in a process of its own.


def settings_of(lake: Path) -> CloudSettings:
    return CloudSettings.model_validate(
        {
            "lake": str(lake),
            "checkpoints": str(lake.parent / "checkpoints"),
            "clusters": [{"name": "hq", "service_url": "pulsar://127.0.0.1:1", "admin_url": "http://127.0.0.1:1"}],
            "tenants": ["acme"],
            "reference": {"unsigned": True},
            "console": {"port": 0, "live": False},
        }
    )


def serve_lake(where: str, devices: int) -> None:
    """Serves a lake, or that of a settings file, and prints the address; `devices` move each second."""
    quiet()
    settings = load(CloudSettings, Path(where)) if where.endswith(".toml") else settings_of(Path(where))
    settings = settings.model_copy(update={"console": settings.console.model_copy(update={"port": 0, "live": False})})
    console = Console(settings)
    socket = open_socket(settings.console)
    if devices:
        threading.Thread(target=_drive, args=(console, devices), daemon=True).start()
    print(f"http://127.0.0.1:{socket.getsockname()[1]}", flush=True)
    serve(make_app(console), socket, grace_s=2)


def _drive(console: Console, devices: int) -> None:
    turn = np.arange(devices) * 2.399963
    radius = np.sqrt(np.arange(devices) / devices)
    while True:
        begin = time.monotonic()
        turn += 1e-3
        places = np.stack([53.55 + 0.1 * radius * np.sin(turn), 10 + 0.2 * radius * np.cos(turn)], axis=1)
        now = datetime.now(UTC)
        console.feed.store.put(
            [
                LastFix("acme", f"eu-{at:05}", "eu", now, now, latitude, longitude, 12.0, 90.0, 5.0)
                for at, (latitude, longitude) in enumerate(places.tolist())
            ]
        )
        time.sleep(max(0.0, begin + 1 - time.monotonic()))


_SERVER: Final = (
    "from waybill.commands import use_arrow_alone; use_arrow_alone(); from benchmarks.console import main; main()"
)
"""As `waybill console` begins."""


@contextmanager
def server(where: Path, devices: int = 0) -> Iterator[tuple[str, int]]:
    """The address and the process id of a console."""
    command = [sys.executable, "-c", _SERVER, "serve", str(where), str(devices)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip(), process.pid
        finally:
            process.terminate()


# The browser.


@contextmanager
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright  # noqa: PLC0415 - sizes need no browser

    from tests.console.conftest import BROWSER_ARGUMENTS, CHROMIUM  # noqa: PLC0415 - the server of the benchmark holds no tests

    with sync_playwright() as started:
        made = started.chromium.launch(executable_path=CHROMIUM, args=BROWSER_ARGUMENTS)
        # its own start is no part of a page
        page = made.new_page()
        page.goto("data:text/html,ready")
        first_paint_s(page)
        page.close()
        yield made
        made.close()


def wait_until_drawn(page: Any) -> None:
    until = time.monotonic() + 120
    drawn = "() => { const e = document.querySelector('[data-island]'); return !e || e.dataset.drawn === 'true' }"
    while not page.evaluate(drawn):
        assert time.monotonic() < until, page.url
        time.sleep(0.05)


def traced(made: Any, page: Any, seconds: float) -> list[dict[str, Any]]:
    """The events of the page's main thread."""
    made.start_tracing(page=page, categories=[*_TRACED])
    page.wait_for_timeout(seconds * 1000)
    events = json.loads(made.stop_tracing())["traceEvents"]
    threads = {(one["pid"], one["tid"]) for one in events if one.get("args", {}).get("name") == "CrRendererMain"}
    busy: defaultdict[tuple[int, int], float] = defaultdict(float)
    for one in events:
        if (one["pid"], one["tid"]) in threads:
            busy[one["pid"], one["tid"]] += one.get("dur", 0)
    # Chromium has a renderer of its own, which does next to nothing
    main = max(busy, key=lambda thread: busy[thread])
    return [one for one in events if (one["pid"], one["tid"]) == main and one.get("ph") == "X"]


def tasks_ms(events: list[dict[str, Any]]) -> list[tuple[float, float]]:
    """When each task of a thread began, in seconds, and how long it took."""
    return [(one["ts"] / 1e6, one["dur"] / 1000) for one in events if one["name"].endswith("RunTask")]


def longest_of_each_second(tasks: list[tuple[float, float]]) -> list[float]:
    longest: defaultdict[int, float] = defaultdict(float)
    for begin_s, ms in tasks:
        longest[int(begin_s)] = max(longest[int(begin_s)], ms)
    return [*longest.values()]


def first_paint_s(page: Any) -> float:
    """Seconds from the request to the first text or picture; infinite if nothing was painted for 10 s."""
    for _ in range(100):
        entries = page.evaluate(
            "() => performance.getEntriesByName('first-contentful-paint').map(one => one.startTime)"
        )
        if entries:
            return float(entries[0]) / 1000
        time.sleep(0.1)
    return math.inf


# The parts.


@contextmanager
def live_page() -> Iterator[tuple[Any, Any]]:
    """A browser, and its page of a fleet of LIVE_DEVICES, once it is drawn."""
    with benchmark_folder("console") as folder, ExitStack() as stack:
        Lake(folder / "lake").create()
        url, _ = stack.enter_context(server(folder / "lake", LIVE_DEVICES))
        made = stack.enter_context(browser())
        page = made.new_page(viewport={"width": 1280, "height": 800})
        # the fleet of the server is complete by then
        time.sleep(3)
        page.goto(url)
        wait_until_drawn(page)
        yield made, page


def live() -> bool:
    with live_page() as (made, page):
        page.wait_for_timeout(min(5_000, LIVE_S * 1000))
        heap = _heap_mb(page)
        events = traced(made, page, LIVE_S)
        grown = _heap_mb(page) / heap
        seconds = longest_of_each_second(tasks_ms(events))
    return print_figures(
        f"Live: {LIVE_DEVICES:,} devices, one update a second, {LIVE_S:.0f} s",
        [
            limited("longest main-thread task of each second, p95, ms", percentile(seconds, 0.95), "<=", 60),
            Figure("the same, p50 and most, ms", f"{percentile(seconds, 0.5):.0f} and {max(seconds):.0f}"),
            limited("heap after collection, end to beginning", grown, "<=", 1.1, "{:.2f}"),
        ],
    )


def endurance() -> bool:
    with live_page() as (_, page):
        heaps = []
        for seconds in (2 * 60, 8 * 60):
            page.wait_for_timeout(seconds * 1000)
            heaps.append(_heap_mb(page))
        updates = page.evaluate("() => Number(document.querySelector('[data-island]').dataset.updates)")
    return print_figures(
        f"Live: {LIVE_DEVICES:,} devices for ten minutes, {updates:,} updates",
        [
            limited("heap after collection, minute ten to minute two", heaps[1] / heaps[0], "<=", 1.1, "{:.2f}"),
            Figure("the same, MB", " and ".join(f"{one:.1f}" for one in heaps)),
        ],
    )


def _heap_mb(page: Any) -> float:
    session = page.context.new_cdp_session(page)
    session.send("HeapProfiler.collectGarbage")
    used = session.send("Runtime.getHeapUsage")["usedSize"]
    session.detach()
    return float(used) / 1e6


def replay() -> bool:
    with benchmark_folder("console") as folder, ExitStack() as stack:
        write_hour(Lake(folder / "lake"))
        url, _ = stack.enter_context(server(folder / "lake"))
        made = stack.enter_context(browser())
        page = made.new_page(viewport={"width": 1200, "height": 860})
        end = START + timedelta(seconds=HOUR_S)
        page.goto(f"{url}/replay?start={START:%Y-%m-%dT%H:%M}Z&end={end:%Y-%m-%dT%H:%M}Z&rate={RATE}")
        wait_until_drawn(page)
        page.evaluate(_LAG)
        page.get_by_role("button", name="Play").click()
        events = traced(made, page, REPLAY_S)
        lag_ms, gap_ms, drawn = page.evaluate("() => window.lag")
        tasks = [ms for _, ms in tasks_ms(events)]
        frames = [one["dur"] / 1000 for one in events if one["name"] == "FireAnimationFrame"]
    return print_figures(
        f"Replay: {VEHICLES:,} vehicles, a fix each {STEP_S} s, at {RATE}x, {REPLAY_S:.0f} s",
        [
            Figure("vehicles drawn", f"{drawn:,}", f"{VEHICLES:,}", drawn == VEHICLES),
            limited("longest main-thread task, ms", max(tasks), "<=", 100),
            limited("script of a frame, p95, ms", percentile(frames, 0.95), "<=", 10, "{:.1f}"),
            limited("the picture's time behind the clock, ms", lag_ms, "<=", max(gap_ms, 100.0) + 100),
        ],
    )


_LAG: Final = """() => {
  const e = document.querySelector('[data-island]');
  window.lag = [0, 0, 0];
  let before = 0;
  const look = (clock) => {
    if (e.player.playing && before) {
      window.lag[0] = Math.max(window.lag[0], (e.player.now() - e.layer.now) / e.player.rate);
      window.lag[1] = Math.max(window.lag[1], clock - before);
      window.lag[2] = [...e.movers.state].filter((one) => one >= 0).length;
    }
    before = clock;
    requestAnimationFrame(look);
  };
  requestAnimationFrame(look);
}"""


def write_hour(lake: Lake) -> None:
    """An hour of vehicles that drive in circles around a city."""
    from tests.system.lake_of_fixes import commit_ingest  # noqa: PLC0415 - the server of the benchmark holds no tests

    lake.create()
    count = HOUR_S // STEP_S
    at, vehicle = np.tile(np.arange(count), VEHICLES), np.repeat(np.arange(VEHICLES), count)
    rows = _circles(vehicle, at + 1, at * STEP_S + vehicle % 10_000 / 1e6, START, 1)
    commit_ingest(lake, write_data_files(lake.files("records"), rows, START), {})


def _circles(
    vehicle: NDArray[np.int64], seq: NDArray[np.int64], since_s: NDArray[np.float64], start: datetime, number: int
) -> pa.Table:
    """Fixes of vehicles on the day of `start`, so many seconds after it, from one commit of the ingest."""
    angle = since_s * 12 / 3_000 + vehicle
    radius = 0.01 + 0.08 * (vehicle % 97) / 97
    moments = np.datetime64(start.replace(tzinfo=None), "us") + (since_s * 1e6).astype("timedelta64[us]")
    known = {
        "tenant": ["acme"] * len(seq),
        "region": ["eu"] * len(seq),
        "device": [f"eu-{one:05}" for one in vehicle.tolist()],
        "epoch": np.full(len(seq), 7),
        "seq": seq,
        "kind": ["position"] * len(seq),
        "device_time": moments,
        "received_at": moments,
        "ingested_at": moments,
        "latitude": 53.55 + radius * np.sin(angle) * 0.6,
        "longitude": 10.0 + radius * np.cos(angle),
        "speed_mps": np.full(len(seq), 12.0),
        "device_date": [start.date()] * len(seq),
        "ingest_number": np.full(len(seq), number),
        "content_bytes": np.full(len(seq), 20),
    }
    columns = [
        pa.array(known[field.name]).cast(field.type) if field.name in known else pa.nulls(len(seq), field.type)
        for field in RECORDS
    ]
    return pa.table(columns, schema=RECORDS)


def write_large(place: Path, last: datetime) -> None:
    """100 million records in 10,000 files, up to the end of the day `last`.

    Past days are as a compaction leaves them: 200 files of 10 vehicles each. The last day is as the ingest leaves it:
    200 files of all vehicles, one after the other in time. The last two days are true; the files of each earlier day
    are links to those of the second last, and the log has the bounds that an own file of their day would have.
    """
    from tests.system.lake_of_fixes import commit_ingest  # noqa: PLC0415 - the server of the benchmark holds no tests

    lake = Lake(place)
    lake.create()
    before = last - timedelta(days=1)

    def file_of(first: int, vehicles: int, begin: int, day: datetime, number: int) -> DataFile:
        """A file of some vehicles' fixes from the number `begin` of the day on."""
        each = LARGE_ROWS // vehicles
        vehicle, at = np.repeat(np.arange(vehicles), each) + first, np.tile(np.arange(each), vehicles) + begin
        seq = (LARGE_DAYS - (2 if day == before else 1)) * LARGE_FIXES + at + 1
        rows = _circles(vehicle, seq, at * 86_400 / LARGE_FIXES, day, number)
        return write_data_files(lake.files("records"), rows, last)[0]

    few = LARGE_VEHICLES // LARGE_FILES
    compacted = [file_of(first, few, 0, before, LARGE_DAYS - 1) for first in range(0, LARGE_VEHICLES, few)]
    for number in range(1, LARGE_DAYS - 1):
        day = last - timedelta(days=LARGE_DAYS - number)
        commit_ingest(lake, [_linked(place / "records", one, day, number) for one in compacted], {})
    commit_ingest(lake, compacted, {})
    each, known = LARGE_ROWS // LARGE_VEHICLES, dict[DeviceStream, Coverage]()
    for number, begin in enumerate(range(0, LARGE_FILES, LARGE_COMMIT), LARGE_DAYS):
        fresh = [file_of(0, LARGE_VEHICLES, one * each, last, number) for one in range(begin, begin + LARGE_COMMIT)]
        if begin + LARGE_COMMIT == LARGE_FILES:
            head, until_us = LARGE_DAYS * LARGE_FIXES, round((last + timedelta(days=1)).timestamp() * 1e6)
            covered = Coverage(IntervalSet([(1, head)]), (), head, until_us, head, until_us)
            known = {DeviceStream("acme", f"eu-{one:05}", 7): covered for one in range(LARGE_VEHICLES)}
        commit_ingest(lake, fresh, known)
    lake.open("records").create_checkpoint()


def _linked(records: Path, file: DataFile, day: datetime, number: int) -> DataFile:
    """A link to a file in the folder of an earlier day, with the statistics that a file of that day would have."""
    assert file.day is not None
    stats = json.loads(file.stats.replace(file.day.isoformat(), day.date().isoformat()))
    for bounds in (stats["minValues"], stats["maxValues"]):
        bounds["seq"] -= (file.day - day.date()).days * LARGE_FIXES
        bounds["ingest_number"] = number
    folder = f"device_date={day.date().isoformat()}"
    (records / folder).mkdir(exist_ok=True)
    path = f"{folder}/{Path(file.path).name}"
    (records / path).hardlink_to(records / file.path)
    return file._replace(path=path, day=day.date(), stats=json.dumps(stats))


def large() -> bool:
    from starlette.testclient import TestClient  # noqa: PLC0415 - the server of the benchmark holds no client

    last = (datetime.now(UTC) - timedelta(days=1)).replace(hour=0, minute=0, second=0, microsecond=0)
    device = f"/device/acme/eu-00042?day={(last - timedelta(days=1)).date().isoformat()}"
    question = f"/where?box=10.05,53.5,10.06,53.52&start={last:%Y-%m-%dT06:00}&end={last:%Y-%m-%dT08:00}&zone=UTC"
    asked = [*NAVIGATION, (device, "A device's day"), (question, "Who was there, in two hours")]
    with benchmark_folder("console") as folder, ExitStack() as stack:
        write_large(folder / "lake", last)
        url, _ = stack.enter_context(server(folder / "lake"))
        begin = time.monotonic()
        httpx.get(url, timeout=60).raise_for_status()
        figures = [limited("first answer of a server that starts, s", time.monotonic() - begin, "<=", 2.0, "{:.2f}")]
        made = stack.enter_context(browser())
        # what the server reads is counted in a console that read the last fixes
        console = Console(settings_of(folder / "lake"))
        counted = TestClient(make_app(console), base_url="http://localhost", headers={"accept": "application/json"})
        figures.append(Figure("files read for it", _files_read(console, counted, "/")))
        for path, name in asked:
            page = made.new_page(viewport={"width": 1280, "height": 800})
            page.goto(url + path)
            figures.append(limited(f"{name}: first paint, s", first_paint_s(page), "<=", 2.0, "{:.2f}"))
            figures.append(Figure(f"{name}: files read", _files_read(console, counted, path)))
            page.close()
    return print_figures("First paint on a lake of 100 million records in 10,000 files", figures)


def _files_read(console: Console, client: Any, path: str) -> str:
    """The files that are opened for a page and its picture."""
    before = console.lake.files_read
    client.get(path).raise_for_status()
    return f"{console.lake.files_read - before:,}"


def paint() -> bool:
    from tests.cloud_jobs.billing.page_lake import PageLake  # noqa: PLC0415 - the server of the benchmark holds no tests

    figures = []
    with benchmark_folder("console") as folder, ExitStack() as stack:
        where = DEMO
        if not DEMO.is_file():
            PageLake(folder).arrive()
            where = folder / "lake"
        url, _ = stack.enter_context(server(where))
        made = stack.enter_context(browser())
        httpx.get(url, timeout=60)
        for path, name in NAVIGATION:
            page = made.new_page(viewport={"width": 1280, "height": 800})
            if page.goto(url + path).status != 404:
                figures.append(
                    limited(f"{name}: first paint, with its tables, s", first_paint_s(page), "<=", 1.0, "{:.2f}")
                )
            page.close()
    return print_figures(f"First paint on the lake of {where if where == DEMO else 'two vehicles'}", figures)


def sizes() -> bool:
    scripts = sorted((STATIC / "assets").glob("*.js"))
    kilobytes = {file: len(gzip.compress(file.read_bytes(), 9)) / 1000 for file in scripts}
    largest = sorted(kilobytes.items(), key=lambda one: -one[1])[:4]
    return print_figures(
        "JavaScript, gzipped, with the worker; land is data and apart",
        [
            limited("all pages, kB", sum(kilobytes.values()), "<=", 500),
            *(Figure(file.name.rpartition("-")[0], f"{size:,.0f}") for file, size in largest),
        ],
    )


def memory() -> bool:
    with benchmark_folder("console") as folder, ExitStack() as stack:
        Lake(folder / "lake").create()
        url, pid = stack.enter_context(server(folder / "lake", LIVE_DEVICES))
        time.sleep(3)
        for path, _ in NAVIGATION:
            httpx.get(url + path, timeout=60)
        ends = threading.Event()
        tabs = [threading.Thread(target=_tab, args=(url, ends), daemon=True) for _ in range(TABS)]
        for tab in tabs:
            tab.start()
        own = 0.0
        for _ in range(round(MEMORY_S)):
            time.sleep(1)
            own = max(own, _own_mb(pid))
        ends.set()
        resident = peak_mib(pid) * 1.048576
    return print_figures(
        f"Server with {TABS} open streams of {LIVE_DEVICES:,} devices, after each page was opened",
        [
            limited("resident at most, MB", resident, "<=", 150),
            Figure("of that its own (anonymous), without the code of its libraries, MB", f"{own:,.0f}"),
        ],
    )


def _own_mb(pid: int) -> float:
    """The memory that would be free without the process: not the pages of files, as of the code of Arrow and Delta."""
    found = re.search(
        r"^Anonymous:\s+(\d+) kB", Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii"), re.MULTILINE
    )
    return int(found[1]) * 1.024e-3 if found else math.inf


def _tab(url: str, ends: threading.Event) -> None:
    try:
        with httpx.stream("GET", f"{url}/live", timeout=60) as stream:
            for _ in stream.iter_raw():
                if ends.is_set():
                    return
    except httpx.HTTPError:
        # the server ends before its tabs
        return


def main() -> None:
    if sys.argv[1:2] == ["serve"]:
        serve_lake(sys.argv[2], int(sys.argv[3]))
        return
    parts = {
        "live": live,
        "endurance": endurance,
        "replay": replay,
        "paint": paint,
        "large": large,
        "sizes": sizes,
        "memory": memory,
    }
    sys.exit(run_parts(__doc__, parts))


if __name__ == "__main__":
    main()
