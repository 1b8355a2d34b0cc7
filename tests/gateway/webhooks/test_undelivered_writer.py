"""What no webhook took, on its way into the topics of its tenants."""

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pulsar
import pytest
from typer.testing import CliRunner

from gateway.errors import UndeliveredUnfit
from gateway.webhooks import cli as undelivered_cli
from gateway.webhooks import undelivered as undelivered_queue
from gateway.webhooks.cli import app, posted
from gateway.webhooks.posting import EndedDelivery, SignedPost, WebhookDelivery
from gateway.webhooks.undelivered import (
    MAX_BYTES,
    UndeliveredEntry,
    UndeliveredMessage,
    UndeliveredWriter,
    decode_undelivered,
    encode_undelivered,
)
from tests.gateway.webhooks.hook_server import hook_server, write_secret
from tests.gateway.webhooks.test_config import TEXT
from tests.waiting import wait_until


class Cluster:
    """What it has by topic; `refuses` raises, by the name of the topic."""

    def __init__(self) -> None:
        self.has: dict[str, list[bytes]] = {}
        self.refuses: dict[str, Exception] = {}
        self.too_big = MAX_BYTES

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
        if len(data) > self._cluster.too_big:
            raise pulsar.MessageTooBig("too big")
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
        one = UndeliveredWriter(cluster.client, topic, written.append, dropped.append, tenants=tenants)
        made.append(one)
        one.start()
        return one

    written.clear()
    dropped.clear()
    yield start
    for one in made:
        one.close()


written, dropped = list[EndedDelivery](), list[EndedDelivery]()


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


def test_what_cannot_be_kept_is_dropped_and_what_comes_after_it_is_written(
    cluster: Cluster, started: Callable[[int], UndeliveredWriter]
) -> None:
    one = started(1)
    one.add(given_up(0, "acme", tuple(f"acme/r{number}" for number in range(10_001))))
    one.add(given_up(1, "acme"))
    wait_until(lambda: len(written) == 1)
    assert ([ended.delivery.key for ended in dropped], len(one)) == (["0/provisional"], 0)


def of_rules(count: int) -> EndedDelivery:
    return given_up(0, "acme", tuple(f"a{'x' * 60}/{'r' * 50}{number:05d}" for number in range(count)))


@pytest.mark.parametrize("count", [900, 1_200, 4_000, 8_000])
def test_all_that_is_written_can_be_read(count: int) -> None:
    ended = of_rules(count)
    assert decode_undelivered(encode_undelivered(ended, 1)).delivery.rules == ended.delivery.rules


def test_what_nobody_could_read_is_not_written() -> None:
    with pytest.raises(UndeliveredUnfit, match=r"^0/provisional: "):
        encode_undelivered(of_rules(9_500), 1)


@pytest.mark.parametrize("command", ["list", "retry", "discard"])
def test_settings_that_are_not_there_are_78(tmp_path: Path, command: str) -> None:
    words = ["undelivered", command, "--config", str(tmp_path / "none.toml"), "--webhook", "ops"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 78
    assert "none.toml" in done.output


def test_nothing_is_discarded_that_is_not_named(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["undelivered", "discard", "--config", str(tmp_path / "none.toml")])
    assert done.exit_code == 2
    assert "--webhook or --key, or --malformed alone" in done.output
    done = CliRunner().invoke(
        app, ["undelivered", "discard", "--config", str(tmp_path / "none.toml"), "--malformed", "--key", "k"]
    )
    assert done.exit_code == 2


@pytest.mark.parametrize("body", [b"no message", b"of another tenant"])
def test_what_is_no_message_of_the_topic_is_listed_and_can_be_taken_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: bytes
) -> None:
    removed: list[str] = []
    other = UndeliveredMessage(
        key="k", webhook="ops", tenant="umbrella", rules=("u/all",), reason="refused", at_ms=1, body="{}"
    )
    mine = other.model_copy(update={"tenant": "acme", "key": "mine"})
    strange = (
        UndeliveredEntry(None, "no undelivered message: not JSON", lambda: removed.append("strange"))
        if body == b"no message"
        else UndeliveredEntry(other, "", lambda: removed.append("strange"))
    )
    found = [strange, UndeliveredEntry(mine, "", lambda: removed.append("mine"))]
    monkeypatch.setattr(undelivered_queue, "undelivered_entries", lambda *_: found)
    monkeypatch.setattr(undelivered_queue, "open_undelivered", lambda *_: nullcontext())
    words = ["--config", config(tmp_path)]
    listed = CliRunner().invoke(app, ["undelivered", "list", *words]).output
    assert [line.startswith("malformed: ") for line in listed.splitlines()] == [True, False]
    assert CliRunner().invoke(app, ["undelivered", "discard", "--key", "k", *words]).output.strip() == (
        "nothing to discard"
    )
    done = CliRunner().invoke(app, ["undelivered", "discard", "--malformed", *words])
    assert (done.exit_code, removed, done.output.startswith("malformed: ")) == (0, ["strange"], True)


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

    def given(_: Any, webhook: str | None, __: str | None) -> Any:
        for name in webhooks:
            if webhook in {None, name}:
                message = UndeliveredMessage(
                    key="k", webhook=name, tenant="acme", rules=("acme/all",), reason="refused", at_ms=1, body="{}"
                )
                yield message, UndeliveredEntry(message, "", lambda: None)

    return given


@pytest.mark.parametrize(("command", "exit_code"), [("list", 0), ("retry", 2), ("discard", 0)])
def test_messages_of_a_former_webhook_are_listed_and_discarded_and_not_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, exit_code: int
) -> None:
    monkeypatch.setattr(undelivered_cli, "_entries", entries("former"))
    done = CliRunner().invoke(app, ["undelivered", command, "--config", config(tmp_path), "--webhook", "former"])
    assert done.exit_code == exit_code, done.output


def given(*webhooks: str) -> list[UndeliveredEntry]:
    plain: dict[str, Any] = {"rules": ("acme/all",), "reason": "refused", "at_ms": 1, "body": "{}", "tenant": "acme"}
    made = [UndeliveredMessage(key=f"k{number}", webhook=name, **plain) for number, name in enumerate(webhooks)]
    return [UndeliveredEntry(one, "", lambda: None) for one in made]
