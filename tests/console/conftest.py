"""A lake with a day of two vehicles and a billed month, the console that shows it, and a real browser."""

from __future__ import annotations

import html
import io
import json
import re
import shutil
import threading
import time
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
from PIL import Image
from starlette.types import ASGIApp, Receive, Scope, Send

from cloud_jobs.billing.register.close import close_period
from cloud_jobs.billing.register.closer import ClosingRun
from cloud_jobs.billing.register.operations import Clerk, issue_period
from cloud_jobs.billing.register.tables import Register
from cloud_jobs.config import CloudSettings
from cloud_jobs.lake.snapshots import take_snapshot
from cloud_jobs.lake.tables import Lake
from console.app import PAGES, make_app
from console.assets import Assets, are_stale
from console.context import LOCAL, Console, Viewer
from console.links import make_link
from console.serve import make_server, open_socket
from simulator import generated_scenario
from simulator.folder import streets_of
from tests.cloud_jobs.billing.page_lake import NOW as BILLED_AT
from tests.cloud_jobs.billing.page_lake import PageLake

NOW = datetime(2026, 1, 5, 11, 0, tzinfo=UTC)
"""The time that the console of the tests takes for now: the two vehicles have just stopped."""
DAY = date(2026, 1, 5)


def console_of(lake: Path, **console: Any) -> Console:
    settings = {
        "lake": str(lake),
        "checkpoints": str(lake.parent / "checkpoints"),
        "clusters": [{"name": "hq", "service_url": "pulsar://127.0.0.1:1", "admin_url": "http://127.0.0.1:1"}],
        "reference": {"unsigned": True},
        "console": {"port": 0, "live": False, **console},
    }
    return Console(CloudSettings.model_validate(settings), now=lambda: NOW)


@pytest.fixture(scope="package")
def page_lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("console")
    made = PageLake(folder)
    made.arrive()
    return folder / "lake"


class Served(NamedTuple):
    """A console on a real port."""

    url: str
    console: Console

    def json(self, address: str) -> Any:
        answer = httpx.get(self.url + address, headers={"accept": "application/json"}, timeout=30)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def html(self, address: str) -> str:
        answer = httpx.get(self.url + address, timeout=30)
        assert answer.status_code == 200, answer.text
        return answer.text


@pytest.fixture(scope="package")
def streets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base map: the streets of a scenario."""
    file: Path = tmp_path_factory.mktemp("basemap") / "streets.geojson"
    file.write_text(json.dumps(streets_of(generated_scenario(seed=7, vehicles=2, regions=("eu",)))))
    return file


@pytest.fixture(scope="package")
def served(page_lake: Path, streets: Path) -> Iterator[Served]:
    console = console_of(page_lake, basemap=str(streets), basemap_credit="Streets: made by <the> simulator")
    yield from serving(console)


def close(lake: Lake) -> None:
    snapshot = take_snapshot(lake, BILLED_AT)
    run = ClosingRun(name=f"run{snapshot.number}", snapshot=snapshot.number, snapshot_id=snapshot.id, now=BILLED_AT)
    close_period(lake, snapshot, (DAY, DAY), None, run=run)


@pytest.fixture(scope="package")
def billed_lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A day that was closed while a vehicle was silent, closed again when it was back, and issued."""
    folder: Path = tmp_path_factory.mktemp("billed")
    made = PageLake(folder)
    close(made.lake)
    made.arrive()
    close(made.lake)
    clerk = Clerk(by="A. Clerk", now=BILLED_AT, attempt="one")
    assert len(issue_period(Register(made.lake), (DAY, DAY), None, clerk=clerk).documents) == 1
    return folder / "lake"


@pytest.fixture(scope="package")
def billed(billed_lake: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The console of that lake, which can open shared links."""
    key: Path = tmp_path_factory.mktemp("links") / "link.key"
    key.write_text("0123456789abcdef" * 4)
    key.chmod(0o600)
    yield from serving(console_of(billed_lake, link_key=str(key)))


SPAN = "start=2026-01-05T00:00Z&end=2026-01-05T12:00Z"
ASKED = {"/replay": f"/replay?{SPAN}", "/where": f"/where?{SPAN}&circle=10.0006,53.5503,2500"}


def addresses_of_pages(billed: Served) -> dict[str, str]:
    """An address of every page by its pattern: those with names in them are found by following links."""
    patterns = {path: re.compile(re.sub(r"\{[^}]*\}", "[^/?]+", path)) for path in PAGES if path != "/replay/data"}
    _, token = make_link(billed.console.settings.console, "WE-00000001", NOW + timedelta(days=1))
    found: dict[str, str] = {}
    waiting = [*(ASKED.get(path, path) for path in patterns if "{" not in path), f"/shared/{token}"]
    seen: set[str] = set()
    while waiting and len(seen) < 60:
        address = waiting.pop(0)
        path = address.partition("?")[0]
        pattern = next((name for name, made in patterns.items() if made.fullmatch(path)), None)
        if path in seen or pattern is None or pattern in found:
            continue
        seen.add(path)
        answer = httpx.get(billed.url + address, timeout=30)
        if answer.status_code == 200 and answer.headers["content-type"].startswith("text/html"):
            found[pattern] = address
            links = map(html.unescape, re.findall(r'href="(/[^"#]*)"', answer.text))
            waiting += [ASKED.get(link, link) for link in links]
    assert found.keys() == patterns.keys()
    return found


def seen_by(app: ASGIApp, viewer: Viewer) -> ASGIApp:
    """The application as a signed-in viewer sees it."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        await app({**scope, "viewer": viewer}, receive, send)

    return answer


def serving(console: Console, viewer: Viewer = LOCAL) -> Iterator[Served]:
    """The console of the settings on a free port of loopback, until the generator is closed."""
    app = make_app(console)
    socket = open_socket(console.settings.console)
    server = make_server(seen_by(app, viewer), app.state.streams.end, grace_s=2)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [socket]}, daemon=True)
    thread.start()
    try:
        while not server.started:
            time.sleep(0.01)
        yield Served(f"http://127.0.0.1:{socket.getsockname()[1]}", console)
    finally:
        server.should_exit = True
        thread.join(10)
        socket.close()
        assert not thread.is_alive(), "it ends its streams and itself"


