"""The state of links and cursors from the brokers' statistics, and the metrics made of it."""

import json
from collections.abc import Callable

from prometheus_client import generate_latest

from geo.replication import AdminClient, Topology, admins
from geo.replication.cli import METRICS, ReplicationCollector
from geo.replication.rest_types import STATS, TopicStats
from geo.replication.verification import Observation, cursor_states, link_state, observe, unknown_subscriptions
from tests.geo.replication.brokers import FakeBroker

SPACE = "fleet/telemetry-eu"


def replicator(*, connected: bool = True, backlog: int = 0, delay_s: int = 0) -> dict[str, object]:
    return {"connected": connected, "replicationBacklog": backlog, "replicationDelayInSeconds": delay_s}


def topic(**replication: object) -> TopicStats:
    return STATS.validate_python({"replication": replication, "subscriptions": {}})


def with_cursors(**subscriptions: object) -> TopicStats:
    return STATS.validate_python({"replication": {}, "subscriptions": subscriptions})


def subscription(
    moved_s: float, *, replicated: bool = True, backlog: int = 0, oldest_s: float = 0
) -> dict[str, object]:
    return {
        "isReplicated": replicated,
        "msgBacklog": backlog,
        "lastMarkDeleteAdvancedTimestamp": int(moved_s * 1000),
        "earliestMsgPublishTimeInBacklog": int(oldest_s * 1000),
    }


def test_a_link_is_the_sum_of_its_topics() -> None:
    topics = {
        "a": topic(hq=replicator(backlog=3, delay_s=2)),
        "b": topic(hq=replicator(backlog=4, delay_s=1), dr=replicator(connected=False)),
    }
    link = link_state(SPACE, "eu", "hq", topics)
    assert (link.connected, link.backlog, link.delay_s, link.is_good) == (True, 7, 2, True)


def test_a_topic_without_a_replicator_is_named() -> None:
    link = link_state(SPACE, "eu", "hq", {"a": topic(hq=replicator()), "b": topic()})
    assert not link.connected
    assert link.problem == "no replicator for b"


def test_a_cursor_is_measured_against_the_furthest_cluster() -> None:
    stats: dict[str, dict[str, dict[str, TopicStats | None]]] = {
        "hq": {SPACE: {"t": with_cursors(ingest=subscription(100.0), own=subscription(1, replicated=False))}},
        "eu": {SPACE: {"t": with_cursors(ingest=subscription(98.5, backlog=7)), "gone": None}},
        "dr": {SPACE: {"t": with_cursors(ingest=subscription(0, backlog=9))}},
    }
    seen = {cursor.cluster: cursor for cursor in cursor_states(stats, 103.0)}
    assert (seen["hq"].age_s, seen["hq"].behind_s) == (3.0, 0.0)
    assert (seen["eu"].age_s, seen["eu"].behind_s, seen["eu"].backlog) == (4.5, 1.5, 7)
    assert (seen["dr"].age_s, seen["dr"].behind_s, seen["dr"].backlog) == (None, None, 9)


def test_what_waits_for_a_cursor_has_the_age_of_its_oldest_none_where_nothing_does_and_none_that_is_made_up() -> None:
    subscriptions = {
        "behind": subscription(100.0, backlog=3, oldest_s=99.5),
        "ahead": subscription(100.0, backlog=1, oldest_s=104.0),
        "empty": subscription(100.0, oldest_s=99.0),
        "silent": subscription(100.0, backlog=3),
    }
    seen = {
        one.subscription: one for one in cursor_states({"hq": {SPACE: {"t": with_cursors(**subscriptions)}}}, 103.0)
    }
    assert {name: one.waiting_s for name, one in seen.items()} == {
        "behind": 3.5,
        "ahead": 0.0,
        "empty": 0.0,
        "silent": None,
    }
    text = exported(Observation(links=(), cursors=tuple(seen.values()), unreachable={}))
    assert 'waybill_replication_cursor_waiting_seconds{cluster="hq",subscription="behind",topic="t"} 3.5' in text
    assert 'waybill_replication_cursor_waiting_seconds{cluster="hq",subscription="silent"' not in text


