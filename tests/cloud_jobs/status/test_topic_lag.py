"""What waits in Pulsar, and that no answer is never taken for nothing that waits."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from cloud_jobs.config import CloudSettings
from cloud_jobs.status.centre_reader import topic_lags
from cloud_jobs.status.facts import CentreStatus, problems
from tests.cloud_jobs.pulsar_source.addresses import FakeAdmin, Reply, address, document
from tests.cloud_jobs.status.watched import LIMITS

NOW = datetime(2026, 1, 5, 12, tzinfo=UTC)
NOON_MS = 1_767_614_400_000
TOPIC = "persistent://fleet/telemetry-eu/batches"


@pytest.fixture
def hq() -> Iterator[FakeAdmin]:
    with address() as one:
        yield one


def settings(folder: Path, *admin_urls: str) -> CloudSettings:
    clusters = [
        {"name": f"c{at}", "service_url": "pulsar://127.0.0.1:1", "admin_url": url} for at, url in enumerate(admin_urls)
    ]
    found = {"lake": folder, "checkpoints": folder, "clusters": clusters, "ingest": {"topics": [TOPIC]}}
    return CloudSettings.model_validate(found)


def says(backlogs: list[int | None], waits_s: float = 0) -> Any:
    """A topic of so many partitions; None: that one has no such subscription."""

    def reply(path: str) -> Reply:
        if path.endswith("/partitions"):
            return document({"partitions": len(backlogs)})
        backlog = backlogs[int(path.partition("-partition-")[2][0])]
        ingest = {"msgBacklog": backlog, "earliestMsgPublishTimeInBacklog": NOON_MS - int(waits_s * 1000)}
        return document({"subscriptions": {} if backlog is None else {"ingest": ingest}, "replication": {}})

    return reply


def wrong(lags: Any) -> list[str]:
    return [one for one in problems(CentreStatus(NOW, lag=lags), LIMITS) if "ingest" in one]


def test_each_partition_has_its_backlog_and_the_age_of_its_oldest_message(hq: FakeAdmin, tmp_path: Path) -> None:
    hq.says = says([0, 7], 90)
    lags = topic_lags(settings(tmp_path, hq.url))
    assert [(one.topic[-1], one.backlog, one.oldest) for one in lags] == [
        ("0", 0, None),
        ("1", 7, NOW.replace(hour=11, minute=58, second=30)),
    ]
    assert wrong(lags) == []


def test_messages_that_wait_too_long_are_said(hq: FakeAdmin, tmp_path: Path) -> None:
    hq.says = says([7], 301)
    assert wrong(topic_lags(settings(tmp_path, hq.url))) == [
        f"7 messages of {TOPIC}-partition-0 wait for the ingest, the oldest for 301 s, more than 300 s"
    ]


def test_the_cluster_is_asked_that_the_ingest_reads(hq: FakeAdmin, tmp_path: Path) -> None:
    hq.says = says([0])
    two = settings(tmp_path, "http://127.0.0.1:1", hq.url)
    assert topic_lags(two)[0].backlog is None, "without a note the first one is asked"
    (tmp_path / "reading-from").write_text(json.dumps({"active": "c1"}))
    assert (topic_lags(two)[0].cluster, topic_lags(two)[0].backlog) == ("c1", 0)
