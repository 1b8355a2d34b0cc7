"""The live stream: newest wins, one encoding for all tabs, and only what a viewer may see."""

import base64
import json
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import numpy as np
import pytest

from cloud_jobs.lake.coverage import TenantDevice
from cloud_jobs.lake.erasures import Erasure, declare_erasure
from console.context import Console, Viewer
from console.fixes import LastFix, LastFixReader
from console.lake import OpenLake
from console.live import FixStore, LiveFeed
from tests.console.conftest import NOW, Served, Tab, console_of, serving
from tests.system.lake_of_fixes import LakeFix, ingest, lake_of
from waybill.record import Batch, Position, Record, encode

EPOCH = 7
_S = 1_000_000


def fix(device: str, seconds: float, tenant: str = "acme", **more: Any) -> LastFix:
    at = NOW + timedelta(seconds=seconds)
    return LastFix(tenant, device, "eu", at, at, 48.0, 11.0, more.get("speed"), more.get("heading"), None)


def message(device: str, *places: tuple[float, float, float], tenant: str = "acme") -> SimpleNamespace:
    """A message of a topic; `places`: seconds after NOW, latitude, longitude."""
    records = tuple(
        Record(seq, round((NOW.timestamp() + at) * _S), Position(latitude=lat, longitude=lon), boot="b")
        for seq, (at, lat, lon) in enumerate(places, 1)
    )
    body = encode(Batch(device, EPOCH, len(places), records))
    return SimpleNamespace(body=body, properties={"tenant": tenant, "region": "eu"})


class Topic:
    """A topic of a test: messages come when the test says so."""

    def __init__(self) -> None:
        self.standing = SimpleNamespace(is_current=False, problem="not connected yet")
        self.take: Callable[[str | None, Any], None] = lambda _, __: None
        self.is_closed = False

    def open(self, _settings: Any, take: Callable[[str | None, Any], None]) -> list["Topic"]:
        self.take = take
        return [self]

    def start(self) -> None:
        self.standing = SimpleNamespace(is_current=True, problem="")

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture
def topic() -> Topic:
    return Topic()


@pytest.fixture
def console(tmp_path: Path, topic: Topic) -> Console:
    at = NOW - timedelta(seconds=30)
    ingest(
        lake_of(tmp_path / "lake"), [LakeFix("v1", 1, at, 48.0, 11.0), LakeFix("v1", 1, at, 1.0, 1.0, tenant="rival")]
    )
    made = console_of(tmp_path / "lake")
    made.feed = LiveFeed(made.settings, made.last_fixes, made.now, topic.open)
    return made


def test_a_newer_fix_wins_whatever_the_order_and_a_device_keeps_its_number() -> None:
    store = FixStore()
    assert store.put([fix("v1", 10), fix("v2", 5)])
    assert not store.put([fix("v1", 9), fix("v1", 10)])
    assert store.put([fix("v1", 11, speed=12.34, heading=359.7)])
    assert [one.device for one in store.devices()] == ["v1", "v2"]
    assert store.version == 2
    columns = store.encode(np.array([0]))
    assert np.frombuffer(base64.b64decode(columns["speed"]), "<i2").tolist() == [123]
    assert np.frombuffer(base64.b64decode(columns["heading"]), "<i2").tolist() == [0]
    many = [fix(f"m{n}", 0) for n in range(3000)]
    assert store.put(many)
    assert len(base64.b64decode(store.encode(np.arange(3002))["time"])) == 4 * 3002


def test_a_batch_gives_its_newest_usable_position_and_a_bad_message_is_counted(console: Console, topic: Topic) -> None:
    console.feed.start()
    topic.take("acme", message("v1", (1, 48.1, 11.1), (2, 48.2, 11.2), (3, 0.0, 0.0)))
    fixes = console.feed.fixes(NOW).of
    assert {(one.tenant, one.device): one.latitude for one in fixes.values()} == {
        ("acme", "v1"): pytest.approx(48.2),
        ("rival", "v1"): 1.0,
    }
    topic.take("acme", message("v1", (9, 1.0, 1.0), tenant="rival"))
    topic.take(None, SimpleNamespace(body=b"no batch", properties={"tenant": "acme", "region": "eu"}))
    topic.take(None, SimpleNamespace(body=b"", properties={}))
    assert console.feed.malformed == 3
    topic.take(None, message("v1", (10 * 86_400, 2.0, 2.0)))
    assert console.feed.fixes(NOW).of == fixes
    assert console.feed.status().source == "topics"
    console.feed.close()
    assert topic.is_closed


