"""Each publication gets an id after what stands in the topics, and keeps it in whichever cluster it arrives."""

from __future__ import annotations

import json
import time
from collections import defaultdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pulsar
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from pulsar import ConnectError, MessageId
from pydantic import SecretStr
from typer.testing import CliRunner

from cloud_jobs.errors import ReferenceNotPublished
from cloud_jobs.lake.tables import Lake
from cloud_jobs.reference import files as reference_publisher
from cloud_jobs.reference.commands import app
from cloud_jobs.reference.files import ReferenceVersion, make_version, publish
from cloud_jobs.reference.tables import store
from geo.reference.messages import ANYBODY
from tests.cloud_jobs.billing.contracts.makers import account, tariff
from tests.cloud_jobs.publications import AT, message_of, publication_id, row_of
from waybill.identity.publication_id import PROPERTY
from waybill.identity.tokens import TokenKey
from waybill.pulsar.pulsar_client import PulsarAccess

ACCOUNT = account("acme", tariff="t")
TARIFF = tariff(id="t")
CONTRACTS = """
[[tariff]]
id = "t"
effective_from = 2026-01-01T00:00:00Z
currency = "EUR"
[[tariff.prices]]
meter = "distance"
unit = "km"
unit_amount = "0.45"

[[account]]
id = "acme"
effective_from = 2026-01-01T00:00:00Z
name = "Acme"
parent = "group"
tariff = "t"
"""
VERSIONS = [make_version("tariff", TARIFF), make_version("account", ACCOUNT)]


class Sent:
    """A message of a topic."""

    def __init__(self, key: str, content: bytes, properties: dict[str, str], at_ms: int = 0) -> None:
        self.key, self.content, self._properties, self._at_ms = key, content, properties, at_ms

    def publish_timestamp(self) -> int:
        return self._at_ms

    def properties(self) -> dict[str, str]:
        return self._properties


