"""The centre of a month that is hard to bill: a lake, and what is done to it by the real ingest, usage and register."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta
from secrets import token_hex
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from cloud_jobs.billing.certificates.decisions import ClosedState, decide
from cloud_jobs.billing.contracts import contracts_of_toml
from cloud_jobs.billing.documents import Document, DocumentType
from cloud_jobs.billing.documents.canonical import Annex
from cloud_jobs.billing.register.close import close_period
from cloud_jobs.billing.register.closer import ClosingRun
from cloud_jobs.billing.register.closing import Closing, Days
from cloud_jobs.billing.register.documents_of import issued_document
from cloud_jobs.billing.register.errors import AlreadyVoid
from cloud_jobs.billing.register.ledger import check_numbers
from cloud_jobs.billing.register.operations import Clerk, PostingResult, adjust_period, issue_period, void_invoice
from cloud_jobs.billing.register.tables import Register
from cloud_jobs.derived.incremental import commit_written, next_increment
from cloud_jobs.geofence.event_revisions import INPUT, REACH_MS, EventRules, GeofenceSettings, revise
from cloud_jobs.geofence.job import TABLE as EVENTS
from cloud_jobs.geofence.job import compute_events
from cloud_jobs.ingest.decoding import decode_messages
from cloud_jobs.ingest.parts import write_part
from cloud_jobs.jobs import close_on_spark
from cloud_jobs.lake.coverage import TenantDevice
from cloud_jobs.lake.data_files import write_data_files
from cloud_jobs.lake.schemas import TABLES
from cloud_jobs.lake.snapshots import note_fences, take_snapshot
from cloud_jobs.lake.tables import FENCES, Lake
from cloud_jobs.reference.tables import fences_in
from cloud_jobs.usage import devices as groups
from cloud_jobs.usage import job
from geo.spatial import TrackSettings
from geo.spatial.event_ids import DAY_MS
from tests.cloud_jobs.geofence.centre import as_rows, known_row
from tests.cloud_jobs.ingest.centre import new_ingest
from tests.cloud_jobs.ingest.test_decoding import MESSAGES
from tests.cloud_jobs.publications import rows_of
from tests.cloud_jobs.usage.test_any_order import ONE_MACHINE
from tests.month import ArrivedBatch, Decide, Publish

MARCH: Days = (date(2026, 3, 1), date(2026, 3, 31))
CLERK = "C. Lerk"
BY_NATURE: dict[str, tuple[str, ...]] = {
    # which run wrote it
    "rated_lines": ("run",),
    "certificates": ("run",),
    # also: when, and of how many
    "closings": ("run", "closed_at", "number", "snapshot", "snapshot_id"),
    # which snapshot it was made at, by its number among all snapshots and a digest of what it stands for
    "document": ("snapshot", "digest"),
}
"""All that may differ of two runs that know the same, of a row or of a document's JSON, and no more.

A document's dates are those of the clerk's clock, and of one clock they are the same."""


class Centre:
    """A lake and what is done to it. `spark`: where usage and closings are computed; None: in this process.

    `tasks`: into how many groups of payers this process cuts a closing. `cluster`: whose topics messages come from.
    """

    def __init__(self, lake: Lake, spark: SparkSession | None = None, *, tasks: int = 1, cluster: str = "hq") -> None:
        self.lake = lake
        self.register = Register(lake)
        lake.create()
        self._ingest = new_ingest(lake)
        self._spark = spark
        self._tasks = tasks
        self._cluster = cluster
        self._published = 0

    def publish(self, step: Publish) -> None:
        """Contracts as TOML makes them, then fences."""
        stated, faults = contracts_of_toml(step.contracts)
        assert not faults
        for one in stated:
            self._store(one.kind, json.loads(one.made.model_dump_json()))
        for feature in step.fences:
            self._store("fence", json.loads(feature))

    def take_in(self, *tasks: Sequence[ArrivedBatch]) -> None:
        """One micro-batch, each task with its batches."""
        attempt = self._ingest.begin()
        parts = [
            write_part(self.lake, decoded, attempt.ingest_number, attempt.now)
            for task in tasks
            if task
            for decoded in decode_messages([_messages(task, self._cluster)])
        ]
        self._ingest.write(attempt, parts)

    def meter(self) -> None:
        """One run of usage: here in one piece, or on executors in many, though a month of few records needs none."""
        with pytest.MonkeyPatch.context() as patch:
            if self._spark is None:
                patch.setattr(job, "run_on_executors", lambda _, work, items: [work(item) for item in items])
            else:
                patch.setattr(job, "_FEW_FILES", 0)
                patch.setattr(groups, "_LEAST_RECORDS", 1)
            job.compute_usage(self._spark or ONE_MACHINE, self.lake, TrackSettings())
        self._find_events()

    def _find_events(self) -> None:
        """One run of the geofence job, or in this process all of its days again."""
        if self._spark is not None:
            compute_events(self._spark, self.lake, TrackSettings(), GeofenceSettings())
            return
        increment, fences = next_increment(self.lake, EVENTS), fences_in(self.lake).features
        rules = EventRules.of(fences, TrackSettings(), GeofenceSettings())
        revisions = as_rows(revise(pa.Table.from_pylist(_days_of_events(self.lake), schema=INPUT), rules))
        now = datetime.now(UTC)
        stamps = {"emitted_at": now, "commit_number": increment.commit_number}
        made = pa.Table.from_pylist([row | stamps for row in revisions], schema=TABLES[EVENTS].schema)
        files = write_data_files(self.lake.files(EVENTS), made, now, table=EVENTS)
        commit_written(increment, files, states={FENCES: note_fences(self.lake, fences)})

    def decide(self, step: Decide) -> None:
        """As the clerk's command does it."""
        device = TenantDevice(step.tenant, step.device)
        reason = {"decided_by": step.who, "reason": step.reason}
        decide(
            self.lake, device, ClosedState.SILENT, (step.until - timedelta(days=32), step.until), now=step.at, **reason
        )

    def close(self, now: datetime, days: Days = MARCH, payers: Collection[str] | None = None) -> list[Closing]:
        """On what is known now."""
        snapshot = take_snapshot(self.lake, now)
        run = ClosingRun(name=self._name("run"), snapshot=snapshot.number, snapshot_id=snapshot.id, now=now)
        if self._spark is not None:
            return close_on_spark(self._spark, self.lake, snapshot, days, payers, run=run)
        return close_period(self.lake, snapshot, days, payers, run=run, tasks=self._tasks)

    def issue(self, now: datetime, days: Days = MARCH, payers: Collection[str] | None = None) -> PostingResult:
        """What is closed and final."""
        return issue_period(self.register, days, payers, clerk=self._clerk(now))

    def adjust(self, now: datetime, payers: Collection[str] | None = None) -> PostingResult:
        """What the newest closings change."""
        return adjust_period(self.register, MARCH, payers, clerk=self._clerk(now))

    def void(self, now: datetime) -> None:
        """Takes back whatever stands."""
        invoices = [one for one in self.register.documents() if one.type is DocumentType.INVOICE]
        for one in invoices:
            with suppress(AlreadyVoid):
                void_invoice(self.register, one.number, "wrong buyer", clerk=self._clerk(now))

    def documents(self) -> list[Document]:
        """All that were issued, each made again; numbers are without gaps."""
        for entity, counters in self.register.counters().items():
            check_numbers(counters, entity)
        return [issued_document(self.register, one.number) for one in self.register.documents()]

    def _clerk(self, now: datetime) -> Clerk:
        return Clerk(by=CLERK, now=now, attempt=self._name("command"))

    def _name(self, of: str) -> str:
        return f"{of} {token_hex(8)}"

    def _store(self, kind: Any, body: dict[str, Any]) -> None:
        self.lake.append("reference", rows_of(kind, [body], first=self._published))
        self._published += 1


