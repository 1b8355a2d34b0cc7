"""What a job does around its computing: tables first, then Spark, a run, publishing, and Spark is stopped."""

import json
import shutil
import signal
import threading
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from cloud_jobs import jobs, proximity, usage
from cloud_jobs.config import CloudSettings, ReferenceSettings
from cloud_jobs.derived import outbox
from cloud_jobs.derived.incremental import ErasedSpans, commit_written, next_increment
from cloud_jobs.errors import CommitConflict, NotPublished, OtherRecords, StoreUnavailable
from cloud_jobs.geofence.job import GeofenceRun
from cloud_jobs.job_settings import UsageSettings
from cloud_jobs.lake.data_files import StoredFiles, read_stored
from cloud_jobs.lake.erasures import Erasure, Erasures
from cloud_jobs.lake.tables import Lake
from cloud_jobs.proximity.job import TABLE, ProximityRun
from cloud_jobs.reference.files import usable
from cloud_jobs.reference.tables import CollectionResult, in_force
from cloud_jobs.run_result import MAX_SHOWN, PeriodicTrigger, print_json, print_table, result_of, run_repeatedly
from cloud_jobs.usage.job import UsageRun
from geo.reference.messages import QuarantinedMessage
from tests.cloud_jobs.publications import publication_id, row_of
from tests.system.lake_of_fixes import NOON, LakeFix, derive, ingest, lake_of

CLUSTER = {"name": "hq", "service_url": "pulsar://hq:6650", "admin_url": "http://hq:8080"}
TIME = datetime(2026, 3, 1, tzinfo=UTC)
ROW = {
    "id": "i",
    "revision": 1,
    "tenant": "t",
    "device_a": "a",
    "device_b": "b",
    "min_m": 1.0,
    "retracted": False,
    "parts": "[]",
}
ROW |= dict.fromkeys(("start", "end", "min_at", "emitted_at"), TIME) | {"day": TIME.date()}


class Centre:
    """Spark and a topic that only note what they are asked for, and a proximity job that adds a row in each run."""

    def __init__(self, folder: Path) -> None:
        document = {"lake": folder / "lake", "checkpoints": folder / "notes", "clusters": [CLUSTER], "tenants": ["t"]}
        self.settings = CloudSettings.model_validate(document | {"proximity": {"interval_s": 0.1}})
        self.settings.tables.create()
        self.events: list[str] = []
        self.failures: list[Exception] = []
        self.last_run = self.touched = 1
        self.signal = signal.SIGTERM

    def start_spark(self, name: str, *_: object, **__: object) -> Any:
        assert self.settings.tables.open(TABLE).version() == 0, "the tables are there before Spark is"
        self.events.append(name)
        if self.signal == signal.SIGINT:
            # As Spark does: it takes SIGINT for itself, and raises.
            signal.signal(signal.SIGINT, self.interrupted)
        return SimpleNamespace(
            dataSource=SimpleNamespace(register=lambda _: None), stop=lambda: self.events.append("stopped")
        )

    def interrupted(self, *_: object) -> None:
        # Not KeyboardInterrupt as of Spark, which would end the tests.
        raise AssertionError("SIGINT reached Spark")

    def compute(self, *_: object) -> ProximityRun:
        self.events.append("run")
        if self.touched:
            derive(self.settings.tables, TABLE, [ROW] * self.touched)
        if self.events.count("run") == self.last_run:
            signal.raise_signal(self.signal)
        return ProximityRun(1, 0, self.touched, 0, self.touched)

    def topic_sender(self, _: object, topic: str, message: Any, __: object) -> Any:
        def send(rows: Iterator[dict[str, Any]]) -> None:
            messages = [message(row) for row in rows]
            if self.failures:
                raise self.failures.pop()
            self.events.append(f"{len(messages)} to {topic.rpartition('/')[2]}")

        return send


