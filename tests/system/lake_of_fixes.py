"""A lake whose records are written by a test, as the ingest would have written them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from cloud_jobs.derived.incremental import commit_written, next_increment
from cloud_jobs.lake.coverage import Coverage, DeviceStream
from cloud_jobs.lake.coverage_log import CoverageFile, CoverageWriter
from cloud_jobs.lake.data_files import DataFile, write_data_files
from cloud_jobs.lake.location import Location
from cloud_jobs.lake.schemas import RECORDS, TABLES
from cloud_jobs.lake.tables import INGEST, Lake
from cloud_jobs.lake.transactions import commit_files, counter_of, newest_number, next_number
from cloud_jobs.lake.values import content_bytes
from tests.cloud_jobs.publications import rows_of
from tests.new_lakes import new_lake
from waybill.record import IntervalSet

NOON = datetime(2026, 1, 5, 12, tzinfo=UTC)
NIGHT = datetime(2026, 1, 5, 23, 40, tzinfo=UTC)


class LakeFix(NamedTuple):
    device: str
    seq: int
    time: datetime
    latitude: float
    longitude: float
    region: str = "eu"
    tenant: str = "acme"
    is_far_off: bool = False
    kind: str = "position"
    name: str = "door"
    """Of an event, or the path of a signal."""
    number: float | None = None
    """Of a signal."""
    text: str | None = "{}"
    """Of a signal, or the attributes of an event."""
    mapping: str | None = None
    received: datetime | None = None


def lake_of(place: Location | Path, features: Iterable[dict[str, Any]] = ()) -> Lake:
    if isinstance(place, Path):
        lake = new_lake(place)
    else:
        lake = Lake(place)
        lake.create()
    lake.append("reference", rows_of("fence", [*features]))
    return lake


def ingest(lake: Lake, fixes: Iterable[LakeFix]) -> None:
    """One commit of the ingest."""
    ingest_number = counter_of(newest_number(lake.open("records"), INGEST)) + 1
    rows = [_row(fix) | {"ingest_number": ingest_number} for fix in fixes]
    seqs: dict[DeviceStream, list[int]] = {}
    for row in rows:
        seqs.setdefault(DeviceStream(row["tenant"], row["device"], row["epoch"]), []).append(row["seq"])
    known = {stream: Coverage(IntervalSet.of(found), head=max(found)) for stream, found in seqs.items()}
    files = write_data_files(lake.files("records"), records_table(rows), NOON) if rows else []
    commit_ingest(lake, files, known)


def records_table(rows: Sequence[dict[str, Any]]) -> pa.Table:
    """Rows of the records table, with the bytes of their content as the ingest counts them."""
    made = pa.Table.from_pylist([*rows], schema=RECORDS)
    return made.set_column(RECORDS.names.index("content_bytes"), RECORDS.field("content_bytes"), content_bytes(made))


def cover(lake: Lake, known: Mapping[DeviceStream, Coverage]) -> None:
    """One commit of the ingest that brings coverage and no records."""
    commit_ingest(lake, [], known)


def commit_ingest(lake: Lake, files: Sequence[DataFile], known: Mapping[DeviceStream, Coverage]) -> None:
    """One commit of the ingest."""
    opened = lake.open("records")
    previous = newest_number(opened, INGEST)
    number = next_number(previous)
    CoverageWriter(lake.coverage_log, lake.coverage_manifest(previous), _no_merge).prepare(number, known)
    commit_files(opened, "records", files, writer=INGEST, previous=previous, number=number)


def _no_merge(_: Callable[[], CoverageFile]) -> Future[CoverageFile]:
    return Future()


def _row(fix: LakeFix) -> dict[str, Any]:
    day = None if fix.is_far_off else date(fix.time.year, fix.time.month, fix.time.day)
    row = fix._asdict()
    del row["is_far_off"]
    received = row.pop("received") or fix.time
    if fix.kind != "position":
        row |= {"latitude": None, "longitude": None}
    else:
        del row["name"], row["text"]
    return row | {
        "epoch": 7,
        "device_time": fix.time,
        "received_at": received + timedelta(seconds=1),
        "device_date": day,
        "ingested_at": received + timedelta(seconds=2),
    }


def derive(
    lake: Lake, table: str, rows: Sequence[dict[str, Any]] = (), states: Mapping[str, int] | None = None
) -> None:
    """One commit of a derived table, which covers the records as they are."""
    increment = next_increment(lake, table)
    schema, stamps = TABLES[table].schema, {"commit_number": increment.commit_number}
    made = pa.Table.from_pylist([row | stamps for row in rows], schema=schema)
    commit_written(increment, write_data_files(lake.files(table), made, NOON, table=table), states=states)


def square(name: str, lon: float = 0.0, lat: float = 0.0, side: float = 0.01, **more: Any) -> dict[str, Any]:
    ring = [[lon, lat], [lon + side, lat], [lon + side, lat + side], [lon, lat + side], [lon, lat]]
    return {
        "type": "Feature",
        "properties": {"id": name, **more},
        "geometry": {"type": "Polygon", "coordinates": [ring]},
    }


def in_force(lake: Lake, table: str) -> list[dict[str, Any]]:
    """The newest revision of each id that was not retracted."""
    newest: dict[str, dict[str, Any]] = {}
    for row in sorted(lake.rows(table).to_pylist(), key=lambda row: row["revision"]):
        newest[row["id"]] = row
    return [row for row in newest.values() if not row["retracted"]]