def test_without_topics_the_lake_is_polled(tmp_path: Path, console: Console) -> None:
    feed = LiveFeed(console.settings, console.last_fixes, console.now)
    feed.poll()
    assert len(feed.store.devices()) == 2
    assert (feed.status().source, feed.status().heard_at) == ("lake", None)
    ingest(console.lake.lake, [LakeFix("v2", 1, NOW, 48.0, 11.0)])
    until = time.monotonic() + 10
    while len(feed.store.devices()) == 2 and time.monotonic() < until:
        feed.poll()
    assert len(feed.store.devices()) == 3
    assert feed.status().heard_at == NOW


def test_an_erased_fix_is_gone_at_once_and_the_newest_that_is_left_is_shown(console: Console, topic: Topic) -> None:
    lake, v1 = console.lake.lake, TenantDevice("acme", "v1")
    ingest(lake, [LakeFix("v1", 2, NOW - timedelta(seconds=20), 49.0, 11.0)])
    reader = LastFixReader(OpenLake(lake, iter(range(0, 1000, 5)).__next__), console.settings.tracks, 400)
    feed = LiveFeed(console.settings, reader, console.now, topic.open)
    feed.take("acme", message("v1", (-10, 50.0, 11.0)))
    feed.take("acme", message("v2", (-1, 51.0, 11.0)))
    assert feed.fixes(NOW).of[v1].latitude == 50.0
    for seconds, left in ((25, 48.0), (60, None)):
        declare_erasure(lake, Erasure("acme", "v1", NOW - timedelta(seconds=5), NOW - timedelta(seconds=seconds)), NOW)
        known = feed.fixes(NOW).of
        assert (known[v1].latitude if v1 in known else None) == left
        feed.take("acme", message("v1", (-10, 50.0, 11.0)))
        assert feed.fixes(NOW).of == known
    assert {one.latitude for one in known.values()} == {1.0, 51.0}
    latitudes = np.frombuffer(base64.b64decode(feed.store.encode(np.arange(2))["latitude"]), "<i4")
    assert latitudes.tolist() == [0, 510_000_000]
    feed.take("acme", message("v1", (-2, 50.0, 11.0)))
    assert feed.fixes(NOW).of[v1].latitude == 50.0


class Stream:
    """The events of a stream, read in a thread."""

    def __init__(self, url: str) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.has_ended = threading.Event()
        self._thread = threading.Thread(target=self._read, args=(url,), daemon=True)
        self._thread.start()

    def _read(self, url: str) -> None:
        name = ""
        with httpx.stream("GET", f"{url}/live", timeout=30) as answer:
            for line in answer.iter_lines():
                if line.startswith("event: "):
                    name = line.removeprefix("event: ")
                elif line.startswith("data: "):
                    self.events.append((name, json.loads(line.removeprefix("data: "))))
        self.has_ended.set()

    def wait_for(self, is_there: Callable[[], bool]) -> None:
        until = time.monotonic() + 30
        while not is_there():
            assert time.monotonic() < until, self.events
            time.sleep(0.02)

    @property
    def ids(self) -> list[str]:
        return [one for name, data in self.events if name == "devices" for one in data["ids"]]

    def longitude(self, device: str) -> float | None:
        found = [data for name, data in self.events if name == "fixes"]
        if not found or device not in self.ids:
            return None
        column = np.frombuffer(base64.b64decode(found[-1]["longitude"]), "<i4")
        at = self.ids.index(device)
        return float(column[at]) / 1e7 if at < len(column) else None


@pytest.fixture
def live(console: Console) -> Iterator[Served]:
    """Its device v0 has no fix that is shown: the only one is of the future."""
    ingest(console.lake.lake, [LakeFix("v0", 1, NOW + timedelta(hours=1), 48.0, 11.0)])
    yield from serving(console, Viewer("x", frozenset({"acme"})))


