"""What holds is the last message of the registry's topic: whatever came after it, and whoever is of another opinion."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from gateway.access.access_key import AccessKey
from gateway.access.daemon import HeldEntries
from gateway.access.displaced import Displaced
from gateway.access.publisher import AccessPublisher
from gateway.access.seen_entries import SeenEntries
from gateway.config import RegistrySettings
from tests.identity.operators import trusting
from tests.identity.registry_strategies import CERTIFICATE, MOMENT, active, change, expected
from tests.identity.test_registry_signing import ACCESS, ANNA, BOTH, KEYS, signed
from waybill.identity.operator_keys import OperatorKeys
from waybill.identity.registry import DeviceEntry, enrol, renew, resume, revoke, suspend
from waybill.identity.registry_messages import WARRANT, check_by
from waybill.identity.registry_topic import AheadEntries, DeviceRegistry
from waybill.identity.signatures import SIGNATURE
from waybill.pulsar.compacted_topic import TopicMessage, TopicStanding

NAME = "acme/bus-1"
HOUR_S = 3600
MOMENT_S = MOMENT.timestamp()
ACTIVE, REVOKED = signed(active()), signed(revoke(active(), change()), BOTH, after_ms=5)


class Region:
    """An access daemon as far as it reads the registry's topic and publishes there."""

    def __init__(self, topic: Topic, path: Path, keys: OperatorKeys = KEYS, clock_off_s: float = 0) -> None:
        self._topic, self.clock_off_s, self.keys = topic, clock_off_s, keys
        self.displaced = Displaced(lambda _: True, lambda: topic.now_s)
        self.seen = topic.open_files.enter_context(SeenEntries(path, lambda: topic.now_s))
        self.registry: DeviceRegistry[DeviceEntry] = DeviceRegistry(
            lambda made, _: made.entry,
            clock=lambda: MOMENT_S + topic.now_s + self.clock_off_s,
            ahead=AheadEntries(lambda: topic.now_s),
        )
        self.held = HeldEntries(self.registry, self.seen, self.displaced, self.check)
        list(self.held.restore())
        self.begin()
        topic.regions.append(self)

    def check(self, *message: object) -> None:
        check_by(self.keys)(*message)  # type: ignore[arg-type]

    def trust(self, keys: OperatorKeys) -> None:
        """Other keys are trusted now: everything is read again."""
        self.keys = keys
        list(self.held.look_at_doubtful())
        self.begin()

    def begin(self) -> None:
        """Read the topic from its beginning."""
        self.read = 0
        self.held.on_begin("acme")

    def end(self) -> None:
        """It is killed; its file stays."""
        self._topic.regions.remove(self)
        self.seen.__exit__(None, None, None)

    def turn(self) -> None:
        list(self.held.restore_late())
        if self.registry.take_due():
            self.begin()
        for message in self._topic.messages[self.read :]:
            self.held.take(message, self.registry.take(message, self.check))
        self.read = len(self._topic.messages)
        self.held.on_standing("acme", TopicStanding(is_current=True))
        for name in self.displaced.take_due("acme", 100):
            if (again := self.held.message(name)) is not None:
                self._topic.messages.append(again)


class Topic:
    """The registry's topic, and the regions that read it; a turn is a second."""

    def __init__(self, open_files: ExitStack) -> None:
        self.messages: list[TopicMessage] = []
        self.regions: list[Region] = []
        self.open_files, self.now_s = open_files, 0.0

    def run(self, seconds: int, each: Callable[[], object] = lambda: None) -> int:
        """How many messages came meanwhile."""
        before = len(self.messages)
        for _ in range(seconds):
            self.now_s += 1
            each()
            for region in self.regions:
                region.turn()
        return len(self.messages) - before


class Sent:
    """A producer that keeps what it is given."""

    def __init__(self, made: list[TopicMessage]) -> None:
        self._made = made

    def send(self, body: bytes, *, partition_key: str, properties: dict[str, str]) -> None:
        self._made.append(TopicMessage(partition_key, body, properties, 0))


def publisher_of(region: Region) -> AccessPublisher:
    settings = RegistrySettings(service_url="pulsar://nowhere:1", tenants=("acme",), unsigned=True)
    return AccessPublisher(settings, "eu", AccessKey(settings, "eu", None), region.displaced, region.held.message)


@pytest.fixture
def topic() -> Iterator[Topic]:
    with ExitStack() as open_files:
        yield Topic(open_files)


def without(message: TopicMessage, *names: str, **more: str) -> TopicMessage:
    kept: Mapping[str, str] = {key: value for key, value in message.properties.items() if key not in names}
    return message._replace(properties={**kept, **more})


