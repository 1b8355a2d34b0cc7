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
from pulsar import ConnectError, MessageId
from typer.testing import CliRunner, Result

from cloud_jobs.errors import ReferenceNotPublished
from cloud_jobs.reference import files as reference_publisher
from cloud_jobs.reference.checks import VersionDiff, diffs
from cloud_jobs.reference.commands import app
from cloud_jobs.reference.files import PlacedVersion, ReferenceVersion, make_version, publish
from cloud_jobs.reference.tables import store
from geo.reference.messages import ANYBODY
from simulator.fleet import toml_text
from tests.cloud_jobs.billing.contracts.makers import account, device, kind_of, legal_entity, price, rows, tariff
from tests.cloud_jobs.publications import AT, message_of, publication_id, row_of, rows_of
from tests.identity.makers import operator, operators_file
from tests.new_lakes import new_lake
from waybill.identity.signatures import ID_PROPERTY, NewOperator
from waybill.pulsar import cluster_clock
from waybill.pulsar.cluster_clock import ClockDiffers

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
    def __init__(self, key: str, content: bytes, properties: dict[str, str], at_ms: int = 0) -> None:
        self.key, self.content, self._properties, self._at_ms = key, content, properties, at_ms

    def publish_timestamp(self) -> int:
        return self._at_ms

    def properties(self) -> dict[str, str]:
        return self._properties


class Topic:
    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.messages: list[Sent] = []

    def send(self, content: bytes, properties: dict[str, str], partition_key: str) -> None:
        self.cluster.left -= 1
        if self.cluster.left < 0:
            raise ConnectError
        self.messages.append(Sent(partition_key, content, properties, self.cluster.clock_ms()))


class Reader:
    def __init__(self, messages: list[Sent]) -> None:
        self._left = messages

    def has_message_available(self) -> bool:
        return bool(self._left)

    def read_next(self, _timeout_ms: int) -> Sent:
        return self._left.pop(0)

    def close(self) -> None:
        pass


class Cluster:
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
        return sorted(message.properties()[ID_PROPERTY] for topic in self.topics.values() for message in topic.messages)


@pytest.fixture
def clusters(monkeypatch: pytest.MonkeyPatch) -> dict[str, Cluster]:
    known = {"pulsar://hq:6650": Cluster(0), "pulsar://dr:6650": Cluster()}
    monkeypatch.setattr(reference_publisher, "open_pulsar_client", lambda url, *_, **__: known[url])
    return known


def test_the_first_cluster_that_answers_takes_all(clusters: dict[str, Cluster]) -> None:
    assert publish(list(clusters), VERSIONS) == 2
    topics = clusters["pulsar://dr:6650"].topics
    assert [topics[name].messages[0].key for name in ("tariffs", "accounts")] == [
        "t@2026-01-01T00:00:00+01:00",
        "acme@2026-01-01T00:00:00+01:00",
    ]
    with pytest.raises(ReferenceNotPublished, match="pulsar://hq:6650"):
        publish(["pulsar://hq:6650"], VERSIONS)


def test_a_role_without_the_right_is_named_with_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> Cluster:
        raise pulsar.AuthorizationError

    monkeypatch.setattr(reference_publisher, "open_pulsar_client", refuse)
    with pytest.raises(ReferenceNotPublished, match=r"role of this token may not .*`produce`.*publisher") as refused:
        publish(["pulsar://hq:6650"], VERSIONS)
    assert "publish again" not in str(refused.value)


def test_what_arrived_in_two_clusters_has_one_id_and_counts_once(clusters: dict[str, Cluster], tmp_path: Path) -> None:
    clusters["pulsar://hq:6650"].left = 1
    assert publish(list(clusters), VERSIONS) == 2
    (first,), both = (clusters[url].ids for url in clusters)
    assert first == both[0]
    lake = new_lake(tmp_path)
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


def published_price(amount: str) -> ReferenceVersion:
    prices = [{"meter": "distance", "unit": "km", "unit_amount": amount}]
    return make_version("tariff", TARIFF | {"prices": prices})