def _days_of_events(lake: Lake) -> list[dict[str, Any]]:
    """The input of the geofence job for each day that has a fix within reach."""
    names = ("tenant", "device", "epoch", "seq", "latitude", "longitude", "accuracy_m")
    fixes = [
        {name: row[name] for name in names} | {"t_ms": round(row["device_time"].timestamp() * 1000)}
        for row in lake.rows("records").to_pylist()
        if row["kind"] == "position" and row["device_date"] is not None
    ]
    shifts = (-REACH_MS, 0, REACH_MS)
    touched = {(fix["tenant"], fix["device"], (fix["t_ms"] + shift) // DAY_MS) for fix in fixes for shift in shifts}
    rows = [
        fix | {"unit": f"{fix['tenant']}\n{fix['device']}\n{day}", "touched": fix["t_ms"] // DAY_MS == day}
        for fix in fixes
        for day in range(fix["t_ms"] // DAY_MS - 1, fix["t_ms"] // DAY_MS + 2)
        if (fix["tenant"], fix["device"], day) in touched
    ]
    known = lake.rows(EVENTS)
    rows += [known_row(row) for row in as_rows(known)]
    return sorted(rows, key=lambda row: (row["unit"], row["t_ms"], row["epoch"], row["seq"]))


def billed(centre: Centre) -> dict[str, list[str]]:
    """The content of the register: of each payer's newest closing with its rows, and of all documents."""
    newest = {one.key.payer: one for one in centre.register.closings(*MARCH)}
    runs = {(one.key.payer, one.run) for one in newest.values()}
    found = {
        table: _texts(
            (row for row in centre.lake.rows(table).to_pylist() if (row["payer"], row["run"]) in runs), BY_NATURE[table]
        )
        for table in ("rated_lines", "certificates", "closings")
    }
    return found | {"documents": _texts(centre.documents(), BY_NATURE["document"])}


def posted(centre: Centre) -> Counter[tuple[str, str]]:
    """What was posted of each payer, without tax and the tax."""
    sums: Counter[tuple[str, str]] = Counter()
    for one in centre.register.documents():
        sums[one.key.payer, "net"] += one.net_minor
        sums[one.key.payer, "tax"] += one.tax_minor
    return sums


def owed(centre: Centre) -> Counter[tuple[str, str]]:
    """The same of what the newest closings say, which are final."""
    newest = {one.key.payer: one for one in centre.register.closings(*MARCH)}
    assert {one.outcome.value for one in newest.values()} == {"final"}
    sums: Counter[tuple[str, str]] = Counter()
    for payer, one in newest.items():
        sums[payer, "net"] += one.net_minor
        sums[payer, "tax"] += one.tax_minor
    return sums


def _texts(rows: Iterable[Mapping[str, Any]], without: Collection[str]) -> list[str]:
    kept = ({name: value for name, value in row.items() if name not in without} for row in rows)
    return sorted(json.dumps(row, sort_keys=True, default=_text) for row in kept)


def _text(value: Any) -> str | list[dict[str, Any]]:
    if isinstance(value, Annex):
        return [*value]
    assert isinstance(value, date | datetime | timedelta), value
    return str(value)


def _messages(batches: Sequence[ArrivedBatch], cluster: str) -> pa.RecordBatch:
    rows = [
        {
            "value": one.data,
            "properties": [("tenant", one.tenant), ("region", one.region)],
            "publish_time": one.received_at,
            "topic": f"{cluster}/{one.region}",
            "message_id": f"{cluster} {at}",
        }
        for at, one in enumerate(batches)
    ]
    return pa.RecordBatch.from_pylist(rows, schema=MESSAGES)
