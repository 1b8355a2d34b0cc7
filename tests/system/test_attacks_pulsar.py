"""What a token that was stolen is good for inside Pulsar: its role's topics and subscriptions, and nothing else."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pulsar
import pytest
from pydantic import SecretStr

from deploy.local import LocalStack
from geo.replication import AdminClient, admins, apply, inspect_clusters
from tests.page_sessions import run_line
from tests.pulsar_clients import http_access, open_client
from tests.system.topology_parts import known
from tests.system.tried_rights import TriedRight, try_rights
from tests.waiting import wait_until
from waybill.identity.tokens import read_key
from waybill.pulsar.pulsar_client import PulsarAccess

pytestmark = pytest.mark.system

RUNBOOK = Path(__file__).parents[2] / "docs/runbooks/stolen-token.md"
BATCHES = "persistent://canary/telemetry-eu/batches-partition-0"
MASTER_DATA = ("fences", "tariffs", "accounts", "calendars", "legal-entities", "exchange-rates", "alert-rules")
REFERENCE = (*MASTER_DATA, "revocation-lists")
EVENTS = ("geofence", "encounters", "verdicts", "undelivered")
REGIONAL = {
    "gateway-R": """
        produce T/telemetry-R/batches, produce T/telemetry-R/refused, consume T/registry/devices""",
    "alerts-R": """
        consume T/telemetry-R/batches, produce T/alerts-R/alerts, produce T/alerts-R/processes,
        consume T/alerts-R/processes, consume fleet/reference/fences,
        expire messages of T/telemetry-R/batches alerts""",
    "access-R": """
        produce T/registry/devices, consume T/registry/devices, produce fleet/reference/revocation-lists,
        consume fleet/reference/revocation-lists, produce fleet/access/confirmations""",
    "canary-R": "consume canary/telemetry-R/batches, consume canary/alerts-R/alerts",
    "fleet-operator": "produce T/registry/devices, consume T/registry/devices, consume fleet/access/confirmations",
    "fleet-operator-T": "produce T/registry/devices, consume T/registry/devices, consume fleet/access/confirmations",
}
CENTRAL = {
    "canary-R": REGIONAL["canary-R"],
    "fleet-operator": REGIONAL["fleet-operator"],
    "fleet-operator-T": REGIONAL["fleet-operator-T"],
    "publisher": ", ".join(f"{action} fleet/reference/{one}" for one in REFERENCE for action in ("produce", "consume")),
    "jobs": ", ".join(
        (
            "consume T/telemetry-R/batches, consume T/telemetry-R/refused, consume T/alerts-R/alerts",
            "consume T/registry/devices",
            "expire messages of T/telemetry-R/batches ingest, expire messages of T/telemetry-R/refused ingest",
            "expire messages of T/alerts-R/alerts verdicts",
            *(f"produce T/events/{one}" for one in EVENTS),
            *(f"consume fleet/reference/{one}" for one in REFERENCE),
        )
    ),
    "notifier": ", ".join(
        (
            "consume T/alerts-R/alerts, expire messages of T/alerts-R/alerts notifier",
            "consume fleet/reference/alert-rules, consume fleet/reference/accounts, produce T/events/undelivered",
            *(f"consume T/events/{one}" for one in EVENTS),
            *(f"expire messages of T/events/{one} {name}" for one in EVENTS for name in ("notifier", "undelivered")),
        )
    ),
}
"""All that roles may do, by hand from the meaning of `topology.toml`. R: a region, T: a tenant."""


@pytest.fixture
def clients(stack: LocalStack) -> Iterator[dict[str, AdminClient]]:
    with admins(stack.topology, stack.access()) as opened:
        yield opened


def expected() -> dict[tuple[str, str], set[str]]:
    found: dict[tuple[str, str], set[str]] = {}
    for places, table in ((("eu", "us"), REGIONAL), (("hq",), CENTRAL)):
        for cluster in places:
            for role, rights in table.items():
                for region in [cluster] if cluster != "hq" else ["eu", "us"]:
                    for tenant in ("fleet", "canary"):
                        said = rights.replace("-R", f"-{region}").replace("T/", f"{tenant}/")
                        words = {" ".join(one.split()) for one in said.split(",")}
                        name = role.replace("-R", f"-{region}").replace("-T", f"-{tenant}")
                        found.setdefault((cluster, name), set()).update(words)
    return found


def tried(stack: LocalStack, clients: Mapping[str, AdminClient]) -> list[TriedRight]:
    token = stack.access("jobs").token_file
    assert token
    return try_rights(stack.topology, clients, token.parent)


def asked(stack: LocalStack, role: str, method: str, path: str, *, body: object = None, cluster: str = "eu") -> int:
    """The status that a role gets from the admin interface."""
    with httpx.Client(timeout=20, follow_redirects=True, **http_access(stack.access(role))) as http:
        return http.request(method, f"{stack.pulsar[cluster].admin_url}/admin/v2/{path}", json=body).status_code


def path(topic: str) -> str:
    return topic.replace("://", "/")


def topic_namespace(right: str) -> str:
    """The namespace of the topic that a line of the table names."""
    (found,) = re.findall(r"\b(\w+/[\w-]+)/", right)
    return str(found)


def connected(stack: LocalStack, role: str, cluster: str) -> Any:
    return closing(open_client(stack.pulsar[cluster].service_url, stack.access(role)))


def policy_message(tenant: str, namespace: str, topic: str) -> bytes:
    """A topic policy as a broker writes it (PulsarEvent, Avro): the topic replicates to eu alone."""

    def text(value: str) -> str:
        return bytes([len(value) * 2]).hex() + value.encode().hex()

    policies = "020002000000000000000000000002000000000000000000000000020204657500000000000000000200020002"
    tail = text(namespace) + policies + text(tenant) + "02" + text(topic)
    return bytes.fromhex("020402000202046575000202" + text("persistent") + "02" + tail)


def test_each_role_may_do_what_the_table_says_and_nothing_else(
    stack: LocalStack, clients: dict[str, AdminClient]
) -> None:
    for (cluster, role), rights_of in expected().items():
        grants = [stack.topology.grants(cluster, one) for one in {topic_namespace(right) for right in rights_of}]
        given = {f"{action} {topic}" for one in grants for topic, may in one.items() for action in may.get(role, ())}
        assert given == {right for right in rights_of if not right.startswith("expire")}, (cluster, role)
    rights = tried(stack, clients)
    allowed: dict[tuple[str, str], set[str]] = {}
    for right in rights:
        if right.was_allowed and right.role != "operator":
            allowed.setdefault((right.cluster, right.role), set()).add(f"{right.action} {right.resource}")
    assert allowed == expected()
    assert all(right.was_allowed for right in rights if right.role == "operator")
    refused = {right.resource.rpartition("/")[2] for right in rights if not right.was_allowed}
    assert {"__change_events", "waybill-verify", "batches ingest", "batches pulsar.repl.hq", "batches"} <= refused


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("role", "cluster", "namespace"),
    [
        ("gateway-eu", "eu", "canary/telemetry-eu"),
        ("publisher", "hq", "fleet/reference"),
        ("replication-us", "hq", "fleet/reference"),
        ("replication-eu", "hq", "canary/telemetry-eu"),
    ],
)
def test_nobody_writes_topic_policies(stack: LocalStack, role: str, cluster: str, namespace: str) -> None:
    with connected(stack, role, cluster) as client:
        with pytest.raises(pulsar.AuthorizationError):
            client.create_producer(f"persistent://{namespace}/__change_events")
        with pytest.raises(pulsar.AuthorizationError):
            client.create_producer(f"persistent://{namespace}/new")


@pytest.mark.nightly
def test_truncating_a_partitioned_topic_is_all_that_a_producer_gets_for_too_little(stack: LocalStack) -> None:
    """What docs/limits.md says of Pulsar 4.0.8. Where a broker refuses it, that row may go."""
    topic = "persistent/canary/telemetry-eu/limits"
    assert asked(stack, "operator", "PUT", f"{topic}/partitions?createLocalTopicOnly=true", body=2) < 300
    try:
        asked(stack, "operator", "POST", f"{topic}/permissions/gateway-eu", body=["produce"])
        tries = {role: asked(stack, role, "DELETE", f"{topic}/truncate") for role in ("gateway-eu", "access-eu")}
        assert tries == {"gateway-eu": 204, "access-eu": 401}
        assert asked(stack, "gateway-eu", "DELETE", f"{topic}-partition-0/truncate") == 401
        assert asked(stack, "gateway-eu", "DELETE", f"{topic}/partitions?force=true") == 403
    finally:
        asked(stack, "operator", "DELETE", f"{topic}/partitions?force=true")


@pytest.mark.nightly
def test_a_topic_policy_that_is_there_deletes_nothing_and_a_deleted_topic_is_restored(
    stack: LocalStack, clients: dict[str, AdminClient]
) -> None:
    """With topic policies this message made hq delete the topic, `ingest` included, within seconds."""
    namespace = "canary/telemetry-eu"
    message = policy_message("canary", "telemetry-eu", "batches")
    with (
        connected(stack, "operator", "hq") as hq,
        connected(stack, "operator", "eu") as eu,
        connected(stack, "gateway-eu", "eu") as gateway,
    ):
        for client in (eu, hq):
            client.create_producer(f"persistent://{namespace}/__change_events").send(message)

        def arrives(body: bytes) -> None:
            reader = hq.create_reader(BATCHES, pulsar.MessageId.latest)
            producer = gateway.create_producer(BATCHES)
            producer.send(body)
            assert reader.read_next(60_000).data() == body
            reader.close()
            producer.close()

        arrives(b"after the policy")
        assert "ingest" in known(clients["hq"], f"{path(BATCHES)}/subscriptions")
        clients["hq"].delete("persistent/canary/telemetry-eu/batches/partitions", force=True)
        planned = [str(change) for change in inspect_clusters(stack.topology, clients).changes]
        assert f"hq: create topic {namespace}/batches" in planned
        assert f"hq: create grant {namespace}/batches to jobs: consume" in planned
        assert f"hq: create subscription {namespace}/batches subscription ingest" in planned
        assert apply(stack.topology, clients).held_back == ()
        arrives(b"after the repair")


@pytest.mark.nightly
def test_a_right_beyond_the_topology_is_planned_tried_and_taken_away(
    stack: LocalStack, clients: dict[str, AdminClient]
) -> None:
    eu, namespace = clients["eu"], "canary/telemetry-eu"
    eu.post(f"namespaces/{namespace}/permissions/gateway-eu", ["produce"])
    eu.post(f"namespaces/{namespace}/permissions/subscription/ingest", ["alerts-eu"])
    changes = [str(change) for change in inspect_clusters(stack.topology, clients).changes]
    assert f"eu: delete grant {namespace} to gateway-eu: produce" in changes
    assert f"eu: update subscription_grant {namespace} subscription ingest: alerts-eu -> jobs" in changes
    found = {str(right) for right in tried(stack, {"eu": eu})}
    assert f"eu: gateway-eu may produce {namespace}/__change_events" in found
    assert f"eu: alerts-eu may expire messages of {namespace}/batches ingest" in found
    apply(stack.topology, clients)
    assert [one for one in inspect_clusters(stack.topology, clients).changes if "grant" in one.kind] == []


@pytest.mark.nightly
def test_who_consumes_a_topic_moves_no_subscription_of_others(stack: LocalStack) -> None:
    position = {"ledgerId": 1, "entryId": 1, "partitionIndex": 0}
    calls: list[tuple[str, str, object]] = [
        ("POST", "skip_all", None),
        ("POST", "skip/3", None),
        ("POST", "expireMessages/1", None),
        ("POST", "expireMessages", position),
        ("POST", "resetcursor/1", None),
        ("POST", "resetcursor", position),
        ("POST", "replicatedSubscriptionStatus", False),
        ("PUT", "", None),
        ("DELETE", "", None),
    ]
    link = stack.links["eu->hq"]
    with (
        connected(stack, "jobs", "hq") as centre,
        connected(stack, "gateway-eu", "eu") as gateway,
        connected(stack, "alerts-eu", "eu") as thief,
    ):
        ingest = centre.subscribe(BATCHES, "ingest", replicate_subscription_state_enabled=True)
        producer = gateway.create_producer(BATCHES)
        link.cut()
        try:
            for number in range(40):
                producer.send(b"kept %d" % number)
            for name in ("pulsar.repl.hq", "ingest", "__compaction"):
                for method, call, body in calls:
                    asking = f"{path(BATCHES)}/subscription/{name}/{call}".rstrip("/")
                    assert asked(stack, "alerts-eu", method, asking, body=body) == 401, (name, call)
                with pytest.raises(pulsar.AuthorizationError):
                    thief.subscribe(BATCHES, name)
            # Pulsar 4.0.8 asks here for no subscription: those of this cluster are moved, and no replicator.
            assert asked(stack, "alerts-eu", "POST", f"{path(BATCHES)}/all_subscription/expireMessages/1") == 204
            for call in ("clearBacklog", "clearBacklog/ingest", "unsubscribe/ingest"):
                assert asked(stack, "alerts-eu", "POST", f"namespaces/canary/telemetry-eu/{call}") == 403
        finally:
            link.heal()
        arrived: set[bytes] = set()
        while len(arrived) < 40:
            message = ingest.receive(60_000)
            ingest.acknowledge(message)
            arrived |= {message.data()} if message.data().startswith(b"kept") else set()
        own = thief.subscribe(BATCHES, "alerts")
        producer.send(b"an alert process reads this")
        own.receive(20_000)
        own.unsubscribe()
    assert asked(stack, "jobs", "POST", f"{path(BATCHES)}/subscription/ingest/skip/1", cluster="hq") == 204


@pytest.mark.nightly
def test_brokers_give_their_metrics_to_a_token_without_rights_and_to_nobody_else(stack: LocalStack) -> None:
    def status(access: PulsarAccess) -> int:
        with httpx.Client(timeout=20, follow_redirects=True, **http_access(access)) as http:
            return http.get(f"{stack.pulsar['eu'].admin_url}/metrics/").status_code

    assert status(PulsarAccess(tls_ca=stack.access().tls_ca)) == 401
    assert status(stack.access("monitoring")) == 200


@pytest.mark.nightly
def test_the_runbook_of_a_stolen_token_ends_it(stack: LocalStack, clients: dict[str, AdminClient]) -> None:
    assert stack.credentials
    file = stack.access("gateway-eu").token_file
    assert file
    stolen = PulsarAccess(token=SecretStr(file.read_text().strip()), tls_ca=stack.access().tls_ca)
    issuer = stack.credentials.issuer

    def takes(access: PulsarAccess) -> bool:
        """Whether each cluster knows who shows the token: names of clusters are for everybody who is known."""
        answers = []
        for cluster in stack.pulsar:
            with httpx.Client(timeout=20, **http_access(access)) as http:
                answers.append(http.get(f"{stack.pulsar[cluster].admin_url}/admin/v2/clusters").status_code)
        return set(answers) == {200}

    assert takes(stolen)
    # Without those of systemd: every client of this stack reads the files themselves.
    commands = re.findall(r"^ +# (?!for )(.+)$", RUNBOOK.read_text(encoding="utf-8"), re.MULTILINE)
    commands = [one.removeprefix("sudo -u fleet-tokens ") for one in commands]
    assert [" ".join(one.split()[:4]) for one in commands if "token-key" in one] == [
        f"waybill pki token-key {step}" for step in ("publish", "sign", "retire")
    ]
    for command in commands:
        ran = run_line(command.replace("/var/lib/fleet-tokens", str(stack.folder / "access")), stack.folder)
        # A shared stack has topics that other tests left: `plan` names them.
        assert ran.returncode in ((0, 2) if "topology" in command else (0,)), (command, ran.stdout, ran.stderr)
        if "publish" in command:
            newest = read_key(issuer.key_files()[-1]).token("operator", issuer=issuer.issuer, now_s=0, life_s=4e9)
            wait_until(lambda: takes(PulsarAccess(token=SecretStr(newest), tls_ca=stack.access().tls_ca)), 30)  # noqa: B023  # called at once
    wait_until(lambda: not takes(stolen), 30)
    assert takes(stack.access("gateway-eu"))
