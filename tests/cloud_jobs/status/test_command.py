"""`cloud-jobs status` as a command: what it prints, and how it ends."""

import json
import math
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from cloud_jobs.__main__ import app
from cloud_jobs.config import CloudSettings
from cloud_jobs.derived.outbox import Outbox, progress_file
from cloud_jobs.errors import StoreUnavailable
from cloud_jobs.lake.transactions import newest_number
from cloud_jobs.pulsar_source.cluster_monitor import LeftOutNote
from cloud_jobs.status.centre_metrics import FACTS, CentreCollector
from cloud_jobs.status.centre_reader import provisional_alerts, topic_lags
from cloud_jobs.status.facts import CentreStatus, ProvisionalStatus, problems
from deploy.local.ports import free_port
from tests.cloud_jobs.geofence.centre import GeofenceCentre, rules
from tests.cloud_jobs.geofence.test_event_revisions import THROUGH
from tests.cloud_jobs.ingest.centre import batch, new_ingest, take_in
from tests.cloud_jobs.pulsar_source.addresses import FakeAdmin, Reply, address, document, page
from tests.cloud_jobs.status.watched import LIMITS, looked, note_maintenance
from tests.cloud_jobs.verdicts.centre import VerdictCentre, alert_of
from tests.new_lakes import new_lake
from tests.waiting import wait_until

NOW = datetime(2026, 1, 5, 12, tzinfo=UTC)
NOON_MS = 1_767_614_400_000
TOPIC = "persistent://fleet/telemetry-eu/batches"


@pytest.fixture
def hq_of_topic_lag() -> Iterator[FakeAdmin]:
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


def test_each_partition_has_its_backlog_and_the_age_of_its_oldest_message(
    hq_of_topic_lag: FakeAdmin, tmp_path: Path
) -> None:
    hq_of_topic_lag.says = says([0, 7], 90)
    lags = topic_lags(settings(tmp_path, hq_of_topic_lag.url))
    assert [(one.topic[-1], one.backlog, one.oldest) for one in lags] == [
        ("0", 0, None),
        ("1", 7, NOW.replace(hour=11, minute=58, second=30)),
    ]
    assert wrong(lags) == []


def test_messages_that_wait_too_long_are_said(hq_of_topic_lag: FakeAdmin, tmp_path: Path) -> None:
    hq_of_topic_lag.says = says([7], 301)
    assert wrong(topic_lags(settings(tmp_path, hq_of_topic_lag.url))) == [
        f"7 messages of {TOPIC}-partition-0 wait for the ingest, the oldest for 301 s, more than 300 s"
    ]


def test_a_cluster_that_does_not_replicate_to_this_one_is_said_although_nothing_waits(
    hq_of_topic_lag: FakeAdmin, tmp_path: Path
) -> None:
    waited = list[float]()
    link = {"connected": True, "replicationBacklog": 0, "replicationDelayInSeconds": 0}
    joined = {"eu": link, "dr": link | {"inboundConnection": "/127.0.0.1:1"}}
    empty = {"ingest": {"msgBacklog": 0, "earliestMsgPublishTimeInBacklog": 0}}

    def reply(path: str) -> Reply:
        stats = {"subscriptions": empty, "replication": joined}
        return document({"partitions": 2} if path.endswith("/partitions") else stats)

    hq_of_topic_lag.says = reply
    lags = topic_lags(settings(tmp_path, hq_of_topic_lag.url), waited.append)
    found = problems(CentreStatus(NOW, lag=lags), LIMITS)
    assert [one.partition(", so")[0] for one in found if "connected" in one] == ["cluster eu is not connected to c0"]
    assert len(waited) == 1, "a connection that is opened again at once is no problem"


def test_the_cluster_is_asked_that_the_ingest_reads(hq_of_topic_lag: FakeAdmin, tmp_path: Path) -> None:
    hq_of_topic_lag.says = says([0])
    two = settings(tmp_path, "http://127.0.0.1:1", hq_of_topic_lag.url)
    assert topic_lags(two)[0].backlog is None, "without a note the first one is asked"
    (tmp_path / "reading-from").write_text(json.dumps({"active": "c1"}))
    assert (topic_lags(two)[0].cluster, topic_lags(two)[0].backlog) == ("c1", 0)


