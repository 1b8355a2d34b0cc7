"""Whatever an inner value of an answer is, a command ends with its result or with the error that the docs name."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st
from prometheus_client import generate_latest

from geo.replication import AdminClient, Change, ClusterUnreachable, ReplicationError, Topology
from geo.replication.admin import RestAnswer
from geo.replication.apply import _make, _pending
from geo.replication.cli import ReplicationCollector, _disconnected, summary
from geo.replication.verification import Observation, observe
from tests.geo.replication.plan_model import read_plan
from tests.geo.spatial.json_values import GONE, Place, places, put

RECORDED: dict[str, dict[str, Any]] = json.loads((Path(__file__).parent / "recorded.json").read_text())
"""By cluster and path what Pulsar 4.0.8 answered in a running stack; of its configuration a part."""

RUNTIME = "brokers/configuration/runtime"
SPACE = "fleet/telemetry-eu"
PARTITION = f"persistent/{SPACE}/batches-partition-0/stats"


class Recorded(AdminClient):
    """A client that is answered from what was recorded; commands are done."""

    def __init__(self, cluster: str) -> None:
        super().__init__(cluster, "http://127.0.0.1:9", unavailable_s=0)
        self.answers: Mapping[str, Any] = RECORDED[cluster]

    def says(self, answers: Mapping[str, Any]) -> None:
        self.answers, self._configuration = answers, None

    def _request(
        self, method: str, path: str, body: object, query: Mapping[str, str | bool], *, unread_with: str | None = None
    ) -> RestAnswer:
        asked: dict[str, Any] = {"cluster": self.cluster, "url": self.url, "action": f"{method} {path}"}
        if method != "GET":
            json.dumps(body, allow_nan=False, ensure_ascii=False).encode()
            return RestAnswer(**asked, status=204, content_type="")
        found = self.answers.get(path, GONE)
        if found is GONE:
            return RestAnswer(**asked, status=404, body=b'{"reason": "not there"}')
        return RestAnswer(**asked, status=200, body=json.dumps(found).encode())


def topology() -> Topology:
    where = {
        name: {"address": {"service_url": "pulsar://127.0.0.1:1", "admin_url": "http://127.0.0.1:1"}}
        for name in RECORDED
    }
    batches = {"partitions": 2, "subscriptions": {"ingest": {}}}
    return Topology.model_validate(
        {
            "centre": "hq",
            "clusters": where,
            "other_clusters": ["us"],
            "regions": {"eu": {"cluster": "eu"}},
            "tenants": {"fleet": {}},
            "namespaces": {"fleet/telemetry-{region}": {"topics": {"batches": batches}}},
        }
    )


TOPOLOGY = topology()


@pytest.fixture(scope="module")
def clients() -> Iterator[dict[str, Recorded]]:
    opened = {cluster: Recorded(cluster) for cluster in RECORDED}
    yield opened
    for client in opened.values():
        client.close()


def watched(clients: Mapping[str, AdminClient]) -> Observation:
    """What `watch` shows, prints and exports."""
    seen = observe(TOPOLOGY, clients, lambda: 1.8e9)
    collector = ReplicationCollector()
    collector.update(seen)
    generate_latest(collector.registry())
    summary(seen).encode()
    json.dumps(seen.model_dump(mode="json"))
    return seen


def everything(clients: Mapping[str, AdminClient]) -> None:
    """All that reads an answer. Raises ReplicationError."""
    watched(clients)
    with suppress(ReplicationError):
        for change in read_plan(TOPOLOGY, clients):
            str(change).encode()
            change.model_dump_json()
            _make(clients[change.cluster], change, [])
    with suppress(ReplicationError):
        _disconnected(TOPOLOGY, clients)
    for client in clients.values():
        known = {"service_url": "pulsar://x:1", "admin_url": "http://x:1"}
        change = Change(cluster=client.cluster, action="update", kind="cluster", name="eu", after=known)
        with suppress(ReplicationError):
            _make(client, change, [])


def test_what_was_recorded_is_read_whole(clients: dict[str, Recorded]) -> None:
    for client in clients.values():
        client.says(RECORDED[client.cluster])
    seen = watched(clients)
    assert seen.unreachable == {}
    assert [(link.source, link.target, link.connected, link.backlog) for link in seen.links] == [
        ("eu", "hq", True, 0),
        ("hq", "eu", True, 0),
    ]
    assert {(cursor.cluster, cursor.subscription) for cursor in seen.cursors} >= {("hq", "ingest")}
    changed = {(change.kind, change.policy) for change in read_plan(TOPOLOGY, clients)}
    assert ("topic", "") not in changed
    assert ("namespace", "") not in changed


PLACES = [
    (name, path, place)
    for name, answers in RECORDED.items()
    for path, answer in answers.items()
    for place in places(answer)
    if place
]
numbers = st.sampled_from([0, -1, 1.5, 2**31, 2**63 - 1, 2**63, 10**400, float("nan"), float("inf"), 1e308])
texts = st.text(max_size=5) | st.sampled_from(["\ud800", ".", "..", "a/b", f"persistent://{SPACE}/..", "1e999"])
values = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=4,
)


def replaced(answers: Mapping[str, Any], path: str, place: Place, value: Any) -> dict[str, Any]:
    """The answers with another value in one place, or none."""
    return {**answers, path: put(answers[path], place, value)}


@pytest.mark.parametrize(
    ("path", "place", "value"),
    [
        (PARTITION, ("replication", "hq", "replicationBacklog"), GONE),
        (PARTITION, ("replication", "hq", "replicationBacklog"), "5"),
        (PARTITION, ("replication", "hq", "connected"), GONE),
        (PARTITION, ("replication", "hq"), None),
        (PARTITION, ("replication",), GONE),
        (PARTITION, ("subscriptions", "ingest", "msgBacklog"), GONE),
        (PARTITION, ("subscriptions", "ingest", "lastMarkDeleteAdvancedTimestamp"), "x"),
        (PARTITION, ("subscriptions", "ingest", "isReplicated"), "true"),
        (RUNTIME, ("defaultRetentionTimeInMinutes",), "none"),
        (RUNTIME, ("backlogQuotaDefaultLimitGB",), [1]),
        (RUNTIME, ("clusterName",), GONE),
        ("clusters/eu", ("serviceUrl",), 5),
        ("clusters/eu", ("brokerClientTlsEnabled",), "false"),
        ("clusters", (0,), "../brokers"),
        ("tenants/fleet", ("allowedClusters", 0), None),
        ("namespaces/fleet", (0,), "fleet/../.."),
        (f"namespaces/{SPACE}", ("retention_policies", "retentionSizeInMB"), GONE),
        (f"namespaces/{SPACE}", ("backlog_quota_map", "destination_storage", "limitSize"), GONE),
        (f"namespaces/{SPACE}", ("backlog_quota_map",), [1]),
        (f"namespaces/{SPACE}", ("message_ttl_in_seconds",), "x"),
        (f"persistent/{SPACE}", (0,), "x"),
        (f"persistent/{SPACE}", (0,), "persistent://fleet/elsewhere/x"),
        (f"persistent/{SPACE}/partitioned", (0,), "persistent:///"),
        (f"persistent/{SPACE}/batches/partitions", ("partitions",), "2"),
    ],
)
def test_a_deviation_inside_of_an_answer_makes_the_cluster_count_as_unreachable(
    clients: dict[str, Recorded], path: str, place: tuple[Any, ...], value: Any
) -> None:
    for client in clients.values():
        client.says(RECORDED[client.cluster])
    clients["eu"].says(replaced(RECORDED["eu"], path, place, value))
    with pytest.raises(ClusterUnreachable, match="not by Pulsar"):
        read_plan(TOPOLOGY, clients)
    alive: dict[str, AdminClient] = dict(clients)
    gone: dict[str, str] = {}
    assert {change.cluster for change in _pending(TOPOLOGY, alive, gone)} <= {"hq"}
    assert (set(alive), set(gone)) == ({"hq"}, {"eu"})
    everything(clients)
