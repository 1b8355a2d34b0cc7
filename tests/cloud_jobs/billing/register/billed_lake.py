"""A lake with contracts and usage, to be closed and issued: rows as the jobs commit them, without Spark."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any

from cloud_jobs.billing.register.close import close_period
from cloud_jobs.billing.register.closer import ClosingRun
from cloud_jobs.billing.register.closing import Closing, Days
from cloud_jobs.billing.register.operations import Clerk, PostingResult, adjust_period, issue_period
from cloud_jobs.billing.register.tables import Register
from cloud_jobs.lake.coverage import Coverage, DeviceStream
from cloud_jobs.lake.data_files import write_data_files
from cloud_jobs.lake.schemas import QUANTITIES
from cloud_jobs.lake.snapshots import take_snapshot
from cloud_jobs.lake.tables import Lake
from cloud_jobs.lake.transactions import counter_of
from tests.cloud_jobs.billing.contracts.makers import rows
from tests.new_lakes import new_lake
from tests.system.lake_of_fixes import commit_ingest, derive, records_table
from waybill.record import IntervalSet

NOW = datetime(2026, 6, 1, 9, 30, tzinfo=UTC)
DAYS = (date(2026, 3, 1), date(2026, 3, 31))
HOUR = datetime(2026, 3, 10, 6, tzinfo=UTC)
_MOMENT = datetime(2020, 1, 1, tzinfo=UTC)
LONG_AGO = {
    "tenant": "fleet",
    "epoch": 1,
    "kind": "event",
    "name": "door",
    "text": "{}",
    "region": "eu",
    "device_date": _MOMENT.date(),
    **dict.fromkeys(("device_time", "received_at", "ingested_at"), _MOMENT),
}
"""A record of no period that anybody asks for."""


def used(device: str, metres: int, hour: datetime = HOUR, zone: str = "", **more: Any) -> dict[str, Any]:
    """A row of usage: so many metres in the first quarter of an hour."""
    row: dict[str, Any] = {"tenant": "fleet", "device": device, "hour": hour, "zone": zone}
    row |= {name: [0, 0, 0, 0] for name in QUANTITIES} | {"distance_mm": [metres * 1000, 0, 0, 0]}
    row |= {"seq_ranges": '{"1":[[1,2]]}', "fence_version": "", "engine_version": 1, "day": hour.date()}
    return row | more | {"digest": sha256(repr(sorted(row.items())).encode()).hexdigest()[:16], "computed_at": hour}


@dataclass
class BilledLake:
    lake: Lake

    @classmethod
    def create(cls, folder: Path, *devices: str) -> BilledLake:
        made = cls(new_lake(folder))
        made.hear(*devices)
        return made

    @property
    def register(self) -> Register:
        return Register(self.lake)

    def publish(self, *bodies: dict[str, Any]) -> None:
        there = self.lake.rows("reference", ["publication_id"]).num_rows
        self.lake.append("reference", rows(*bodies)[there:])

    def hear(self, *devices: str, until: datetime = NOW, missing: bool = False) -> None:
        """One commit of the ingest: devices state what they have until a moment, and perhaps not all of it came."""
        until_us = int(until.timestamp() * 1_000_000)
        received = IntervalSet([(1, 2), (4, 5)] if missing else [(1, 5)])
        known = Coverage(
            received, head=5, stated_us=until_us, stated_head=5, complete_until_us=0 if missing else until_us
        )
        there = {tuple(row.values()) for row in self.lake.rows("records", ["device", "seq"]).to_pylist()}
        number = counter_of(self.lake.ingest_commit()) + 1
        rows = [
            LONG_AGO | {"device": name, "seq": seq, "ingest_number": number}
            for name in devices
            for first, last in received.ranges
            for seq in range(first, last + 1)
            if (name, seq) not in there
        ]
        files = write_data_files(self.lake.files("records"), records_table(rows), NOW) if rows else []
        commit_ingest(self.lake, files, {DeviceStream("fleet", name, 1): known for name in devices})

    def use(self, *usage: dict[str, Any]) -> None:
        derive(self.lake, "usage", usage)

    def close(
        self, name: str, payers: Collection[str] | None = None, now: datetime = NOW, days: Days = DAYS, **more: Any
    ) -> list[Closing]:
        snapshot = take_snapshot(self.lake, now)
        run = ClosingRun(name=name, snapshot=snapshot.number, snapshot_id=snapshot.id, now=now)
        return close_period(self.lake, snapshot, days, payers, run=run, **more)

    def issue(self, name: str, days: Days = DAYS) -> PostingResult:
        return issue_period(self.register, days, None, clerk=clerk(name))

    def adjust(self, name: str) -> PostingResult:
        return adjust_period(self.register, DAYS, None, clerk=clerk(name))


def clerk(name: str) -> Clerk:
    return Clerk(by="A. Clerk", now=NOW, attempt=name)


def hours(count: int) -> list[datetime]:
    return [HOUR + timedelta(days=number) for number in range(count)]
