"""What a viewer may see when vehicles change hands, and what addresses at the ends of the calendar get."""

import asyncio
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest

from cloud_jobs.errors import LakeError
from cloud_jobs.lake.tables import Lake
from console import movements, stream
from console.asked import check_asked
from console.context import Console, Query, Viewer
from console.errors import BadQuery, Busy, NotThere
from console.fixes import LastFix
from console.page import Page, as_json
from console.pages import device, fleet, happenings, replay, where
from console.stream import LiveStreams
from tests.cloud_jobs.billing.contracts.makers import account
from tests.cloud_jobs.billing.contracts.makers import device as paid_device
from tests.cloud_jobs.publications import row_of
from tests.console.conftest import NOW, console_of
from tests.system.lake_of_fixes import LakeFix, ingest, lake_of

SOLD = NOW - timedelta(hours=1)
OLD, NEW = (Viewer(name, accounts=frozenset({name})) for name in ("old", "new"))
BEFORE = {"start": "2026-01-05T08:00Z", "end": "2026-01-05T09:30Z", "box": "10,47,12,49"}
VAN = {"tenant": "acme", "device": "van"}


def publish(lake: Lake, name: str, number: int, **of_device: str) -> None:
    made = account(name, paid_device("van", tenant="acme", **of_device))
    lake.append("reference", [row_of("account", name, json.dumps(made), number)])


@pytest.fixture
def sold(tmp_path: Path) -> Console:
    """A van that one account paid for until an hour ago, and another one since then; and a van without an account."""
    lake = lake_of(tmp_path / "lake")
    publish(lake, "old", 1, end=SOLD.isoformat())
    publish(lake, "new", 2, begin=SOLD.isoformat())
    times = [NOW - timedelta(minutes=170 - 2 * at) for at in range(85)]
    fixes = [LakeFix("van", seq, at, 48.0 + seq / 1000, 11.0) for seq, at in enumerate(times, 1)]
    ingest(lake, [*fixes, LakeFix("nobody", 1, NOW - timedelta(minutes=1), 48.0, 11.0, tenant="rival")])
    return console_of(tmp_path / "lake")


def devices_in(view: Callable[[Console, Query], Page], console: Console, viewer: Viewer, **asked: str) -> set[str]:
    tables = {table.id: table for table in view(console, Query(viewer, asked=asked)).tables}
    return {row["device"] for row in tables["devices"].rows}


def test_a_vehicle_does_not_show_its_new_account_what_the_old_one_paid_for(sold: Console, tmp_path: Path) -> None:
    assert devices_in(fleet.page, sold, NEW) == {"van"}, "a vehicle without an account is of no account"
    assert devices_in(fleet.page, sold, OLD) == set()
    for view in (replay.page, where.page):
        assert devices_in(view, sold, NEW, **BEFORE) == set()
        assert devices_in(view, sold, OLD, **BEFORE) == {"van"}
    island = as_json(fleet.page(sold, Query(NEW)))["island"]
    assert (len(island["ids"]), island["tracks"]["longitude"]) == (1, "")
    with pytest.raises(NotThere):
        device.page(sold, Query(NEW, VAN, {"day": "2026-01-05"}))
    assert device.page(sold, Query(NEW, VAN, {"day": "2026-01-06"})).tables
    [log] = tmp_path.glob("lake-access-*.jsonl")
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [one["viewer"] for one in lines if one["command"] == "console replay"] == ["old"]
    fleets = [one["devices"] for one in lines if one["command"] == "console fleet"]
    # one line a request, and tenants that no settings name
    assert fleets == [["acme/*", "fleet/*", "rival/*"]] * len(fleets)


def test_a_link_to_a_time_opens_the_day_of_the_zone_of_the_devices_page(sold: Console) -> None:
    asked = {**BEFORE, "end": "2026-01-05T11:00Z", "zone": "Pacific/Kiritimati"}
    for view in (replay.page, where.page):
        for start, day in (("08:00", "2026-01-05"), ("10:00", "2026-01-06")):
            asked["start"] = f"2026-01-05T{start}Z"
            tables = {table.id: table for table in view(sold, Query(asked=asked)).tables}
            [link] = {row["href"] for row in tables["devices"].rows if row["device"] == "van"}
            query = Query(path=VAN, asked=dict(parse_qsl(urlsplit(link).query)))
            opened = device.page(sold, query)
            check_asked(opened, query)
            assert opened.state["day"] == day