class Topic:
    """A topic of a cluster, and what reads and writes it."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.messages: list[Sent] = []

    def send(self, content: bytes, properties: dict[str, str], partition_key: str) -> None:
        self.cluster.left -= 1
        if self.cluster.left < 0:
            raise ConnectError
        self.messages.append(Sent(partition_key, content, properties, self.cluster.clock_ms()))


class Reader:
    """Reads a topic from its last message on, or from its first."""

    def __init__(self, messages: list[Sent]) -> None:
        self._left = messages

    def has_message_available(self) -> bool:
        return bool(self._left)

    def read_next(self, _timeout_ms: int) -> Sent:
        return self._left.pop(0)

    def close(self) -> None:
        pass


class Cluster:
    """A Pulsar cluster that takes so many messages, and then none."""

    def __init__(self, takes: int = 1_000_000) -> None:
        self.left = takes
        self.clock_ms = lambda: round(time.time() * 1000)
        self.topics: defaultdict[str, Topic] = defaultdict(lambda: Topic(self))

    def create_producer(self, topic: str) -> Topic:
        return self.topics[topic.rpartition("/")[2]]

    def create_reader(self, topic: str, start: Any, **_: bool) -> Reader:
        if not self.left:
            raise ConnectError
        messages = self.topics[topic.rpartition("/")[2]].messages
        return Reader(messages[-1:] if start == MessageId.latest else list(messages))

    def close(self) -> None:
        pass

    @property
    def ids(self) -> list[str]:
        return sorted(message.properties()[PROPERTY] for topic in self.topics.values() for message in topic.messages)


@pytest.fixture
def clusters(monkeypatch: pytest.MonkeyPatch) -> dict[str, Cluster]:
    known = {"pulsar://hq:6650": Cluster(0), "pulsar://dr:6650": Cluster()}
    monkeypatch.setattr(reference_publisher, "open_pulsar_client", lambda url, *_, **__: known[url])
    return known


def test_the_first_cluster_that_answers_takes_all(clusters: dict[str, Cluster]) -> None:
    assert publish(list(clusters), VERSIONS) == 2
    topics = clusters["pulsar://dr:6650"].topics
    assert [topics[name].messages[0].key for name in ("tariffs", "accounts")] == [
        "t@2026-01-01T00:00:00Z",
        "acme@2026-01-01T00:00:00Z",
    ]
    with pytest.raises(ReferenceNotPublished, match="pulsar://hq:6650"):
        publish(["pulsar://hq:6650"], VERSIONS)


def test_a_role_without_the_right_is_named_with_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> Cluster:
        raise pulsar.AuthorizationError

    monkeypatch.setattr(reference_publisher, "open_pulsar_client", refuse)
    key = TokenKey(ec.generate_private_key(ec.SECP256R1()))
    access = PulsarAccess(token=SecretStr(key.token("jobs", issuer="https://keys", now_s=0, life_s=9)))
    with pytest.raises(ReferenceNotPublished, match=r"role 'jobs' may not .*`produce`.*publisher") as refused:
        publish(["pulsar://hq:6650"], VERSIONS, access)
    assert "publish again" not in str(refused.value)


def test_what_arrived_in_two_clusters_has_one_id_and_counts_once(clusters: dict[str, Cluster], tmp_path: Path) -> None:
    clusters["pulsar://hq:6650"].left = 1
    assert publish(list(clusters), VERSIONS) == 2
    (first,), both = (clusters[url].ids for url in clusters)
    assert first == both[0]
    lake = Lake(tmp_path)
    lake.create()
    for cluster in clusters.values():
        store(
            lake,
            {
                "tariff": [
                    message_of(
                        "tariff", TARIFF, properties=[*sent.properties().items()], publish_time=datetime.now(UTC)
                    )
                    for sent in cluster.topics["tariffs"].messages
                ]
            },
            ANYBODY,
        )
    assert lake.open("reference").count() == 1


def price(amount: str) -> ReferenceVersion:
    prices = [{"meter": "distance", "unit": "km", "unit_amount": amount}]
    return make_version("tariff", TARIFF | {"prices": prices})


def publish_at(cluster: Cluster, clock_s: float, *versions: ReferenceVersion) -> None:
    cluster.clock_ms = lambda: round(clock_s * 1000)
    publish(["pulsar://dr:6650"], versions, clock=lambda: clock_s)


def test_who_publishes_later_comes_later_whatever_the_clock_says(clusters: dict[str, Cluster]) -> None:
    dr = clusters["pulsar://dr:6650"]
    for clock_s, amount in ((1e9, "0.45"), (1e9 - 250, "4.50"), (1e9 - 100, "0.45")):
        publish_at(dr, clock_s, price(amount))
    sent = dr.topics["tariffs"].messages
    assert [message.properties()[PROPERTY] for message in sent] == dr.ids
    # in another topic, too: one publication has all of a file
    publish_at(dr, 1e9 - 60, VERSIONS[1])
    assert dr.topics["accounts"].messages[0].properties()[PROPERTY] == dr.ids[-1]


def test_the_command_publishes_all_or_nothing_and_shows_what_is_in_force(
    clusters: dict[str, Cluster], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reference_publisher, "check_clock", lambda *_: None)
    config = tmp_path / "cloud.toml"
    config.write_text(
        f'lake = "{tmp_path}/lake"\ncheckpoints = "{tmp_path}/checkpoints"\n'
        + "".join(
            f'[[clusters]]\nname = "{url[9:11]}"\nservice_url = "{url}"\nadmin_url = "http://x"\n' for url in clusters
        )
        + "[reference]\nunsigned = true\n",
    )

    def run(*words: str) -> tuple[int, str, str]:
        where = ["--config", str(config), "-m", "why"] if words[0] == "put" else ["--lake", str(tmp_path / "lake")]
        done = CliRunner().invoke(app, [*words, *where])
        return done.exit_code, done.stdout, done.stderr

    good, bad = tmp_path / "both.toml", tmp_path / "bad.json"
    good.write_text(CONTRACTS)
    bad.write_text("[{}]")
    code, _, said = run("put", str(good), str(bad))
    assert (code, clusters["pulsar://dr:6650"].ids) == (1, [])
    assert f"{bad}: line 1: " in said
    code, printed = run("put", str(good))[:2]
    assert (code, printed.splitlines()[0]) == (0, "published: 1 account, 1 tariff")
    # who closes at once closes by the former ones
    assert "the next run of `cloud-jobs usage` takes them over" in printed
    assert run("put", str(good), "--json")[0] == 0

    code, _, said = run("list")
    assert code == 1
    assert "reference" in said
    lake = Lake(tmp_path / "lake")
    lake.create()
    bodies = [("tariff", TARIFF), ("tariff", TARIFF | {"currency": "NO"}), ("account", ACCOUNT)]
    lake.append("reference", [row_of(kind, body["id"], body, at) for at, (kind, body) in enumerate(bodies)])  # type: ignore[arg-type]
    store(lake, {"tariff": [message_of("tariff", TARIFF, 9, key="x")]}, ANYBODY, now=lambda: AT)
    code, text, _ = run("list", "--json")
    shown = json.loads(text)
    assert code == 0
    assert [(row["kind"], row["id"], row["effective_from"], row["problem"][:38]) for row in shown["versions"]] == [
        ("account", "acme", "2026-01-01T00:00:00Z", ""),
        ("tariff", "t", "2026-01-01T00:00:00Z", ""),
        ("tariff", "t", "2026-01-01T00:00:00Z", "topic 3:1:-1: currency: no currency 'N"),
    ]
    assert [row["publication_id"] for row in shown["versions"]] == [publication_id(at) for at in (2, 0, 1)]
    assert [row["published_at"][-10:] for row in shown["versions"]] == ["T00:02:00Z", "T00:00:00Z", "T00:01:00Z"]
    (quarantined,) = shown["quarantined"]
    assert (quarantined["message_id"], quarantined["key"]) == ("3:9:-1", "x")
    assert quarantined["quarantined_at"] == "2026-01-05T00:00:00Z"
    table = run("list")[1]
    assert "effective from" in table
    assert "In quarantine" in table
