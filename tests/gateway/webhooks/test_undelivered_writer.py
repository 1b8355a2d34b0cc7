"""What no webhook took, on its way into the topics of its tenants."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pulsar
import pytest
from typer.testing import CliRunner

from gateway.webhooks import cli as undelivered_cli
from gateway.webhooks.cli import app, posted
from gateway.webhooks.posting import EndedDelivery, SignedPost, WebhookDelivery
from gateway.webhooks.undelivered import (
    UndeliveredEntry,
    UndeliveredMessage,
    UndeliveredWriter,
    decode_undelivered,
    encode_undelivered,
    undelivered_entries,
)
from tests.gateway.webhooks.hook_server import hook_server, write_secret
from tests.gateway.webhooks.test_config import TEXT
from tests.waiting import wait_until


class Cluster:
    """What it has by topic; `refuses` raises, by the name of the topic."""

    def __init__(self) -> None:
        self.has: dict[str, list[bytes]] = {}
        self.refuses: dict[str, Exception] = {}

    def client(self) -> Any:
        return _Client(self)


class _Client:
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def subscribe(self, topic: str, *_: Any, **__: Any) -> Any:
        if (error := self._cluster.refuses.get(topic)) is not None:
            raise error
        return self

    def create_producer(self, topic: str, **_: Any) -> Any:
        return _Producer(self._cluster, topic)

    def close(self) -> None:
        pass


class _Producer:
    def __init__(self, cluster: Cluster, topic: str) -> None:
        self._cluster, self._topic = cluster, topic

    def send(self, data: bytes, **_: Any) -> None:
        self._cluster.has.setdefault(self._topic, []).append(data)


def given_up(number: int, tenant: str, rules: tuple[str, ...] = ("acme/all",)) -> EndedDelivery:
    return EndedDelivery(WebhookDelivery(f"{number}/provisional", "ops", tenant, rules, b"{}"), "refused")


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


@pytest.fixture
def started(cluster: Cluster) -> Iterator[Callable[[int], UndeliveredWriter]]:
    made = list[UndeliveredWriter]()

    def start(tenants: int) -> UndeliveredWriter:
        one = UndeliveredWriter(cluster.client, topic, written.append, tenants=tenants)
        made.append(one)
        one.start()
        return one

    written.clear()
    yield start
    for one in made:
        one.close()


written = list[EndedDelivery]()


def topic(tenant: str) -> str:
    return f"persistent://{tenant}/events/undelivered"


def test_a_tenant_whose_topic_takes_nothing_holds_up_no_other(
    cluster: Cluster, started: Callable[[int], UndeliveredWriter]
) -> None:
    cluster.refuses[topic("bad")] = pulsar.AuthorizationError("no right")
    one = started(2)
    one.add(given_up(0, "bad"))
    for number in range(500):
        one.add(given_up(number, "good"))
    wait_until(lambda: len(written) == 500)
    assert len(one) == 1
    wait_until(lambda: bool(one.problems))
    assert [*one.problems] == [topic("bad")]
    assert "no right" in one.problems[topic("bad")]
    cluster.refuses.clear()
    wait_until(lambda: len(written) == 501)
    assert one.problems == {}
    assert one.is_running


def of_rules(count: int) -> EndedDelivery:
    return given_up(0, "acme", tuple(f"a{'x' * 60}/{'r' * 50}{number:05d}" for number in range(count)))


@pytest.mark.parametrize("count", [900, 1_200, 4_000, 8_000])
def test_all_that_is_written_can_be_read(count: int) -> None:
    ended = of_rules(count)
    assert decode_undelivered(encode_undelivered(ended, 1)).delivery.rules == ended.delivery.rules


@pytest.mark.parametrize("command", ["list", "retry", "discard"])
def test_settings_that_are_not_there_are_78(tmp_path: Path, command: str) -> None:
    words = ["undelivered", command, "--config", str(tmp_path / "none.toml"), "--webhook", "ops"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 78
    assert "none.toml" in done.output


def test_nothing_is_discarded_that_is_not_named(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["undelivered", "discard", "--config", str(tmp_path / "none.toml")])
    assert (done.exit_code, "--webhook or --key" in done.output) == (2, True)


class _Topic:
    """A subscription that has some messages; the ids of those that were removed."""

    def __init__(self, *data: bytes) -> None:
        self._waiting = [
            SimpleNamespace(data=partial(bytes, one), message_id=partial(int, at)) for at, one in enumerate(data)
        ]
        self._last, self.removed = len(data) - 1, list[int]()

    def get_last_message_id(self) -> int:
        return self._last

    def receive(self, _: int) -> Any:
        return self._waiting.pop(0)

    def acknowledge(self, message: Any) -> None:
        self.removed.append(message.message_id())


def test_what_is_no_message_of_the_tenant_is_removed_and_the_others_are_given() -> None:
    mine, other = (encode_undelivered(given_up(0, tenant), 1) for tenant in ("acme", "umbrella"))
    topic = _Topic(b"no message", other, mine)
    (entry,) = undelivered_entries(topic, "acme")
    assert (entry.message.tenant, topic.removed) == ("acme", [0, 1])
    entry.remove()
    assert topic.removed == [0, 1, 2]


def test_what_is_sent_again_goes_to_no_webhook_of_another_account(tmp_path: Path) -> None:
    with hook_server() as server:
        settings = server.settings(tmp_path, accounts=["acme"])
        webhooks, posts = {"ops": settings}, {"ops": SignedPost(settings)}
        plain: dict[str, Any] = {
            "key": "k",
            "webhook": "ops",
            "tenant": "acme",
            "reason": "exhausted",
            "at_ms": 1,
            "body": "{}",
        }
        of_others = UndeliveredMessage(rules=("acme/all", "umbrella/x"), **plain)
        assert posted(webhooks, posts, of_others) == (False, "the webhook is not for account umbrella")
        assert posted(webhooks, posts, of_others.model_copy(update={"webhook": "gone"}))[0] is False
        assert server.requests == []
        assert posted(webhooks, posts, UndeliveredMessage(rules=("acme/all",), **plain))[0]
        assert len(server.requests) == 1


def config(folder: Path) -> str:
    write_secret(folder / "secret")
    file = folder / "notifier.toml"
    file.write_text(TEXT.format(folder=folder, more="insecure = true").replace(":6650", ":1"))
    return str(file)


def entries(*webhooks: str) -> Any:
    """What the cluster has: a message of each of these webhooks."""

    def given(_: Any) -> Any:
        for name in webhooks:
            message = UndeliveredMessage(
                key="k", webhook=name, tenant="acme", rules=("acme/all",), reason="refused", at_ms=1, body="{}"
            )
            yield UndeliveredEntry(message, lambda: None)

    return given


@pytest.mark.parametrize(("command", "exit_code"), [("list", 0), ("retry", 1), ("discard", 0)])
def test_messages_of_a_former_webhook_are_listed_and_discarded_and_not_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, exit_code: int
) -> None:
    monkeypatch.setattr(undelivered_cli, "_entries", entries("former"))
    done = CliRunner().invoke(app, ["undelivered", command, "--config", config(tmp_path), "--webhook", "former"])
    assert done.exit_code == exit_code, done.output
