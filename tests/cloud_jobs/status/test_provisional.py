"""An alert that waits too long is said by who reads the tables and topics, although nobody gives verdicts any more."""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from cloud_jobs.config import CloudSettings
from cloud_jobs.derived.outbox import Outbox, progress_file
from cloud_jobs.lake.transactions import newest_number
from cloud_jobs.status.centre_reader import provisional_alerts
from cloud_jobs.status.facts import CentreStatus, ProvisionalStatus, problems
from tests.cloud_jobs.geofence.centre import GeofenceCentre, rules
from tests.cloud_jobs.geofence.test_event_revisions import THROUGH
from tests.cloud_jobs.pulsar_source.addresses import FakeAdmin, Reply, address, document, page
from tests.cloud_jobs.status.test_centre_metrics import shown
from tests.cloud_jobs.status.watched import LIMITS
from tests.cloud_jobs.verdicts.centre import VerdictCentre, alert_of

PUBLISHED_MS = 1_728_046_000_000
PUBLISHED = datetime.fromtimestamp(PUBLISHED_MS / 1000, UTC)
BOUND_S = 600.0
OLDEST = ("waybill_centre_oldest_provisional_seconds",)


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


def found(centre: VerdictCentre, *clusters: FakeAdmin) -> ProvisionalStatus:
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


def test_where_no_alert_ever_came_nothing_is_asked_and_how_long_one_waits_is_unknown(
    centre: VerdictCentre, hq: FakeAdmin
) -> None:
    hq.says = lambda _: page(503)
    none = found(centre, hq)
    assert none == ProvisionalStatus(BOUND_S, was_collected=False)
    samples = shown(CentreStatus(centre.now, provisional=none))
    assert math.isnan(samples[OLDEST])
    assert samples[("waybill_centre_max_provisional_seconds",)] == BOUND_S
    assert not any("verdict" in one for one in problems(CentreStatus(centre.now, provisional=none), LIMITS))
    assert math.isnan(shown(CentreStatus(centre.now))[OLDEST])


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


@pytest.mark.parametrize("waiting", [0, 3])
def test_what_a_cluster_has_that_does_not_answer_is_unknown_whatever_another_one_says(
    centre: VerdictCentre, hq: FakeAdmin, waiting: int
) -> None:
    centre.collect(*alerts())
    centre.ingest(THROUGH)
    centre.compute_events()
    decide(centre, hq)
    with address() as dr:
        dr.says = waits(waiting)
        for silent in (lambda _: page(503), lambda path: waits(0)(path) if path.endswith("/partitions") else page(503)):
            hq.says = silent
            unknown = found(centre, dr, hq)
            assert "alerts-eu/alerts is unknown: c1: " in unknown.error
            assert math.isnan(shown(CentreStatus(centre.now, provisional=unknown))[OLDEST])
        hq.says = lambda _: document({"reason": "Topic not found"}, 404)
        oldest = PUBLISHED if waiting else None
        assert found(centre, dr, hq) == ProvisionalStatus(BOUND_S, oldest), "a cluster without the topic has none"