@pytest.fixture
def centre(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Centre]:
    made = Centre(tmp_path)
    monkeypatch.setattr(jobs, "start_spark", made.start_spark)
    monkeypatch.setattr(outbox, "topic_sender", made.topic_sender)
    monkeypatch.setattr(proximity.job, "compute_encounters", made.compute)
    kept = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    yield made
    assert kept == [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]


def test_a_single_run_computes_publishes_and_stops_spark(centre: Centre) -> None:
    centre.last_run = 0
    jobs.run_proximity(centre.settings)
    assert centre.events == ["waybill-proximity", "run", "1 to encounters", "stopped"]


def test_one_tenants_topic_that_fails_keeps_no_other_tenants_events_back(centre: Centre) -> None:
    centre.last_run = 0
    centre.settings = centre.settings.model_copy(update={"tenants": ("s", "t")})
    centre.failures = [NotPublished("persistent://s/events/encounters", "gone")]
    with pytest.raises(NotPublished, match="//s/"):
        jobs.run_proximity(centre.settings)
    assert centre.events == ["waybill-proximity", "run", "1 to encounters", "stopped"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
def test_following_goes_on_until_a_signal_and_ends_after_the_run(centre: Centre, number: signal.Signals) -> None:
    centre.last_run, centre.signal = 2, number
    jobs.run_proximity(centre.settings, follow=True)
    assert centre.events == ["waybill-proximity", *["run", "1 to encounters"] * 2, "stopped"]


def test_usage_follows_like_the_others_with_reference_data_in_each_run_and_outlives_a_silent_store(
    centre: Centre, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = centre.settings.model_copy(
        update={"usage": UsageSettings(interval_s=0.1), "reference": ReferenceSettings(unsigned=True)}
    )
    derive(settings.tables, "usage")
    answers = [StoreUnavailable("http://store", "no route"), None, None]
    results: list[dict[str, int]] = []

    def compute(*_: object) -> UsageRun:
        centre.compute()
        if failure := answers.pop(0):
            raise failure
        return UsageRun(1, 0, 0, centre.events.count("run") - 1, 0, 0, ())

    centre.last_run = 3
    monkeypatch.setattr(jobs, "collect", lambda *_: CollectionResult(0, 0, ()))
    monkeypatch.setattr(usage.job, "compute_usage", compute)
    with capture_logs() as lines:
        jobs.run_usage(settings, lambda result: results.append(result.counts), follow=True)
    events = [line["event"] for line in lines if line["event"] != "reference data taken"]
    assert events == ["started", "tried again", "computed", "computed", "stopped"]
    assert ([one["touched_hours"] for one in results], len(lines) - len(events)) == ([1, 2], 3)


def test_what_could_not_be_published_is_published_by_the_next_run(centre: Centre) -> None:
    centre.last_run = 2
    centre.failures = [NotPublished("encounters", "no cluster answers")]
    jobs.run_proximity(centre.settings, follow=True)
    assert centre.events == ["waybill-proximity", "run", "run", "2 to encounters", "stopped"]


class Pauses(threading.Event):
    """An event that takes no time to wait for, and is set after so many waits."""

    def __init__(self, last: int) -> None:
        super().__init__()
        self.waited: list[float | None] = []
        self._last = last

    def wait(self, timeout: float | None = None) -> bool:
        self.waited.append(timeout)
        if len(self.waited) == self._last:
            self.set()
        return self.is_set()


def _unexpected(error: Exception) -> None:
    raise AssertionError(error)


def test_it_runs_at_once_and_after_each_pause_until_stopped() -> None:
    stop, runs = Pauses(3), list[int]()
    run_repeatedly(lambda: runs.append(1), interval_s=5.0, on_error=_unexpected, stop=stop)
    assert (len(runs), stop.waited) == (3, [5.0, 5.0, 5.0])


def test_messages_that_no_cluster_took_and_a_silent_store_are_reported_and_the_next_run_comes_after_the_pause() -> None:
    stop, errors = Pauses(2), list[Exception]()
    given = [StoreUnavailable("http://store", "no route"), NotPublished("events", "no cluster answers")]
    left = [*given]

    def run() -> None:
        raise left.pop()

    run_repeatedly(run, interval_s=1.0, on_error=errors.append, stop=stop)
    assert errors == given[::-1]


def test_a_trigger_fires_at_first_and_then_once_in_an_interval() -> None:
    times = iter([100.0, 100.0, 159.9, 160.0, 219.9, 400.0])
    trigger = PeriodicTrigger(60.0, clock=lambda: next(times))
    assert [trigger.fire() for _ in range(6)] == [True, False, False, True, False, True]


REFUSED = in_force([row_of("fence", "flat [a]", {"type": "Feature"}, 7)], usable).refused
QUARANTINED = (QuarantinedMessage("persistent://fleet/reference/fences", "3:9:-1", "x@", "a version is a JSON object"),)


@pytest.mark.parametrize(
    ("job", "run"),
    [("usage", UsageRun(3, 1, 0, 2, 1, 0, REFUSED)), ("geofence", GeofenceRun(3, 1, 1, 2, 1, REFUSED))],
)
def test_refused_fences_are_counted_and_named_with_place_and_reason(
    job: str, run: UsageRun | GeofenceRun, capsys: pytest.CaptureFixture[str]
) -> None:
    result = result_of(job, run, CollectionResult(5, 1, QUARANTINED)).with_published(4)
    print_json(result)
    shown = json.loads(capsys.readouterr().out)
    assert (shown["job"], shown["ingest_number"], shown["published"]) == (job, 3, 4)
    assert (shown["fences_refused"], shown["messages_quarantined"]) == (1, 1)
    (refused,), (message,) = shown["refused_fences"], shown["quarantined_messages"]
    assert (refused["kind"], refused["id"], refused["place"]) == ("fence", "flat [a]", "topic 3:7:-1")
    assert (refused["publication_id"], bool(refused["reason"])) == (publication_id(7), True)
    assert message["reason"] == "a version is a JSON object"
    print_table(result)
    table = capsys.readouterr().out
    assert all(text in table for text in ("fences refused", "flat [a]", "topic 3:7:-1", "3:9:-1", "In quarantine"))


def test_a_table_is_bounded_and_json_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    many = CollectionResult(0, 0, QUARANTINED * (MAX_SHOWN + 5))
    print_table(result_of("usage", UsageRun(1, 0, 0, 0, 0, 0, ()), many))
    assert capsys.readouterr().out.count("3:9:-1") == MAX_SHOWN
    print_json(result_of("usage", UsageRun(1, 0, 0, 0, 0, 0, ()), many))
    assert len(json.loads(capsys.readouterr().out)["quarantined_messages"]) == MAX_SHOWN + 5


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return lake_of(tmp_path / "lake")


def fix(seq: int, days: int = 0) -> LakeFix:
    return LakeFix("d", seq, NOON + timedelta(days=days), 50.0, 8.0)


def behind(lake: Lake, table: str = "usage") -> tuple[int, int]:
    """What a table covers, and by how many commits of the ingest it is behind."""
    increment = next_increment(lake, table)
    return increment.since, increment.commits


def new_seqs(lake: Lake, table: str = "usage") -> list[int]:
    increment = next_increment(lake, table)
    wanted = {"ingest_number": (increment.since + 1, increment.until)}
    files = lake.files("records")
    found = [read_stored(files, "records", path, ["seq"], wanted) for path in increment.new_files.paths]
    return sorted(seq for rows in found for seq in rows["seq"].to_pylist())


def compact_and_vacuum(lake: Lake, table: str = "records") -> None:
    """What is left is one file a day and a log that begins with a checkpoint."""
    opened = lake.open(table)
    opened.optimize.compact()
    opened.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
    opened.create_checkpoint()
    for commit in sorted((Path(lake.path(table)) / "_delta_log").glob("*.json"))[:-1]:
        commit.unlink()


def test_the_first_run_covers_everything_and_one_without_new_records_nothing(lake: Lake) -> None:
    ingest(lake, [fix(1), fix(2)])
    assert (behind(lake), bool(next_increment(lake, "usage"))) == ((0, 1), True)
    derive(lake, "usage")
    assert (behind(lake), bool(next_increment(lake, "usage"))) == ((1, 0), False)


def test_a_run_that_lags_behind_compaction_and_vacuum_goes_on(lake: Lake) -> None:
    ingest(lake, [fix(1), fix(2, 1)])
    derive(lake, "usage")
    for seq in range(3, 7):
        ingest(lake, [fix(seq, seq % 2)])
    derive(lake, "encounters")
    compact_and_vacuum(lake)
    compact_and_vacuum(lake, "usage")
    assert (behind(lake), new_seqs(lake)) == ((1, 4), [3, 4, 5, 6])
    assert behind(lake, "encounters") == (5, 0)


@pytest.mark.parametrize("commits", [0, 1])
def test_a_table_that_covers_more_than_the_records_or_others_is_refused(lake: Lake, commits: int) -> None:
    ingest(lake, [fix(1)])
    folder = Path(str(lake.location))
    kept = {name: shutil.copytree(folder / name, folder.parent / name) for name in ("records", "coverage")}
    ingest(lake, [fix(2)])
    derive(lake, "usage")
    for name, copy in kept.items():
        shutil.rmtree(folder / name)
        shutil.copytree(copy, folder / name)
    # what was ingested since then comes again, under numbers that the table has covered
    for at in range(commits):
        ingest(lake, [fix(5 + at)])
    with pytest.raises(OtherRecords, match="covers ingest number 2, but the records end at"):
        next_increment(lake, "usage")
    shutil.rmtree(folder / "usage")
    lake.create()
    assert new_seqs(lake) == [1, *range(5, 5 + commits)]


def test_a_commit_of_another_run_while_the_increment_is_made_is_a_conflict(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    ingest(lake, [fix(1)])
    real = StoredFiles.of

    def another_first(*opened: object) -> object:
        monkeypatch.undo()
        derive(lake, "usage")
        return real(*opened)  # type: ignore[arg-type]

    monkeypatch.setattr(StoredFiles, "of", another_first)
    with pytest.raises(CommitConflict):
        commit_written(next_increment(lake, "usage"), [])


DAY_MS, HOUR_MS = 86_400_000, 3_600_000
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
BEFORE = EPOCH + timedelta(days=10, hours=6)
ONE_DEVICE = ErasedSpans(Erasures([Erasure("acme", "d", BEFORE)]), DAY_MS, 12 * HOUR_MS)


def batch(*rows: tuple[str, str, object], name: str) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([dict(zip(("tenant", "device", name), row, strict=True)) for row in rows])


@given(st.integers(0, 30 * DAY_MS), st.sampled_from([HOUR_MS, DAY_MS]), st.integers(0, 2 * DAY_MS))
def test_a_span_is_computable_if_nothing_that_has_a_say_in_it_is_erased(
    before_ms: int, span_ms: int, margin_ms: int
) -> None:
    erasures = Erasures([Erasure(None, None, EPOCH + timedelta(milliseconds=before_ms))])
    first = ErasedSpans(erasures, span_ms, margin_ms).first_computable("acme", "d")
    assert first * span_ms - margin_ms >= before_ms
    assert (first - 1) * span_ms - margin_ms < before_ms


def test_days_of_an_erased_device_are_left_out_and_those_of_others_are_not() -> None:
    days = [("acme", "d", date(1970, 1, 11)), ("acme", "d", date(1970, 1, 12)), ("acme", "d", date(1970, 1, 2))]
    others = [("acme", "e", date(1970, 1, 2)), ("other", "d", date(1970, 1, 2))]
    (kept,) = ONE_DEVICE.keep_computable([batch(*days, *others, name="day")], "day")
    assert [tuple(row.values()) for row in kept.to_pylist()] == [days[1], *others]
    # the evening of the day before has a say in the eleventh of January, and is erased in part
    assert ONE_DEVICE.first_computable("acme", "d") == 11
