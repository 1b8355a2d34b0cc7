"""What a job does around its computing: tables first, then Spark, a run, publishing, and Spark is stopped."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from cloud_jobs import jobs, proximity, usage
from cloud_jobs.config import CloudSettings, ReferenceSettings
from cloud_jobs.derived import outbox
from cloud_jobs.errors import NotPublished, StoreUnavailable
from cloud_jobs.job_settings import UsageSettings
from cloud_jobs.proximity.job import TABLE, ProximityRun
from cloud_jobs.reference.tables import CollectionResult
from cloud_jobs.usage.job import UsageRun
from tests.system.lake_of_fixes import derive

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

    def start_spark(self, name: str, *_: object) -> Any:
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
        return ProximityRun(1, 0, 0, self.touched, 0, self.touched, 0)

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
        return UsageRun(1, 0, 0, 0, centre.events.count("run") - 1, 0, 0, 0, ())

    centre.last_run = 3
    monkeypatch.setattr(jobs, "collect", lambda *_: CollectionResult(0, 0, ()))
    monkeypatch.setattr(usage.job, "compute_usage", compute)
    with capture_logs() as lines:
        jobs.run_usage(settings, lambda result: results.append(result.counts), follow=True)
    events = [line["event"] for line in lines if line["event"] != "reference data taken"]
    assert events == ["started", "store does not answer", "computed", "computed", "stopped"]
    assert ([one["touched_hours"] for one in results], len(lines) - len(events)) == ([1, 2], 3)


def test_what_could_not_be_published_is_published_by_the_next_run(centre: Centre) -> None:
    centre.last_run = 2
    centre.failures = [NotPublished("encounters", "no cluster answers")]
    jobs.run_proximity(centre.settings, follow=True)
    assert centre.events == ["waybill-proximity", "run", "run", "2 to encounters", "stopped"]