def test_two_regions_that_disagree_send_a_handful_of_messages_and_both_say_so(topic: Topic, tmp_path: Path) -> None:
    eu, us = Region(topic, tmp_path / "eu"), Region(topic, tmp_path / "us", trusting(ANNA, ACCESS))
    topic.messages.append(ACTIVE)
    topic.run(5)
    topic.messages.append(REVOKED)
    last = list[TopicMessage]()
    assert topic.run(30) == 0, "keys that are being handed out make no noise"
    assert topic.run(HOUR_S, lambda: last.append(topic.messages[-1])) <= 6
    for _ in range(2):
        assert topic.run(HOUR_S, lambda: last.append(topic.messages[-1])) <= 2
    assert last.count(REVOKED) > 0.95 * len(last), "who begins anew finds the revocation, not a toss"
    for region, because in ((eu, "outranked"), (us, "unknown-key")):
        assert f"{NAME} was published again" in region.displaced.problem
        assert because in region.displaced.problem
        assert region.displaced.published[because] >= 3


def test_the_quarrel_is_over_when_the_key_is_known(topic: Topic, tmp_path: Path) -> None:
    eu, us = Region(topic, tmp_path / "eu"), Region(topic, tmp_path / "us", trusting(ANNA, ACCESS))
    topic.messages += [ACTIVE, REVOKED]
    topic.run(HOUR_S)
    assert us.displaced.problem
    us.trust(KEYS)
    assert topic.run(3 * HOUR_S) <= 1
    assert topic.messages[-1] == REVOKED
    assert us.registry.get(NAME) == eu.registry.get(NAME) == revoke(active(), change())
    assert (us.displaced.problem, eu.displaced.problem) == ("", "")


ENROLLED = signed(enrol(expected(), CERTIFICATE, change()), ACCESS, after_ms=5, on=expected())


@pytest.mark.parametrize(
    ("holds", "last"),
    [
        (REVOKED, ACTIVE),
        (REVOKED, without(REVOKED, SIGNATURE)),
        (REVOKED, REVOKED._replace(body=b"{}")),
        (REVOKED, REVOKED._replace(body=b"")),
        (REVOKED, without(REVOKED, "publication_id")),
        (REVOKED, without(REVOKED, reason="another")),
        (ENROLLED, without(ENROLLED, WARRANT)),
        (ACTIVE, without(ACTIVE, WARRANT)),
        (ACTIVE, without(ACTIVE, warrant=signed(active("acme"), after_ms=9).properties[WARRANT])),
    ],
    ids=["older", "unsigned", "altered", "empty", "no id", "other reason", "no warrant", "no warrant of an operator's",
         "another warrant of an operator's"],
)  # fmt: skip
def test_what_holds_comes_last_again_whatever_part_of_it_another_message_lacks(
    topic: Topic, tmp_path: Path, holds: TopicMessage, last: TopicMessage
) -> None:
    Region(topic, tmp_path / "eu")
    topic.messages += [holds, last]
    topic.run(100)
    assert topic.messages == [holds, last, holds]


def test_properties_that_nobody_signed_are_not_kept_and_not_published_again(topic: Topic, tmp_path: Path) -> None:
    region = Region(topic, tmp_path / "eu")
    topic.messages += [REVOKED, without(REVOKED, padding="x" * 1_000_000)]
    assert topic.run(100) == 0, "it says the same"
    topic.messages.append(ACTIVE)
    topic.run(100)
    assert topic.messages[-1] == REVOKED
    assert region.held.message(NAME) == REVOKED


def test_an_entry_that_the_disk_does_not_give_now_is_published_when_it_does(topic: Topic, tmp_path: Path) -> None:
    region, made = Region(topic, tmp_path / "eu"), list[TopicMessage]()
    publisher = publisher_of(region)
    topic.messages.append(REVOKED)
    topic.run(1)
    with closing(sqlite3.connect(tmp_path / "eu")) as other:
        other.execute("ALTER TABLE entries RENAME TO away")
        region.displaced.note(NAME, "outranked")
        for _ in range(3):
            publisher._send_again("acme", lambda: pytest.fail("there is nothing to send"))
        assert (region.displaced.published.total(), len(region.displaced)) == (0, 1)
        assert "no such table" in region.seen.problem
        other.execute("ALTER TABLE away RENAME TO entries")
    publisher._send_again("acme", lambda: Sent(made))
    assert [message.body for message in made] == [REVOKED.body]
    assert (region.displaced.published.total(), len(region.displaced)) == (1, 0)


def test_a_message_that_comes_once_more_and_one_that_is_in_the_middle_are_no_reason(
    topic: Topic, tmp_path: Path
) -> None:
    eu = Region(topic, tmp_path / "eu")
    topic.messages += [ACTIVE, without(ACTIVE, SIGNATURE), REVOKED, ACTIVE, without(REVOKED, SIGNATURE), REVOKED]
    assert topic.run(HOUR_S) == 0
    eu.trust(KEYS)
    assert topic.run(HOUR_S) == 0, "nor is the history, which is read again"