def test_times_at_the_ends_of_the_calendar_and_days_that_never_were_are_refused(sold: Console) -> None:
    with pytest.raises(BadQuery, match="does not exist"):
        device.page(sold, Query(path=VAN, asked={"day": "2011-12-30", "zone": "Pacific/Apia"}))
    for text in ("0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z"):
        with pytest.raises(BadQuery):
            fleet.page(sold, Query(asked={"at": text}))
        for name in ("since", "until"):
            with pytest.raises(BadQuery):
                happenings.events_page(sold, Query(asked={name: text}))


def test_a_fix_far_ahead_replaces_none_and_a_wrong_clock_of_the_console_hides_none(tmp_path: Path) -> None:
    lake, far, near = lake_of(tmp_path / "lake"), timedelta(hours=20), timedelta(minutes=3)
    ingest(lake, [LakeFix("v1", 1, NOW, 1.0, 1.0), LakeFix("v1", 2, NOW + far, 2.0, 2.0, received=NOW)])
    ingest(lake, [LakeFix("near", 1, NOW + near, 3.0, 3.0, received=NOW)])
    ingest(lake, [LakeFix("far", 1, NOW + far, 3.0, 3.0, received=NOW)])
    console = console_of(tmp_path / "lake")
    for days in (3, 0):
        # the host's clock is behind at the start, and right later
        console.now = lambda days=days: NOW - timedelta(days=days)  # type: ignore[misc]
        page = fleet.page(console, Query())
        rows = {row["device"]: (row["latitude"], row["state"]) for row in page.tables[0].rows}
        assert (rows["v1"][0], rows["near"], rows["far"]) == (1.0, (3.0, "unknown"), (None, "unknown"))
        assert {fact.key: fact.value for fact in page.facts}["ahead"] == 2
    said = [device.page(console, Query(path={"tenant": "acme", "device": one})).warnings for one in ("near", "far")]
    assert "180 s ahead of this console's clock" in said[0][0]
    assert said[1][0].endswith("over 10 min after their receipt: 1.")


def test_a_clock_a_little_ahead_is_shown_and_one_that_was_never_set_is_not(tmp_path: Path) -> None:
    lake = lake_of(tmp_path / "lake")
    ahead, unset = (NOW + timedelta(seconds=2), NOW.replace(year=1970))
    ingest(lake, [LakeFix("ahead", 1, ahead, 1.0, 1.0), LakeFix("unset", 1, unset, 1.0, 1.0, is_far_off=True)])
    console = console_of(tmp_path / "lake")
    rows = {row["device"]: row for row in fleet.page(console, Query()).tables[0].rows}
    assert (rows["ahead"]["age_s"], rows["ahead"]["latitude"], rows["unset"]["latitude"]) == (0, 1.0, None)
    far = LastFix("acme", "far", "eu", NOW + timedelta(hours=3), NOW, 1.0, 1.0, 9.0, None, None)
    assert fleet.state_of(far, NOW) == "unknown"


def test_of_large_spans_one_is_read_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(movements, "_WAIT_S", 0.0)
    with movements._turn(3_000_000), movements._turn(10), pytest.raises(Busy), movements._turn(3_000_000):
        pass
    with movements._turn(3_000_000):
        pass


def test_a_stream_ends_to_be_judged_again_and_survives_an_update_that_fails(
    sold: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("_EACH_S", "_AT_LEAST_EACH_S"):
        monkeypatch.setattr(stream, name, 0.01)
    sold.feed.poll()
    streams, encode, failed = LiveStreams(sold), LiveStreams._encode, list[bool]()

    def fails_once(*asked: Any) -> Any:
        if not failed:
            failed.append(True)
            raise LakeError("the store does not answer")
        return encode(*asked)

    async def read() -> list[str]:
        events = streams._events(NEW)
        found = [await anext(events), await anext(events), await anext(events)]
        monkeypatch.setattr(LiveStreams, "_encode", fails_once)
        while not failed:
            found.append(await anext(events))
        found.append(await anext(events))
        monkeypatch.setattr(stream, "GROUP_S", 0.0)
        return [*found, *[one async for one in events]]

    # a browser of another test keeps an event loop in this thread
    with ThreadPoolExecutor(1) as pool:
        text = "".join(pool.submit(lambda: asyncio.run(asyncio.wait_for(read(), 20))).result())
    assert streams.count == 0
    assert '"ids":["acme/van"]' in text
    assert "rival" not in text