@pytest.fixture
def hq() -> Iterator[FakeAdmin]:
    with address() as one:
        one.says = says([0])
        yield one


def status(folder: Path, hq: FakeAdmin, *options: str, lake: str = "lake", more: str = "") -> Result:
    config = folder / "cloud.toml"
    config.write_text(
        f'lake = "{lake}"\ncheckpoints = "checkpoints"\n{more}\n'
        f'[[clusters]]\nname = "hq"\nservice_url = "pulsar://127.0.0.1:1"\nadmin_url = "{hq.url}"\n',
        encoding="utf-8",
    )
    return CliRunner().invoke(app, ["status", "-c", str(config), *options])


def test_it_ends_with_0_while_all_is_well_and_with_1_when_something_is_not(tmp_path: Path, hq: FakeAdmin) -> None:
    lake = new_lake(tmp_path / "lake")
    take_in(lake, new_ingest(lake), [batch(1, 2)])
    note_maintenance(lake)
    shown = status(tmp_path, hq)
    assert (shown.exit_code, shown.stdout.splitlines()[-1]) == (0, "healthy")
    hq.says = says([None])
    shown = status(tmp_path, hq)
    assert (shown.exit_code, "not healthy:" in shown.stdout) == (1, True)


def test_the_json_has_all_of_it_on_one_line(tmp_path: Path, hq: FakeAdmin) -> None:
    lake = new_lake(tmp_path / "lake")
    take_in(lake, new_ingest(lake), [batch(1, 2)])
    shown = status(tmp_path, hq, "--json")
    (line,) = shown.stdout.splitlines()
    found = json.loads(line)
    # a young lake needs no maintenance yet
    assert (found["healthy"], found["problems"], found["maintenance"]["ended_at"]) == (True, [], None)
    assert (found["tables"][0]["table"], found["tables"][0]["rows"]) == ("records", 2)
    assert found["derived"][0]["waiting_since"] == found["tables"][0]["committed_at"]
    assert found["newest_batch"]["accepted"] == 2