def test_tabs_get_what_comes_and_their_streams_end_at_shutdown(console: Console, topic: Topic) -> None:
    running: Any = serving(console, Viewer("x", frozenset({"acme"})))
    served = next(running)
    tabs = [Stream(served.url) for _ in range(2)]
    console.feed.poll()
    for tab in tabs:
        tab.wait_for(lambda tab=tab: tab.ids == ["acme/v1"])  # type: ignore[misc]
    topic.take("acme", message("v1", (1, 48.1, 11.5)))
    topic.take("acme", message("v2", (1, 48.1, 11.6)))
    topic.take("rival", message("v9", (1, 1.0, 1.0), tenant="rival"))
    for tab in tabs:
        tab.wait_for(lambda tab=tab: tab.longitude("acme/v1") == 11.5 and tab.longitude("acme/v2") == 11.6)  # type: ignore[misc]
        assert "rival" not in json.dumps(tab.events)
    begin = time.monotonic()
    running.close()
    assert time.monotonic() - begin < 1.9
    assert all(tab.has_ended.wait(5) for tab in tabs)


def test_an_update_moves_points_and_cells_and_neither_camera_nor_focus(
    live: Served, console: Console, topic: Topic, browser: Any
) -> None:
    page = browser.new_page(viewport={"width": 1000, "height": 600})
    tab = Tab(page, live.url)
    tab.open(live.url)
    unknown = "() => document.querySelector('.facts dd[data-key=unknown]').textContent.trim()"
    assert page.evaluate(unknown) == "2"
    page.evaluate("() => document.querySelector('tr[data-id=\"acme/v1\"] a').focus()")
    camera = "() => JSON.stringify(document.querySelector('[data-island]').waybillMap.getBounds())"
    before = page.evaluate(camera)
    topic.take("acme", message("v1", (-1, 48.5, 11.5)))
    tab.wait_for(
        "return document.querySelector('tr[data-id=\"acme/v1\"] [data-key=age_s]').textContent.trim() === '1 s'"
    )
    tab.wait_for("return document.querySelector('.live').textContent.startsWith('Live: the topics of hq.')")
    assert page.evaluate(unknown) == "2"
    assert page.evaluate(camera) == before
    assert page.evaluate("() => document.activeElement.textContent.trim()") == "v1"
    assert "11:59:59" in page.text_content("tr[data-id='acme/v1'] [data-key=time]") or "10:59:59" in page.text_content(
        "tr[data-id='acme/v1'] [data-key=time]"
    )
    page.close()
    assert tab.faults == []


def test_only_a_visible_tab_holds_a_stream_and_a_lost_stream_is_opened_again(
    live: Served, console: Console, browser: Any
) -> None:
    page = browser.new_page()
    asked: list[str] = []
    answer = "works"

    def answer_it(route: Any) -> None:
        asked.append(answer)
        if answer == "works":
            route.continue_()
        elif answer != "hangs":
            route.fulfill(status=int(answer))

    page.route("**/live", answer_it)
    page.clock.install()
    tab = Tab(page, live.url)
    tab.open(live.url)
    works, lost = (
        f"return document.querySelector('.live').textContent.startsWith('Live: {text}')"
        for text in ("the topics of hq", "no update since 2026-01-05")
    )

    def hide(is_hidden: str) -> None:
        page.evaluate(
            f"() => {{ Object.defineProperty(document, 'hidden', {{ value: {is_hidden}, configurable: true }});"
            " document.dispatchEvent(new Event('visibilitychange')) }"
        )

    def wait_for(is_so: Callable[[], bool], passing_s: int = 0) -> None:
        until = time.monotonic() + 20
        while not is_so():
            assert time.monotonic() < until
            page.clock.fast_forward(passing_s * 1000)
            page.wait_for_timeout(20)

    tab.wait_for(works)
    hide("true")
    wait_for(lambda: console.feed.watchers == 0)
    answer = "hangs"
    hide("false")
    tab.wait_for(lost)
    for after in ("503", "503", "works"):
        answer = after
        begun = len(asked)
        wait_for(lambda begun=begun: len(asked) > begun, passing_s=5)  # type: ignore[misc]
    tab.wait_for(works)
    loaded: list[str] = []
    page.on("load", lambda _: loaded.append("again"))
    answer = "401"
    wait_for(lambda: bool(loaded), passing_s=5)
    page.close()
