"""An alert that waits too long is said by who reads the tables and topics, although nobody gives verdicts any more."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from cloud_jobs.config import CloudSettings
from cloud_jobs.lake.transactions import newest_number
from cloud_jobs.outbox import Outbox, progress_file
from cloud_jobs.status.facts import CentreStatus, ProvisionalStatus
from cloud_jobs.status.judging import problems
from cloud_jobs.status.provisional import provisional_alerts
from tests.cloud_jobs.geofence.centre import GeofenceCentre, rules
from tests.cloud_jobs.geofence.test_event_revisions import THROUGH
from tests.cloud_jobs.pulsar_source.addresses import FakeAdmin, Reply, address, document, page
from tests.cloud_jobs.status.test_centre_metrics import shown
from tests.cloud_jobs.status.watched import LIMITS
from tests.cloud_jobs.verdicts.centre import VerdictCentre, alert_of

PUBLISHED_MS = 1_728_046_000_000
PUBLISHED = datetime.fromtimestamp(PUBLISHED_MS / 1000, UTC)
BOUND_S = 600.0


@pytest.fixture
def hq() -> Iterator[FakeAdmin]:
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


def settings(centre: VerdictCentre, *admin_urls: str) -> CloudSettings:
    clusters = [
        {"name": f"c{at}", "service_url": "pulsar://127.0.0.1:1", "admin_url": url} for at, url in enumerate(admin_urls)
    ]
    alerts = {"alerts": ["persistent://acme/alerts-eu/alerts"], "max_provisional_s": BOUND_S}
    places = {"lake": centre.folder, "checkpoints": centre.folder.parent / "checkpoints"}
    return CloudSettings.model_validate({**places, "clusters": clusters, "verdicts": alerts})


def found(centre: VerdictCentre, *clusters: FakeAdmin) -> ProvisionalStatus | None:
    return provisional_alerts(settings(centre, *(one.url for one in clusters)))


def alerts() -> list[Any]:
    region = GeofenceCentre(rules(dwell_s=None))
    region.take(THROUGH)
    return [alert_of(row) for row in region.table]


def decide(centre: VerdictCentre, hq: FakeAdmin) -> None:
    """What the job does: decides, and publishes."""
    centre.decide()
    note = progress_file(settings(centre, hq.url).checkpoints, "verdicts")
    Outbox(centre.lake, "verdicts", note).flush(lambda rows: [*rows].clear())


def test_where_no_alert_ever_came_nothing_is_asked(centre: VerdictCentre, hq: FakeAdmin) -> None:
    hq.says = lambda _: page(503)
    assert found(centre, hq) is None


def test_an_alert_waits_in_the_topic_in_the_table_and_until_its_verdict_is_published(
    centre: VerdictCentre, hq: FakeAdmin
) -> None:
    first, *others = alerts()
    centre.collect(first)
    collected_at = centre.now
    assert found(centre, hq) == ProvisionalStatus(BOUND_S, collected_at)
    # the job stands still, and another alert waits longer in its topic
    hq.says = waits(2)
    assert found(centre, hq) == ProvisionalStatus(BOUND_S, min(PUBLISHED, collected_at))
    hq.says = waits(0)
    centre.collect(*others)
    centre.ingest(THROUGH)
    centre.compute_events()
    decide(centre, hq)
    assert found(centre, hq) == ProvisionalStatus(BOUND_S)
    late = [fix._replace(device="e") for fix in THROUGH]
    centre.ingest(late)
    centre.compute_events()
    assert newest_number(centre.lake.open("verdicts"), "verdicts") is not None
    centre.decide()
    assert found(centre, hq) == ProvisionalStatus(BOUND_S, centre.now), "decided, and not published"


def test_what_one_cluster_has_acknowledged_waits_in_none(centre: VerdictCentre, hq: FakeAdmin) -> None:
    centre.collect(*alerts())
    centre.ingest(THROUGH)
    centre.compute_events()
    decide(centre, hq)
    with address() as dr:
        dr.says = waits(5)
        assert found(centre, dr, hq) == ProvisionalStatus(BOUND_S)
        hq.says = waits(None)
        assert found(centre, dr, hq) == ProvisionalStatus(BOUND_S, PUBLISHED)


def test_who_gets_no_answer_does_not_say_that_each_alert_has_its_verdict(centre: VerdictCentre, hq: FakeAdmin) -> None:
    centre.collect(*alerts())
    hq.says = waits(None)
    silent = found(centre, hq)
    assert silent is not None
    assert "what waits in persistent://acme/alerts-eu/alerts is unknown" in silent.error
    status = CentreStatus(centre.now, provisional=silent)
    assert any(one.startswith("it is unknown whether each alert has its verdict") for one in problems(status, LIMITS))
    assert ("waybill_centre_oldest_provisional_seconds",) not in shown(status)


@pytest.mark.parametrize(("age_s", "is_said"), [(BOUND_S + 59, False), (BOUND_S + 61, True)])
def test_the_bound_is_said_and_what_waits_longer_is_a_problem(age_s: float, *, is_said: bool) -> None:
    since = ProvisionalStatus(BOUND_S, PUBLISHED)
    status = CentreStatus(PUBLISHED + timedelta(seconds=age_s), provisional=since)
    assert any("an alert waits for its verdict" in one for one in problems(status, LIMITS)) == is_said
    samples = shown(status)
    assert samples[("waybill_centre_oldest_provisional_seconds",)] == age_s
    assert samples[("waybill_centre_max_provisional_seconds",)] == BOUND_S
    assert (
        shown(replace(status, provisional=ProvisionalStatus(BOUND_S)))[("waybill_centre_oldest_provisional_seconds",)]
        == 0
    )