def test_a_lake_that_is_not_there_is_1_one_that_does_not_answer_is_75_and_wrong_settings_are_78(
    tmp_path: Path, hq: FakeAdmin, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert status(tmp_path, hq).exit_code == 1
    assert status(tmp_path, hq, lake="s3:/wrong").exit_code == 78

    def away(*_: object) -> None:
        raise StoreUnavailable("http://127.0.0.1:1", "Connection refused")

    monkeypatch.setattr("cloud_jobs.lake.tables.Lake.check", away)
    shown = status(tmp_path, hq)
    assert (shown.exit_code, "does not answer" in shown.stderr) == (75, True)


def test_a_topic_that_the_ingest_reads_without_is_named_and_after_a_while_not_healthy(
    tmp_path: Path, hq: FakeAdmin
) -> None:
    lake = new_lake(tmp_path / "lake")
    take_in(lake, new_ingest(lake), [batch(1, 2)])
    note_maintenance(lake)
    now = datetime.now(UTC)
    note = LeftOutNote(tmp_path / "checkpoints" / "left-out-topics.json", lambda: now)
    note.keep("hq", {"persistent://zeta/t/batches": "403"})
    shown = status(tmp_path, hq)
    assert (shown.exit_code, "not read" in shown.stdout, "zeta/t/batches" in shown.stdout) == (0, True, True)
    late = status(tmp_path, hq, more="[status]\nmax_lag_s = 0.001")
    assert (late.exit_code, "the ingest does not read persistent://zeta" in late.stdout) == (1, True)
    (found,) = json.loads(status(tmp_path, hq, "--json").stdout)["left_out"]
    assert (found["topic"], found["reason"]) == ("persistent://zeta/t/batches", "403")
    note.keep("hq", {})
    assert "not read" not in status(tmp_path, hq).stdout
    (tmp_path / "checkpoints" / "left-out-topics.json").write_text("{}")
    assert status(tmp_path, hq).exit_code == 1


def shown(found: CentreStatus, *wrong: str) -> dict[tuple[str, ...], float]:
    collector = CentreCollector(60)
    collector.looked(found, wrong)
    return {
        (sample.name, *sample.labels.values()): sample.value
        for metric in collector.collect()
        for sample in metric.samples
    }


def test_the_metrics_of_a_real_lake_are_its_facts(tmp_path: Path) -> None:
    lake = new_lake(tmp_path)
    take_in(lake, new_ingest(lake), [batch(1, 2)])
    take_in(lake, new_ingest(lake), [batch(4, 5)])
    note_maintenance(lake)
    found = looked(lake)
    samples = shown(found, *problems(found, LIMITS))
    assert samples[("waybill_centre_table_rows", "records")] == 4
    assert samples[("waybill_centre_table_files", "records")] == 2
    assert samples[("waybill_centre_ingest_commits",)] == 2
    assert samples[("waybill_centre_lag_commits", "usage")] == 2
    assert samples[("waybill_centre_lag_records", "usage")] == 4
    assert samples[("waybill_centre_lag_seconds", "usage")] == found.age_s(found.derived[0].waiting_since)
    assert samples[("waybill_centre_table_computed", "usage")] == 0
    assert samples[("waybill_centre_missing_records",)] == 1
    assert samples[("waybill_centre_open_streams",)] == 1
    assert samples[("waybill_centre_maintenance_errors",)] == 0
    assert samples[("waybill_centre_problems",)] == len(problems(found, LIMITS))
    assert {name for name, *_ in samples} - {*FACTS} == {
        "waybill_centre_healthy",
        "waybill_centre_problems",
        "waybill_centre_look_timestamp_seconds",
        "waybill_centre_looks_failed_total",
    }


def test_a_look_that_failed_leaves_nothing_of_the_lake_and_an_old_one_is_not_healthy(tmp_path: Path) -> None:
    time_s = 0.0
    collector = CentreCollector(60, clock=lambda: time_s)
    registry = collector.registry()
    value = registry.get_sample_value
    assert (value("waybill_centre_healthy"), collector.health()["healthy"]) == (None, None)
    collector.looked(looked(new_lake(tmp_path)), ())
    assert (value("waybill_centre_healthy"), value("waybill_centre_streams")) == (1, 0)
    time_s = 61.0
    assert (value("waybill_centre_healthy"), value("waybill_centre_problems")) == (0, 1)
    assert collector.health()["problems"] == ["the centre was last looked at 61 s ago"]
    collector.failed("the object store does not answer")
    assert (value("waybill_centre_healthy"), value("waybill_centre_streams")) == (0, None)
    assert value("waybill_centre_looks_failed_total") == 1


def test_the_command_serves_until_a_signal(tmp_path: Path, hq: FakeAdmin) -> None:
    lake, port = new_lake(tmp_path / "lake"), free_port()
    take_in(lake, new_ingest(lake), [batch(1, 2)])
    note_maintenance(lake)
    status(tmp_path, hq, more=f"[metrics]\nstatus_port = {port}\n")
    command = [sys.executable, "-m", "cloud_jobs", "status", "-c", str(tmp_path / "cloud.toml"), "--serve"]
    with subprocess.Popen(command) as process:
        try:
            wait_until(lambda: b"waybill_centre_healthy 1.0" in metrics(port), timeout_s=60)
            text = metrics(port).decode()
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0
        finally:
            process.kill()
    assert 'waybill_centre_table_rows{table="records"} 2.0' in text


def metrics(port: int) -> bytes:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            found: bytes = answer.read()
            return found
    except OSError:
        return b""


PUBLISHED_MS = 1_728_046_000_000
PUBLISHED = datetime.fromtimestamp(PUBLISHED_MS / 1000, UTC)
BOUND_S = 600.0
OLDEST = ("waybill_centre_oldest_provisional_seconds",)


@pytest.fixture
def hq_of_provisional() -> Iterator[FakeAdmin]:
    with address() as one:
        one.says = waits(0)
        yield one


@pytest.fixture
def centre(tmp_path: Path) -> VerdictCentre:
    return VerdictCentre(tmp_path / "lake", rules(dwell_s=None))


def waits(backlog: int | None) -> Any:
    """A topic of alerts of which so many wait; None: nobody subscribed there."""

    def reply(path: str) -> Reply:
        if path.endswith("/partitions"):
            return document({"partitions": 0})
        mine = {"msgBacklog": backlog, "earliestMsgPublishTimeInBacklog": PUBLISHED_MS}
        return document({"subscriptions": {} if backlog is None else {"verdicts": mine}, "replication": {}})

    return reply


def settings_of_provisional(centre: VerdictCentre, *admin_urls: str) -> CloudSettings:
    clusters = [
        {"name": f"c{at}", "service_url": "pulsar://127.0.0.1:1", "admin_url": url} for at, url in enumerate(admin_urls)
    ]
    alerts = {"alerts": ["persistent://acme/alerts-eu/alerts"], "max_provisional_s": BOUND_S}
    places = {"lake": centre.folder, "checkpoints": centre.folder.parent / "checkpoints"}
    return CloudSettings.model_validate({**places, "clusters": clusters, "verdicts": alerts})


def found(centre: VerdictCentre, *clusters: FakeAdmin) -> ProvisionalStatus:
    return provisional_alerts(settings_of_provisional(centre, *(one.url for one in clusters)))


def alerts() -> list[Any]:
    region = GeofenceCentre(rules(dwell_s=None))
    region.take(THROUGH)
    return [alert_of(row) for row in region.table]


def decide(centre: VerdictCentre, hq: FakeAdmin) -> None:
    """What the job does: decides, and publishes."""
    centre.decide()
    note = progress_file(settings_of_provisional(centre, hq.url).checkpoints, "verdicts")
    Outbox(centre.lake, "verdicts", note).flush(lambda rows: [*rows].clear())


def test_where_no_alert_ever_came_nothing_is_asked_and_how_long_one_waits_is_unknown(
    centre: VerdictCentre, hq_of_provisional: FakeAdmin
) -> None:
    hq_of_provisional.says = lambda _: page(503)
    none = found(centre, hq_of_provisional)
    assert none == ProvisionalStatus(BOUND_S, was_collected=False)
    samples = shown(CentreStatus(centre.now, provisional=none))
    assert math.isnan(samples[OLDEST])
    assert samples[("waybill_centre_max_provisional_seconds",)] == BOUND_S
    assert not any("verdict" in one for one in problems(CentreStatus(centre.now, provisional=none), LIMITS))
    assert math.isnan(shown(CentreStatus(centre.now))[OLDEST])


def test_an_alert_waits_in_the_topic_in_the_table_and_until_its_verdict_is_published(
    centre: VerdictCentre, hq_of_provisional: FakeAdmin
) -> None:
    first, *others = alerts()
    centre.collect(first)
    collected_at = centre.now
    assert found(centre, hq_of_provisional) == ProvisionalStatus(BOUND_S, collected_at)
    # the job stands still, and another alert waits longer in its topic
    hq_of_provisional.says = waits(2)
    assert found(centre, hq_of_provisional) == ProvisionalStatus(BOUND_S, min(PUBLISHED, collected_at))
    hq_of_provisional.says = waits(0)
    centre.collect(*others)
    centre.ingest(THROUGH)
    centre.compute_events()
    decide(centre, hq_of_provisional)
    assert found(centre, hq_of_provisional) == ProvisionalStatus(BOUND_S)
    late = [fix._replace(device="e") for fix in THROUGH]
    centre.ingest(late)
    centre.compute_events()
    assert newest_number(centre.lake.open("verdicts"), "verdicts") is not None
    centre.decide()
    assert found(centre, hq_of_provisional) == ProvisionalStatus(BOUND_S, centre.now), "decided, and not published"


@pytest.mark.parametrize("waiting", [0, 3])
def test_what_a_cluster_has_that_does_not_answer_is_unknown_whatever_another_one_says(
    centre: VerdictCentre, hq_of_provisional: FakeAdmin, waiting: int
) -> None:
    centre.collect(*alerts())
    centre.ingest(THROUGH)
    centre.compute_events()
    decide(centre, hq_of_provisional)
    with address() as dr:
        dr.says = waits(waiting)
        for silent in (lambda _: page(503), lambda path: waits(0)(path) if path.endswith("/partitions") else page(503)):
            hq_of_provisional.says = silent
            unknown = found(centre, dr, hq_of_provisional)
            assert "alerts-eu/alerts is unknown: c1: " in unknown.error
            assert math.isnan(shown(CentreStatus(centre.now, provisional=unknown))[OLDEST])
        hq_of_provisional.says = lambda _: document({"reason": "Topic not found"}, 404)
        oldest = PUBLISHED if waiting else None
        assert found(centre, dr, hq_of_provisional) == ProvisionalStatus(BOUND_S, oldest), (
            "a cluster without the topic has none"
        )