def publish_at(cluster: Cluster, clock_s: float, *versions: ReferenceVersion) -> None:
    cluster.clock_ms = lambda: round(clock_s * 1000)
    publish(["pulsar://dr:6650"], versions, clock=lambda: clock_s)


def test_who_publishes_later_comes_later_whatever_the_clock_says(clusters: dict[str, Cluster]) -> None:
    dr = clusters["pulsar://dr:6650"]
    for clock_s, amount in ((1e9, "0.45"), (1e9 - 250, "4.50"), (1e9 - 100, "0.45")):
        publish_at(dr, clock_s, published_price(amount))
    sent = dr.topics["tariffs"].messages
    assert [message.properties()[ID_PROPERTY] for message in sent] == dr.ids
    # in another topic, too: one publication has all of a file
    publish_at(dr, 1e9 - 60, VERSIONS[1])
    assert dr.topics["accounts"].messages[0].properties()[ID_PROPERTY] == dr.ids[-1]


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
        + "[reference]\nunsigned = true\n"
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
    assert f"{bad}: feature 1: " in said
    code, printed = run("put", str(good))[:2]
    assert (code, printed.splitlines()[0]) == (0, "published: 1 account, 1 tariff")
    # who closes at once closes by the former ones
    assert "the next run of `cloud-jobs usage` copies them into the lake" in printed
    assert run("put", str(good), "--json")[0] == 0

    code, _, said = run("list")
    assert code == 1
    assert "reference" in said
    lake = new_lake(tmp_path / "lake")
    bodies = [("tariff", TARIFF), ("tariff", TARIFF | {"currency": "NO"}), ("account", ACCOUNT)]
    lake.append("reference", [row_of(kind, body["id"], body, at) for at, (kind, body) in enumerate(bodies)])  # type: ignore[arg-type]
    store(lake, {"tariff": [message_of("tariff", TARIFF, 9, key="x")]}, ANYBODY, now=lambda: AT)
    code, text, _ = run("list", "--json")
    shown = json.loads(text)
    assert code == 0
    assert [(row["kind"], row["id"], row["effective_from"], row["problem"][:38]) for row in shown["versions"]] == [
        ("account", "acme", "2025-12-31T23:00:00Z", ""),
        ("tariff", "t", "2025-12-31T23:00:00Z", ""),
        ("tariff", "t", "2025-12-31T23:00:00Z", "topic 3:1:-1: currency: no currency 'N"),
    ]
    assert [row["publication_id"] for row in shown["versions"]] == [publication_id(at) for at in (2, 0, 1)]
    assert [row["published_at"][-10:] for row in shown["versions"]] == ["T00:02:00Z", "T00:00:00Z", "T00:01:00Z"]
    (quarantined,) = shown["quarantined"]
    assert (quarantined["message_id"], quarantined["key"]) == ("3:9:-1", "x")
    assert quarantined["quarantined_at"] == "2026-01-05T00:00:00Z"
    table = run("list")[1]
    assert "effective from" in table
    assert "In quarantine" in table


class Published:
    """Takes the place of the clusters: what was sent to them."""

    def __init__(self) -> None:
        self.keys: list[str] = []
        self.signing: Any = None
        self.clocks: Any = None

    def check_clock(self, urls: Any, _: Any) -> None:
        self.clocks = urls

    def publish(self, _: Any, versions: Any, *__: Any, signing: Any = None) -> int:
        self.signing = signing
        self.keys += [version.key for version in versions]
        return len(self.keys)


@pytest.fixture
def published(monkeypatch: pytest.MonkeyPatch) -> Published:
    made = Published()
    monkeypatch.setattr(reference_publisher, "publish", made.publish)
    monkeypatch.setattr(reference_publisher, "check_clock", made.check_clock)
    return made


