"""A hostile lake breaks no page and runs no script, and no address shows a viewer another tenant's data."""

import html
import math
import re
from collections import deque
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urljoin, urlsplit

import httpx
import pytest

from console.app import PAGES
from console.context import Viewer
from tests.cloud_jobs.billing.contracts.makers import account, device, price, tariff
from tests.cloud_jobs.publications import row_of
from tests.console.conftest import NOW, Served, Tab, console_of, serving
from tests.console.test_console_alerts import event
from tests.system.lake_of_fixes import LakeFix, ingest, lake_of, square

NAMES = (
    "<script>window.hit=1</script>",
    '"><img src=x onerror=window.hit=1>',
    "{{ 7 * 7 }}",
    "\u202eevil\u0000\u001b[31m",
    "../../etc/passwd?x=1#y",
    "a'; drop table records; --",
    "日本 🚚",
    "=cmd|' /C calc'!A0",
)
PLACES = (
    *((math.nan, 1.0), (math.inf, -math.inf), (90.0, 0.0), (-90.0, 180.0), (0.0, 0.0)),
    *((12.0, 180.0), (12.0, -180.0), (95.0, 10.0), (48.1, 11.5)),
)
SECRET = "secret-device"
PLAIN = ("future", "van-1")
FEW_PAGES, ALL_PAGES = 45, 300


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place: Path = tmp_path_factory.mktemp("hostile") / "lake"
    zone, other = square("zone", 11.0, 48.0), square(f"{SECRET}-place", 11.2, 48.0)
    zone["properties"]["name"] = NAMES[0]
    other["properties"]["name"] = f"Yard of {SECRET}"
    lake = lake_of(place, [zone, other])
    contract = account("rival", *(device(name, tenant="rival") for name in PLAIN))
    priced = tariff(price(zone="zone"))
    lake.append("reference", [row_of("tariff", "standard", priced, 10), row_of("account", "rival", contract, 11)])
    events = [event("1", NOW, tenant="rival", device="future", place="zone")]
    lake.append("geofence_events", [*events, event("2", NOW, tenant="acme", device=SECRET, place=f"{SECRET}-place")])
    fixes = [
        LakeFix(name, seq, NOW - timedelta(seconds=90 - seq), *where, tenant="rival")
        for name in NAMES
        for seq, where in enumerate(PLACES, 1)
    ]
    ahead = datetime(2099, 1, 1, tzinfo=UTC)
    fixes += [LakeFix("future", 1, ahead, 1.0, 1.0, tenant="rival", received=NOW)]
    fixes += [LakeFix(SECRET, seq, NOW - timedelta(seconds=60 - seq), 48.1, 11.5) for seq in range(1, 30)]
    ingest(lake, fixes)
    return place


@pytest.fixture(scope="module")
def attacked(hostile: Path) -> Iterator[Served]:
    yield from serving(console_of(hostile), viewer=Viewer("rival", frozenset({"rival"}), frozenset({"rival"})))


def links_of(text: str, url: str) -> list[str]:
    """The addresses of this origin that a page links to."""
    found = (urljoin(url, html.unescape(link)) for link in re.findall(r'(?:href|src|action)="([^"]*)"', text))
    return [one.partition("#")[0] for one in found if urlsplit(one).netloc == urlsplit(url).netloc]


@pytest.mark.parametrize("most", [FEW_PAGES, pytest.param(ALL_PAGES, marks=pytest.mark.nightly)])
def test_a_crawler_finds_nothing_of_another_tenant_and_no_page_fails(attacked: Served, most: int) -> None:
    static = [path for path in PAGES if "{" not in path]
    guesses = [f"/device/acme/{SECRET}", "/?tenant=acme", "/bills/acme", "/documents/WB-1", "/fences/zone"]
    guesses += [f"/fences/{SECRET}-place", "/events?tenant=rival", "/fences?state=past", "/where?box=11,48,11.5,48.5"]
    waiting, seen = deque(attacked.url + path for path in (*static, *guesses)), set[str]()
    with httpx.Client(timeout=30) as client:
        while waiting and len(seen) < most:
            url = waiting.popleft()
            if url in seen or "/static/" in url or "/live" in url:
                continue
            seen.add(url)
            for accept in ("text/html", "application/json"):
                answer = client.get(url, headers={"accept": accept})
                assert answer.status_code in {200, 400, 404, 503}, url
                assert SECRET not in answer.text.replace(html.escape(urlsplit(url).path), ""), url
                assert "<script>window" not in answer.text or accept == "application/json", url
                if accept == "text/html":
                    waiting.extend(links_of(answer.text, url))
    assert len(seen) > len(static)
    assert [row["id"] for row in attacked.json("/fences")["tables"]["fences"]["rows"]] == ["zone"]


def test_names_run_no_script_and_odd_places_break_no_map(attacked: Served, browser: Any) -> None:
    page = browser.new_page()
    tab = Tab(page, attacked.url)
    tab.open(attacked.url)
    assert page.evaluate("() => window.hit") is None
    assert page.evaluate("() => document.querySelectorAll('main img, main script').length") == 0
    assert page.evaluate("() => document.querySelectorAll('#devices tbody tr').length") >= len(NAMES)
    page.close()
    assert tab.faults == []