def test_what_is_held_is_not_published_when_its_own_key_is_trusted_no_more(topic: Topic, tmp_path: Path) -> None:
    eu = Region(topic, tmp_path / "eu")
    topic.messages += [ACTIVE, REVOKED]
    topic.run(5)
    eu.trust(trusting(ANNA, ACCESS))
    assert topic.run(HOUR_S) == 0


def test_a_strangers_flood_is_answered_at_a_pace_and_the_device_is_let_in_nowhere(topic: Topic, tmp_path: Path) -> None:
    regions = [Region(topic, tmp_path / name) for name in ("eu", "us", "asia")]
    topic.messages += [ACTIVE, REVOKED]
    topic.run(1)
    added = topic.run(600, lambda: topic.messages.append(ACTIVE))
    assert added - 600 <= 15 * len(regions)
    assert all("outranked" in region.displaced.problem for region in regions)
    assert topic.run(61) <= len(regions)
    assert topic.messages[-1] == REVOKED


def test_on_a_full_disk_no_older_entry_is_published_and_what_came_is_kept_when_there_is_room(
    topic: Topic, tmp_path: Path
) -> None:
    suspended = suspend(active(), change())
    older = [ACTIVE, signed(suspended, after_ms=1), signed(resume(suspended, change()), after_ms=2)]
    revoked = signed(revoke(resume(suspended, change()), change()), after_ms=3)
    eu = Region(topic, tmp_path / "eu")
    topic.messages += older
    topic.run(1)
    assert eu.seen._database is not None
    eu.seen._database.execute("PRAGMA query_only = ON")
    topic.messages.append(revoked)
    topic.run(5)
    assert "in memory alone" in eu.seen.problem
    eu.trust(trusting(ANNA, ACCESS))
    assert topic.run(100) == 0
    topic.messages.append(ACTIVE)
    topic.run(5)
    assert topic.messages[-1] == revoked, "from memory"
    eu.seen._database.execute("PRAGMA query_only = OFF")
    topic.run(5)
    assert (eu.seen.problem, eu.seen.message(NAME)) == ("", revoked)
    assert next(Region(topic, tmp_path / "eu").held.restore(), None) is None, "it was restored, as it began"


def test_what_the_disk_has_not_got_is_not_published_in_an_older_form(topic: Topic, tmp_path: Path) -> None:
    eu = Region(topic, tmp_path / "eu")
    topic.messages += [ACTIVE, REVOKED]
    topic.run(1)
    assert eu.seen._database is not None
    eu.seen._database.execute("DELETE FROM entries")
    eu.seen.keep(ACTIVE)
    topic.messages.append(without(REVOKED, SIGNATURE))
    assert topic.run(HOUR_S) == 0
    eu.trust(KEYS)
    topic.run(1)
    assert eu.seen.message(NAME) == REVOKED, "what holds is read again and kept"


def test_a_file_that_is_locked_at_the_start_is_read_when_it_is_free_and_holds_against_what_came(
    topic: Topic, tmp_path: Path
) -> None:
    first = Region(topic, tmp_path / "eu")
    topic.messages += [ACTIVE, REVOKED]
    topic.run(1)
    topic.regions.clear()
    first.seen.__exit__(None, None, None)
    topic.messages[:] = [ACTIVE]
    with closing(sqlite3.connect(tmp_path / "eu", isolation_level=None)) as lock:
        lock.execute("PRAGMA locking_mode = EXCLUSIVE")
        lock.execute("BEGIN EXCLUSIVE")
        again = Region(topic, tmp_path / "eu")
        topic.run(5)
        assert again.registry.get(NAME) == active()
        assert "locked" in again.seen.problem
    topic.run(5)
    assert again.registry.get(NAME) == revoke(active(), change())
    assert (topic.messages[-1], again.seen.problem) == (REVOKED, "")
    assert again.seen.message(NAME) == REVOKED
    assert [path.name for path in tmp_path.glob("*.damaged*")] == []


def test_a_renewal_is_published_again_with_its_warrant(topic: Topic, tmp_path: Path) -> None:
    Region(topic, tmp_path / "eu")
    entry = enrol(expected(), CERTIFICATE, change())
    renewed = renew(entry, CERTIFICATE.model_copy(update={"serial": "abc2"}), change())
    holds = signed(renewed, ACCESS, after_ms=9, on=expected())
    topic.messages += [ENROLLED, holds, ENROLLED]
    topic.run(3)
    assert topic.messages[-1] == holds
