"""A centre without Spark that takes records in, computes events, collects alerts and gives verdicts, in any order."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa

from cloud_jobs.geofence.event_revisions import EventRules
from cloud_jobs.job_settings import VerdictSettings
from cloud_jobs.lake.data_files import write_data_files
from cloud_jobs.lake.schemas import TABLES
from cloud_jobs.lake.snapshots import COVERED_COMMIT
from cloud_jobs.lake.tables import COVERS, Lake
from cloud_jobs.lake.transactions import commit_files, counter_of, newest_number, next_number
from cloud_jobs.verdicts.deciding import OpenAlerts
from cloud_jobs.verdicts.job import VerdictRun, give_verdicts
from cloud_jobs.verdicts.subscription import CollectedAlerts, TopicAlert, collect_alerts
from geo.alerts import Alert, encode_alert
from tests.cloud_jobs.geofence.centre import GeofenceCentre, GeofenceFix, latest
from tests.cloud_jobs.ingest.centre import new_ingest, take_in
from tests.new_lakes import new_lake
from waybill.record import Batch, Position, Record, Tombstone, encode

TOPIC = "persistent://acme/alerts-eu/alerts"
BEGAN = datetime(2024, 10, 4, 13, tzinfo=UTC)
MAX_AGE = timedelta(days=400)
_EVENTS = "geofence_events"


@dataclass
class VerdictCentre:
    """`now` moves on by a second with each step."""

    folder: Path
    rules: EventRules
    settings: VerdictSettings = field(default_factory=VerdictSettings)
    now: datetime = BEGAN
    left: OpenAlerts | None = None

    def __post_init__(self) -> None:
        self.lake: Lake = new_lake(self.folder)
        self._ingest = new_ingest(self.lake)
        self.geofence = GeofenceCentre(self.rules)
        self._ingested: set[GeofenceFix] = set()

    def lose(self, first: int, last: int, device: str = "d") -> None:
        batch = Batch(device, 7, last + 1, (), (Tombstone(first, last, "evicted"),))
        take_in(self.lake, self._ingest, [("acme", encode(batch))])

    def ingest(self, fixes: Iterable[GeofenceFix]) -> None:
        fixes = list(fixes)
        self._ingested |= set(fixes)
        take_in(self.lake, self._ingest, [_batch(fix) for fix in fixes])

    def compute_events(self) -> None:
        """What `cloud-jobs geofence` does: the events of what was taken in, in one commit with what it covers."""
        opened = self.lake.open(_EVENTS)
        previous = newest_number(opened, _EVENTS)
        news = self.geofence.take(self._ingested)
        number, ingest = next_number(previous), self.lake.ingest_commit()
        rows = [row | {"emitted_at": self.now, "commit_number": counter_of(number)} for row in news]
        made = pa.Table.from_pylist(rows, schema=TABLES[_EVENTS].schema)
        files = write_data_files(self.lake.files(_EVENTS), made, datetime.now(UTC), table=_EVENTS)
        states = {COVERS: counter_of(ingest), **({} if ingest is None else {COVERED_COMMIT: ingest})}
        commit_files(opened, _EVENTS, files, writer=_EVENTS, previous=previous, number=number, states=states)

    def collect(self, *alerts: Alert) -> CollectedAlerts:
        self._tick()
        messages = [TopicAlert(TOPIC, "acme", encode_alert(alert)) for alert in alerts]
        return collect_alerts(self.lake, messages, self.now, MAX_AGE)

    def decide(self) -> VerdictRun:
        self._tick()
        run, self.left = give_verdicts(self.lake, self.settings, self.now, self.left)
        return run

    def in_force(self) -> dict[str, dict[str, Any]]:
        rows = self.lake.rows("verdicts").to_pylist()
        keys = [(row["id"], row["revision"]) for row in rows]
        assert len(set(keys)) == len(keys), "a revision is there twice"
        return {row["id"]: row for row in latest(rows)}

    def final(self) -> set[str]:
        return {row["id"] for row in latest(self.geofence.table) if not row["retracted"]}

    def _tick(self) -> None:
        self.now += timedelta(seconds=1)


def alert_of(row: dict[str, Any], **changes: Any) -> Alert:
    """The alert of a region that saw the event of a row of the geofence centre, by no later fix than the one named."""
    t_ms = row["time"] // 1000
    content = {name: row[name] for name in ("id", "tenant", "device", "epoch", "seq", "kind", "place", "value")}
    times = {"t_ms": t_ms, "received_ms": t_ms + 200, "raised_ms": t_ms + 300}
    times["seen_until"] = ((row["epoch"], row["seq"]),)
    return Alert(**(content | times | {"region": "eu"} | changes))


def _batch(fix: GeofenceFix) -> tuple[str, bytes]:
    record = Record(fix.seq, fix.t_ms * 1000, Position(latitude=fix.latitude, longitude=fix.longitude))
    return fix.tenant, encode(Batch(fix.device, 7, fix.seq, (record,), ()))
