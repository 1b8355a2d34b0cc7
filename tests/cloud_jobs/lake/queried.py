"""A small lake for queries, the queries of `docs/data-out.md`, and what they find in it."""

from __future__ import annotations

import re
import shutil
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import cloud_jobs.lake
from cloud_jobs.lake.tables import Lake
from tests.system.lake_of_fixes import NOON, LakeFix, derive, ingest, lake_of
from tests.usage_rows import usage_row

PAGE: Final = (Path(__file__).parents[3] / "docs" / "data-out.md").read_text(encoding="utf-8")
QUERIES: Final = Path(cloud_jobs.lake.__file__).parent / "queries"
EPOCH: Final = 58_830_363_821_697_206
"""Above 2^53."""


def code_with(word: str) -> str:
    """The block of Python on the page that has this word."""
    (found,) = (block for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL) if word in block)
    return str(found)


def json_expression(engine: str) -> str:
    found = re.search(rf"^\| {engine} \| `([^`]*driver[^`]*)` \|$", PAGE, re.MULTILINE)
    assert found is not None
    return found[1]


def minutes(count: int) -> datetime:
    return NOON + timedelta(minutes=count)


def queried_lake(folder: Path) -> Lake:
    """A lake in `folder/lake`, with a copy of the queries beside it."""
    shutil.copytree(QUERIES, folder / "queries")
    lake = lake_of(folder / "lake")
    ingest(
        lake,
        [
            LakeFix("van-1", 1, minutes(0), 53.5, 10.0),
            LakeFix("van-1", 2, minutes(1), 53.6, 10.1, mapping="buses@0a1b2c3d"),
            LakeFix("van-1", 3, minutes(2), 0, 0, kind="event", name="trip_end", text='{"driver":"7"}'),
            LakeFix("van-1", 4, datetime(2071, 1, 1, tzinfo=UTC), 1.0, 2.0, is_far_off=True),
            LakeFix("van-2", 1, minutes(-1440), -1.5, -2.5),
        ],
    )
    events = [
        _event("a", "enter", 0),
        _event("b", "exit", 2, value=120.0),
        _event("c", "enter", 5),
        _event("d", "enter", 1, place="quay"),
    ]
    derive(lake, "geofence_events", events)
    derive(lake, "geofence_events", [_event("d", "enter", 1, place="quay", revision=1, retracted=True)])
    rows = [
        usage_row("van-1", NOON, "", distance_mm=[1_000_000, 500_000, 0, 0]),
        usage_row("van-1", NOON, "depot", distance_mm=250_000),
        usage_row("van-1", NOON, "*", events=1),
    ]
    derive(lake, "usage", rows)
    derive(lake, "usage", [usage_row("van-1", NOON, "", distance_mm=1_000_000)])
    return lake


def _event(name: str, kind: str, minute: int, **more: Any) -> dict[str, Any]:
    usual = {"place": "depot", "value": 0.0, "revision": 0, "retracted": False, "seq": minute + 1}
    of = {"id": name, "kind": kind, "tenant": "acme", "device": "van-1", "epoch": EPOCH}
    return of | usual | {"time": minutes(minute), "day": date(2026, 1, 5), "emitted_at": NOON} | more


_VAN: Final = {"tenant": "acme", "device": "van-1"}
FOUND: Final[dict[str, list[dict[str, Any]]]] = {
    "km_per_day": [_VAN | {"day": date(2026, 1, 5), "km": 1.25, "km_in_fences": 0.25}],
    "visits": [
        _VAN | {"place": "depot", "entered_at": minutes(0), "left_at": minutes(2), "seconds": 120.0},
        _VAN | {"place": "depot", "entered_at": minutes(5), "left_at": None, "seconds": None},
    ],
    "fence_events": [
        _VAN
        | {
            "time": minutes(at),
            "kind": kind,
            "place": "depot",
            "value": value,
            "epoch": str(EPOCH),
            "seq": at + 1,
            "id": name,
        }
        for name, kind, at, value in (("a", "enter", 0, 0.0), ("b", "exit", 2, 120.0), ("c", "enter", 5, 0.0))
    ],
    "last_fix": [
        _VAN
        | {"device_time": minutes(1), "latitude": 53.6, "longitude": 10.1, "speed_mps": None}
        | {"mapping": "buses@0a1b2c3d", "epoch": "7", "seq": 2},
        {"tenant": "acme", "device": "van-2", "device_time": minutes(-1440), "latitude": -1.5, "longitude": -2.5}
        | {"speed_mps": None, "mapping": None, "epoch": "7", "seq": 1},
    ],
}
"""The rows of each query, in any engine."""