ANNA = operator("anna")
ACME = operator("acme clerk", tenants=("fleet",), kinds=("account",), accounts=("acme", "acme-*"))
OLD = operator("old", valid_until=datetime(2026, 1, 1, tzinfo=UTC))
TRUSTED = 'operators = "operators.toml"'


def put(folder: Path, *bodies: dict[str, Any], by: NewOperator = ANNA, key: bool = True, trusted: str = "") -> Result:
    tables: dict[str, list[dict[str, Any]]] = {}
    for body in bodies:
        tables.setdefault(kind_of(body), []).append(body)
    (folder / "contracts.toml").write_text(toml_text(tables), encoding="utf-8")
    if not (folder / "operators.toml").exists():
        operators_file(folder / "operators.toml", ANNA, ACME, OLD)
    (folder / "cloud.toml").write_text(
        f'lake = "{folder}/lake"\ncheckpoints = "{folder}/checkpoints"\n'
        '[[clusters]]\nname = "hq"\nservice_url = "pulsar://127.0.0.1:1"\nadmin_url = "http://127.0.0.1:1"\n'
        f"[reference]\n{trusted or TRUSTED}\n"
    )
    (folder / "mine.key").write_bytes(by.key.private_pem())
    words = ["put", str(folder / "contracts.toml"), "--config", str(folder / "cloud.toml"), "--reason", "as agreed"]
    return CliRunner().invoke(app, [*words, *(["--key", str(folder / "mine.key")] if key else [])])


def test_the_first_contracts_are_published_where_no_lake_is_yet(tmp_path: Path, published: Published) -> None:
    done = put(tmp_path, legal_entity(), tariff(price()), account("acme", device()))
    first, rest = done.stdout.split("\n", 1)
    assert (done.exit_code, first) == (0, "published: 1 account, 1 legal entity, 1 tariff")
    assert "`cloud-jobs usage` copies them into the lake" in rest
    assert len(published.keys) == 3


def test_what_contradicts_what_the_lake_has_is_named_and_nothing_is_published(
    tmp_path: Path, published: Published
) -> None:
    lake = new_lake(tmp_path / "lake")
    lake.append("reference", rows(legal_entity(), tariff(price()), account("acme", device())))
    done = put(tmp_path, account("beta", device()), account("gamma", device("van-2")))
    assert (done.exit_code, published.keys) == (1, [])
    assert "device 'van-1' of tenant 'fleet' is in account 'acme' and in account 'beta'" in done.stderr
    assert "nothing was published" in done.stderr


def test_it_is_signed_by_the_key_that_is_named_for_the_reason_that_is_given(
    tmp_path: Path, published: Published
) -> None:
    assert put(tmp_path, tariff(price()), by=ANNA).exit_code == 0
    assert (published.signing.key.key_id, published.signing.reason) == (ANNA.key.key_id, "as agreed")


@pytest.mark.parametrize("by", [ACME, OLD, operator("nobody")], ids=["no-right", "not-valid-then", "unknown-key"])
def test_what_the_centre_would_refuse_is_named_with_its_place_and_not_published(
    tmp_path: Path, published: Published, by: NewOperator, request: pytest.FixtureRequest
) -> None:
    done = put(tmp_path, tariff(price()), by=by)
    assert (done.exit_code, published.keys) == (1, [])
    assert f"contracts.toml:1: tariff 'standard': {request.node.callspec.id}: " in done.stderr


def test_a_tenants_own_key_publishes_its_own_accounts_alone(tmp_path: Path, published: Published) -> None:
    assert put(tmp_path, account("acme", device()), by=ACME).exit_code == 0
    for other in (
        account("beta", device()),
        account("acme-1", device() | {"tenant": "beta"}),
        account("acme-1", device(), parent="beta", payer=None),
    ):
        published.keys.clear()
        done = put(tmp_path, other, by=ACME)
        assert (done.exit_code, published.keys) == (1, []), done.output
        assert "no-right: the key of acme clerk may not speak for" in done.stderr


