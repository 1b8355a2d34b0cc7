"""A lake that is not there, is taken away under a running console, or is replaced by an older copy."""

import asyncio
import shutil
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
from starlette.applications import Starlette
from starlette.routing import Route

from console.app import PAGES
from console.assets import Assets
from console.context import Console, Query
from console.http import Renderer
from console.page import Page
from tests.console.conftest import ASKED, NOW, Served, console_of, serving
from tests.system.lake_of_fixes import LakeFix, ingest, lake_of

ADDRESSES = [ASKED.get(path, path) for path in PAGES if "{" not in path and path != "/replay/data"]


@contextmanager
def served_of(console: Console) -> Iterator[Served]:
    running: Any = serving(console)
    try:
        yield next(running)
    finally:
        running.close()


def answers_until(served: Served, is_there: Callable[[list[httpx.Response]], bool]) -> None:
    """Reads all pages until they are as they should be; a table is asked for newer commits once a second."""
    until = time.monotonic() + 15
    while True:
        answers = [httpx.get(served.url + address, timeout=30) for address in ADDRESSES]
        assert {one.status_code for one in answers} <= {200, 503}
        if is_there(answers):
            return
        assert time.monotonic() < until, [(one.url.path, one.status_code) for one in answers]


def has_no_lake(answers: list[httpx.Response]) -> bool:
    return all(one.status_code == 503 and "There is no lake at " in one.text for one in answers)


def test_without_a_lake_no_page_shows_an_empty_fleet(tmp_path: Path) -> None:
    (tmp_path / "lake").mkdir()
    for name in ("none", "lake"):
        with served_of(console_of(tmp_path / name)) as served:
            assert has_no_lake([httpx.get(served.url + address, timeout=30) for address in ADDRESSES])


def test_a_lake_may_go_and_come_back_as_an_older_copy(tmp_path: Path) -> None:
    lake, place = lake_of(tmp_path / "lake"), tmp_path / "lake"
    ingest(lake, [LakeFix("v1", 1, NOW - timedelta(seconds=20), 48.0, 11.0)])
    shutil.copytree(place, tmp_path / "copy")
    ingest(lake, [LakeFix("v1", 2, NOW - timedelta(seconds=10), 49.0, 11.0)])
    with served_of(console_of(place)) as served:
        answers_until(served, lambda answers: all(one.status_code == 200 for one in answers))
        place.rename(tmp_path / "gone")
        answers_until(served, has_no_lake)
        (tmp_path / "copy").rename(place)
        answers_until(served, lambda answers: all(one.status_code == 200 for one in answers))
        assert served.json("/")["tables"]["devices"]["rows"][0]["latitude"] == 48.0


def test_a_page_that_fails_names_nothing_of_its_inside(tmp_path: Path) -> None:
    def view(_console: Console, _query: Query) -> Page:
        raise RuntimeError("inside")

    endpoint = Renderer(console_of(tmp_path / "lake"), Assets.built()).endpoint(view)
    lake_of(tmp_path / "lake")
    # in a thread of its own: a browser of another test keeps an event loop in this one
    client = httpx.AsyncClient(transport=httpx.ASGITransport(Starlette(routes=[Route("/", endpoint)])))
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(lambda: asyncio.run(client.get("http://localhost/"))).result()
    assert answer.status_code == 500
    assert "This page failed" in answer.text
    assert "inside" not in answer.text