def exported(observation: Observation) -> str:
    collector = ReplicationCollector()
    collector.update(observation)
    return generate_latest(collector.registry()).decode()


def test_the_metrics_are_those_that_are_documented_and_carry_their_labels() -> None:
    cursors = cursor_states({"hq": {SPACE: {"t": with_cursors(ingest=subscription(100.0))}}}, 103.0)
    link = link_state(SPACE, "eu", "hq", {"a": topic(hq=replicator(backlog=3, delay_s=2))})
    text = exported(Observation(links=(link,), cursors=tuple(cursors), unreachable={}))
    names = {line.split()[2] for line in text.splitlines() if line.startswith("# HELP")}
    assert names == set(METRICS)
    assert f'waybill_replication_backlog_messages{{namespace="{SPACE}",source="eu",target="hq"}} 3.0' in text
    assert 'waybill_replication_cursor_snapshot_age_seconds{cluster="hq",subscription="ingest",topic="t"} 3.0' in text


def nowhere() -> Topology:
    where = {"service_url": "pulsar://127.0.0.1:9", "admin_url": "http://127.0.0.1:9"}
    return Topology.model_validate(
        {
            "centre": "hq",
            "clusters": {"eu": {"address": where}, "hq": {"address": where}},
            "regions": {"eu": {"cluster": "eu"}},
            "tenants": {"fleet": {}},
            "namespaces": {SPACE: {"clusters": "all"}},
        }
    )


def test_a_backlog_is_counted_and_not_the_estimate_that_pulsar_gives_by_itself(
    broker: Callable[[str], FakeBroker],
) -> None:
    hq = broker("hq")
    topic = f"/admin/v2/persistent/{SPACE}"
    counted = {"replication": {}, "subscriptions": {"ingest": subscription(100.0, backlog=7, oldest_s=98.0)}}
    hq.answers |= {
        "/admin/v2/clusters": (200, {}, b'["hq"]'),
        topic: (200, {}, json.dumps([f"persistent://{SPACE}/batches"]).encode()),
        f"{topic}/partitioned": (200, {}, b"[]"),
        f"{topic}/batches/stats?getPreciseBacklog=true&getEarliestTimeInBacklog=true": (
            200,
            {},
            json.dumps(counted).encode(),
        ),
    }
    with admins(nowhere()) as clients, AdminClient("hq", hq.url) as admin:
        seen = observe(nowhere(), {**clients, "hq": admin}, lambda: 103.0)
    assert [(cursor.backlog, cursor.waiting_s) for cursor in seen.cursors] == [(7, 5.0)]


def test_a_durable_subscription_with_a_backlog_that_the_topology_does_not_name_is_unknown() -> None:
    topology = Topology.model_validate(
        nowhere().model_dump()
        | {
            "namespaces": {
                SPACE: {"clusters": "all", "topics": {"batches": {"partitions": 2, "subscriptions": {"ingest": {}}}}}
            }
        }
    )
    waiting = subscription(0, backlog=7)
    named = with_cursors(ingest=waiting, mine=waiting, __compaction=waiting, read=subscription(0))
    reader = with_cursors(**{"reader-1": waiting | {"isDurable": False}})
    stats = {"hq": {SPACE: {f"{SPACE}/batches-partition-1": named, f"{SPACE}/probe": reader, f"{SPACE}/gone": None}}}
    (found,) = unknown_subscriptions(topology, stats)
    assert (found.cluster, found.topic, found.subscription, found.backlog) == (
        "hq",
        f"{SPACE}/batches-partition-1",
        "mine",
        7,
    )
    text = exported(Observation(links=(), cursors=(), unknown=(found,), unreachable={}))
    assert 'unknown_cursor_backlog_messages{cluster="hq",subscription="mine"' in text