def test_a_machine_whose_clock_is_wrong_publishes_nothing(
    tmp_path: Path, published: Published, monkeypatch: pytest.MonkeyPatch
) -> None:
    def differs(url: str, _: Any) -> None:
        raise ClockDiffers(url, 40 * 86_400)

    monkeypatch.undo()
    monkeypatch.setattr(reference_publisher, "publish", published.publish)
    monkeypatch.setattr(cluster_clock, "check_clock", differs)
    done = put(tmp_path, legal_entity())
    assert (done.exit_code, published.keys) == (1, [])
    assert "3456000 s ahead of that of http://127.0.0.1:1" in done.stderr
    monkeypatch.undo()
    monkeypatch.setattr(reference_publisher, "publish", published.publish)
    done = put(tmp_path, legal_entity())
    assert (done.exit_code, published.keys) == (1, [])
    assert "is not known" in done.stderr


TARIFF_FILE, ACCOUNT_FILE = tariff(id="t"), account("acme", tariff="t")


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """A tariff and an account in force, and a message in the quarantine of each."""
    lake = new_lake(tmp_path / "lake")
    lake.append("reference", [row_of("tariff", "t", TARIFF_FILE, 0), row_of("account", "acme", ACCOUNT_FILE, 1)])
    for kind, body in (("tariff", TARIFF_FILE), ("account", ACCOUNT_FILE)):
        store(lake, {kind: [message_of(kind, body, 9, key="x")]}, ANYBODY, now=lambda: AT)  # type: ignore[arg-type, dict-item]
    return tmp_path / "lake"


@pytest.fixture
def contracts(tmp_path: Path) -> Path:
    file = tmp_path / "contracts.toml"
    file.write_text(CONTRACTS)
    return file


def run(*words: object) -> tuple[int, str]:
    done = CliRunner().invoke(app, list(map(str, words)))
    return done.exit_code, done.output


@pytest.mark.parametrize("command", [["list"], ["history", "t"]])
def test_a_kind_that_is_none_is_refused_with_those_that_are(lake: Path, command: list[str]) -> None:
    code, text = run(*command, "--lake", lake, "--kind", "tarif")
    assert code == 2
    assert "'tarif'" in text
    assert "tariff" in text.replace("'tarif'", "")


def test_a_diff_names_each_field_that_would_change_and_ends_with_1(lake: Path, contracts: Path) -> None:
    code, text = run("diff", contracts, "--lake", lake, "--json")
    found = {(row["kind"], row["id"]): row for row in json.loads(text)["versions"]}
    assert code == 1
    assert found["account", "acme"]["change"] != "same"
    assert any("parent" in line for line in found["account", "acme"]["lines"])
    code, text = run("diff", contracts, "--lake", lake)
    assert code == 1
    assert f"{contracts}" in text
    assert "parent" in text


def test_a_check_ends_with_1_at_a_fault_and_names_its_place(contracts: Path) -> None:
    assert run("check", contracts)[0] == 0
    contracts.write_text(CONTRACTS.replace('unit_amount = "0.45"', 'unit_amount = "lots"'))
    code, text = run("check", contracts)
    assert code == 1
    assert f"{contracts}:9: tariff 't': prices.0.unit_amount" in text


def diff(before: list[dict[str, Any]], after: dict[str, Any], kind: Any = "tariff") -> VersionDiff:
    placed = PlacedVersion("x.toml:1", make_version(kind, after), lambda *_: "")
    (found,) = diffs(rows_of(kind, before), [placed])
    return found


def test_a_version_is_new_follows_another_replaces_or_is_the_same() -> None:
    assert diff([], tariff()).change == "new"
    assert diff([tariff()], tariff()).change == "same"
    assert diff([tariff()], tariff(effective_from="2027-01-01T00:00:00Z")).change == "after another"
    changed = [line for line in diff([tariff()], tariff(currency="USD")).lines if line[0] in "+-"]
    assert changed == ['- "currency": "EUR",', '+ "currency": "USD",']