CHROMIUM = shutil.which("chromium")
BROWSER_ARGUMENTS = ["--use-angle=swiftshader", "--enable-unsafe-swiftshader"]
WAIT_S = 60.0


class Tab:
    """A page of a real browser, and what went wrong on it."""

    def __init__(self, page: Any, origin: str) -> None:
        self.page = page
        self.faults: list[str] = []
        page.on("console", lambda said: self._note(said.type in {"error", "warning"}, said.text))
        page.on("pageerror", lambda error: self._note(True, str(error)))
        page.on("request", lambda sent: self._note(not sent.url.startswith((origin, "blob:", "data:")), sent.url))

    def _note(self, is_fault: bool, text: str) -> None:
        if is_fault:
            self.faults.append(text)

    def open(self, url: str) -> None:
        """Opens an address and waits until its picture is drawn, if it has one."""
        self.page.goto(url)
        self.wait_for("const e = document.querySelector('[data-island]'); return !e || e.dataset.drawn === 'true'")

    def wait_for(self, condition: str) -> None:
        """Waits for a condition in JavaScript. The strict CSP forbids playwright's own way."""
        until = time.monotonic() + WAIT_S
        while not self.page.evaluate(f"() => {{ {condition} }}"):
            assert time.monotonic() < until, f"{condition}: {self.faults}"
            assert not self.page.evaluate("() => !!document.querySelector('.island.failed')"), self.faults
            time.sleep(0.1)

    def on_map(self, change: str, value: str) -> Any:
        """A value after a change of the map `m`, both JavaScript, once all is drawn."""
        self.page.evaluate(
            "() => { const e = document.querySelector('[data-island]'), m = e.waybillMap; e.dataset.idle = '';"
            f" m.once('idle', () => {{ e.dataset.idle = 'true' }}); {change}; m.triggerRepaint() }}"
        )
        self.wait_for("return document.querySelector('[data-island]').dataset.idle === 'true'")
        return self.page.evaluate(
            f"() => {{ const m = document.querySelector('[data-island]').waybillMap; return {value} }}"
        )

    def pixels(self, places: list[list[float]]) -> list[tuple[int, int, int]]:
        """The colours at places of the window, red, green and blue."""
        image = Image.open(io.BytesIO(self.page.screenshot())).convert("RGB")
        colours = [image.getpixel((round(x), round(y))) for x, y in places]
        return [tuple(one) for one in colours]  # type: ignore[misc, arg-type]

    def drawn_by(self, layer: str, places: list[list[float]]) -> list[bool]:
        """Whether a layer draws at each place of longitude and latitude: the picture differs without it."""
        points = self.on_map(
            "document.querySelector('.maplibregl-ctrl-bottom-right')?.remove()",
            f"(() => {{ const box = m.getCanvas().getBoundingClientRect(); return {places}.map(p => m.project(p))"
            ".map(p => [p.x + box.x, p.y + box.y]) })()",
        )
        # the middle of a disc, and its ring: a parked vehicle is white in the middle
        around = [[x + off, y] for x, y in points for off in (0, 5, 6, 7, 8)]
        drawn = self.pixels(around)
        self.on_map(f"m.setLayoutProperty('{layer}', 'visibility', 'none')", "0")
        differ = [
            sum(abs(a - b) for a, b in zip(one, other, strict=True)) > 60
            for one, other in zip(drawn, self.pixels(around), strict=True)
        ]
        return [any(differ[at : at + 5]) for at in range(0, len(differ), 5)]

    @property
    def renderer(self) -> str:
        return str(
            self.page.evaluate(
                "() => { const gl = document.querySelector('canvas.maplibregl-canvas').getContext('webgl2');"
                " return gl.getParameter(gl.getExtension('WEBGL_debug_renderer_info').UNMASKED_RENDERER_WEBGL) }"
            )
        )


@pytest.fixture(scope="package")
def browser() -> Iterator[Any]:
    """Debian's Chromium with software rendering. While it runs, this thread has an event loop: no test outside of this
    package would get another.
    """
    from playwright.sync_api import sync_playwright  # noqa: PLC0415 - most tests need no browser

    if not Assets.built().script:
        pytest.skip("the pictures' scripts are not built: make setup builds them where Node is 20.19 or newer")
    assert not are_stale(), "the scripts are older than their sources: npm run build in console/web"
    assert CHROMIUM, "chromium is missing: make setup installs it"
    with sync_playwright() as started:
        found = started.chromium.launch(executable_path=CHROMIUM, args=BROWSER_ARGUMENTS)
        yield found
        found.close()


@pytest.fixture
def tab(browser: Any, served: Served) -> Iterator[Tab]:
    page = browser.new_page(viewport={"width": 1280, "height": 800})
    made = Tab(page, served.url)
    yield made
    page.close()
    assert made.faults == []
