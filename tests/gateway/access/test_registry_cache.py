"""What a daemon has accepted is given up for nothing of lower rank, and comes last on the topic again.

Whatever order the topic is read in, whatever the clock says, whichever keys are trusted, and whatever the disk does.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.access.registry_cache import CacheUnavailable, RegistryCache
from tests.examples import examples
from tests.identity.makers import CERTIFICATE, MOMENT, active, change, expected, trusting
from tests.identity.test_registry_signing import ACCESS, ANNA, BOTH, KEYS, signed
from waybill.identity.operator_keys import OperatorKeys
from waybill.identity.registry import DeviceEntry, DeviceState, enrol, resume, revoke, suspend
from waybill.identity.registry_messages import WARRANT, check_by
from waybill.identity.registry_topic import DeviceRegistry
from waybill.identity.signatures import SIGNATURE
from waybill.pulsar.compacted_topic import TopicMessage, TopicStanding

NAME = "acme/bus-1"
HOUR_S, MINUTES_MS = 3600, 60_000
ACTIVE = signed(active(), BOTH)
SUSPENDED_ENTRY = suspend(active(), change())
SUSPENDED = signed(SUSPENDED_ENTRY, ANNA, after_ms=MINUTES_MS)
RESUMED = signed(resume(SUSPENDED_ENTRY, change()), ANNA, after_ms=2 * MINUTES_MS)
REVOKED_ENTRY = revoke(active(), change())
REVOKED = signed(REVOKED_ENTRY, ANNA, after_ms=10 * MINUTES_MS)
ENROLLED = signed(enrol(expected(), CERTIFICATE, change()), ACCESS, after_ms=MINUTES_MS, on=expected())
WITHOUT_ANNA = trusting(BOTH, ACCESS)


def without(message: TopicMessage, *names: str, **more: str) -> TopicMessage:
    kept = {key: value for key, value in message.properties.items() if key not in names}
    return message._replace(properties={**kept, **more})


class Region:
    """An access daemon as far as it reads the registry's topic and publishes there."""

    def __init__(self, topic: Topic, path: Path, keys: OperatorKeys = KEYS, clock_off_s: float = 0) -> None:
        self._topic, self.clock_off_s, self.keys = topic, clock_off_s, keys
        self.registry: DeviceRegistry[DeviceEntry] = DeviceRegistry(
            lambda made, _: made.entry,
            clock=lambda: MOMENT.timestamp() + topic.now_s + self.clock_off_s,
            monotonic=lambda: topic.now_s,
        )
        self.cache = RegistryCache(path, self.registry, self._check, lambda _: True, lambda: topic.now_s)
        topic.open_files.callback(self.cache.close)
        list(self.cache.restore())
        self.begin()
        topic.regions.append(self)

    def _check(self, *message: object) -> None:
        check_by(self.keys)(*message)  # type: ignore[arg-type]

    def begin(self) -> None:
        self.read = 0
        self.cache.on_begin("acme")

    def trust(self, keys: OperatorKeys) -> None:
        """Other keys are trusted now: everything is read again."""
        self.keys = keys
        self.begin()

    def end(self) -> None:
        """It is killed; its file stays."""
        self._topic.regions.remove(self)
        self.cache.close()

    def turn(self) -> None:
        if self.registry.is_to_be_read_again() or self.cache.take_read_again():
            self.begin()
        for message in self._topic.messages[self.read :]:
            self.cache.take(message, self.registry.take(message, self._check))
        self.read = len(self._topic.messages)
        self.cache.on_standing("acme", TopicStanding(is_current=True))
        due = self.cache.take_due("acme", 100)
        try:
            while due:
                if (again := self.cache.message(due[0])) is not None:
                    self._topic.messages.append(again)
                due.pop(0)
        except CacheUnavailable:
            self.cache.put_back(due)

    @property
    def state(self) -> str:
        entry = self.registry.get(NAME)
        return "" if entry is None else str(entry.state)


class Topic:
    """The registry's topic, and the regions that read it; a turn is a second."""

    def __init__(self, open_files: ExitStack) -> None:
        self.messages: list[TopicMessage] = []
        self.regions: list[Region] = []
        self.open_files, self.now_s = open_files, 1200.0

    def run(self, seconds: int, each: Callable[[], object] = lambda: None) -> int:
        before = len(self.messages)
        for _ in range(seconds):
            self.now_s += 1
            each()
            for region in self.regions:
                region.turn()
        return len(self.messages) - before


@pytest.fixture
def topic() -> Iterator[Topic]:
    with ExitStack() as open_files:
        yield Topic(open_files)


def after_restart(topic: Topic, path: Path, keys: OperatorKeys = KEYS, clock_off_s: float = 0) -> Region:
    """A daemon that has accepted all of the topic, and is started again."""
    first = Region(topic, path)
    topic.run(1)
    first.end()
    return Region(topic, path, keys, clock_off_s)


@given(st.permutations([ACTIVE, SUSPENDED, RESUMED, REVOKED]), st.permutations([ACTIVE, SUSPENDED, RESUMED, REVOKED]))
@settings(max_examples=examples(20), deadline=None)
def test_a_revoked_device_stays_so_after_a_restart_and_with_the_topic_read_again_in_any_order(
    first: list[TopicMessage], again: list[TopicMessage]
) -> None:
    with TemporaryDirectory() as folder, ExitStack() as open_files:
        topic = Topic(open_files)
        topic.messages += first
        region = after_restart(topic, Path(folder) / "eu")
        topic.messages[:] = again
        region.begin()
        topic.run(3)
        assert (region.state, topic.messages[-1]) == ("revoked", REVOKED)


@pytest.mark.parametrize("clock_off_s", [0.0, -1000.0, 100_000.0])
def test_an_older_signed_entry_that_is_all_the_topic_has_takes_no_place_after_a_restart(
    topic: Topic, tmp_path: Path, clock_off_s: float
) -> None:
    topic.messages += [ACTIVE, REVOKED]
    region = after_restart(topic, tmp_path / "eu", clock_off_s=clock_off_s)
    topic.messages[:] = [ACTIVE]
    topic.run(2)
    assert (region.state, topic.messages[-1]) == ("revoked", REVOKED)


@pytest.mark.parametrize(
    ("holds", "last"),
    [
        (REVOKED, ACTIVE),
        (REVOKED, without(REVOKED, SIGNATURE)),
        (REVOKED, REVOKED._replace(body=b"{}")),
        (REVOKED, without(REVOKED, "publication_id")),
        (REVOKED, without(REVOKED, reason="another")),
        (ENROLLED, without(ENROLLED, WARRANT)),
        (ACTIVE, without(ACTIVE, warrant=signed(active("acme"), after_ms=9).properties[WARRANT])),
    ],
    ids=["older", "unsigned", "altered", "no id", "other reason", "no warrant", "another warrant"],
)
def test_what_holds_comes_last_again_whatever_part_of_it_another_message_lacks(
    topic: Topic, tmp_path: Path, holds: TopicMessage, last: TopicMessage
) -> None:
    region = Region(topic, tmp_path / "eu")
    topic.messages += [without(holds, unsigned="x" * 100), last]
    topic.run(120)
    assert (topic.messages[-1], region.cache.published_again) == (holds, 1), "and no property that nobody signed"


def test_two_regions_that_disagree_send_a_bounded_number_of_messages_and_agree_when_the_key_is_known(
    topic: Topic, tmp_path: Path
) -> None:
    eu, us = Region(topic, tmp_path / "eu"), Region(topic, tmp_path / "us", WITHOUT_ANNA)
    topic.messages.append(ACTIVE)
    topic.run(5)
    topic.messages.append(REVOKED)
    assert topic.run(50) == 0, "keys that are being handed out make no noise"
    last = list[TopicMessage]()
    assert topic.run(HOUR_S, lambda: last.append(topic.messages[-1])) <= 120
    assert last.count(REVOKED) > 0.4 * len(last)
    us.trust(KEYS)
    topic.run(120)
    assert topic.run(3 * HOUR_S) == 0
    assert (topic.messages[-1], eu.state, us.state) == (REVOKED, "revoked", "revoked")
    assert (us.cache.problem, eu.cache.problem) == ("", "")


def test_a_topic_that_is_lost_is_written_again_by_one_region_and_not_by_each(topic: Topic, tmp_path: Path) -> None:
    regions = [Region(topic, tmp_path / name) for name in ("eu", "us")]
    topic.messages += [ACTIVE, REVOKED]
    topic.run(1)
    topic.messages.clear()
    for region in regions:
        region.begin()
    assert (topic.run(5), topic.messages) == (1, [REVOKED])
    assert [region.cache.problem for region in regions] == ["", ""]


def test_by_keys_that_are_trusted_no_more_nobody_is_let_in_and_nobody_who_is_locked_out_comes_back(
    topic: Topic, tmp_path: Path
) -> None:
    topic.messages += [ACTIVE, SUSPENDED]
    region = after_restart(topic, tmp_path / "eu", WITHOUT_ANNA)
    topic.run(1)
    assert (region.state, "key that is not trusted now" in region.cache.problem) == ("suspended", True)
    region.end()
    topic.messages.append(RESUMED)
    region = after_restart(topic, tmp_path / "eu", WITHOUT_ANNA)
    topic.run(1)
    assert (region.state, topic.messages[-1]) == ("", RESUMED), "neither in nor replaced by anything older"
    region.trust(KEYS)
    topic.run(1)
    assert (region.state, region.cache.problem) == ("active", "")


def test_a_key_that_is_taken_out_while_the_daemon_runs_is_named_and_nothing_older_is_taken(
    topic: Topic, tmp_path: Path
) -> None:
    region = Region(topic, tmp_path / "eu")
    topic.messages += [ACTIVE, SUSPENDED]
    topic.run(1)
    region.trust(WITHOUT_ANNA)
    topic.run(120)
    assert (region.state, topic.messages[-1]) == ("suspended", SUSPENDED)
    assert "key that is not trusted now" in region.cache.problem


def test_what_is_dated_ahead_of_our_clock_is_read_again_when_the_clock_was_set_right(
    topic: Topic, tmp_path: Path
) -> None:
    region = Region(topic, tmp_path / "eu", clock_off_s=-1000)
    topic.messages += [ACTIVE, REVOKED]
    topic.run(1)
    assert (region.state, "ahead of this machine's clock" in region.registry.problem) == ("active", True)
    assert topic.run(HOUR_S // 10) == 0, "nothing older is published over it"
    region.clock_off_s = 0
    topic.run(2)
    assert (region.state, region.registry.problem) == ("revoked", "")


@pytest.mark.parametrize("damage", [b"x" * 100_000, b"no database"])
def test_a_damaged_file_ends_the_start_and_is_moved_away_and_the_next_one_builds_it_from_the_topic(
    topic: Topic, tmp_path: Path, damage: bytes
) -> None:
    topic.messages += [ACTIVE, REVOKED]
    first = Region(topic, tmp_path / "eu.sqlite")
    topic.run(1)
    first.end()
    (tmp_path / "eu.sqlite").write_bytes(damage)
    with pytest.raises(CacheUnavailable):
        Region(topic, tmp_path / "eu.sqlite")
    assert (tmp_path / "eu.damaged").read_bytes() == damage
    region = Region(topic, tmp_path / "eu.sqlite")
    topic.run(5)
    assert (region.state, region.cache.message(NAME)) == ("revoked", REVOKED)


def test_one_row_that_nobody_can_read_hides_no_other(topic: Topic, tmp_path: Path) -> None:
    other = signed(active("acme", "bus-2"), BOTH)
    topic.messages += [REVOKED, other]
    first = Region(topic, tmp_path / "eu")
    topic.run(1)
    first.end()
    with closing(sqlite3.connect(tmp_path / "eu", isolation_level=None)) as database:
        database.execute("UPDATE entries SET properties = 'x' WHERE name = 'acme/bus-2'")
    topic.messages[:] = [other]
    region = Region(topic, tmp_path / "eu")
    topic.run(1)
    assert (region.state, region.cache.message("acme/bus-2")) == ("revoked", other)


def test_while_the_disk_takes_nothing_no_older_entry_is_published_nor_given_and_then_all_is_kept(
    topic: Topic, tmp_path: Path
) -> None:
    region = Region(topic, tmp_path / "eu")
    topic.messages.append(ACTIVE)
    topic.run(1)
    with closing(sqlite3.connect(tmp_path / "eu", isolation_level=None)) as lock:
        lock.execute("BEGIN IMMEDIATE")
        topic.messages += [REVOKED, ACTIVE]
        topic.run(3)
        assert (region.state, topic.messages[-1]) == ("revoked", ACTIVE)
        assert "locked" in region.cache.problem
        with pytest.raises(CacheUnavailable):
            region.cache.publication(NAME)
        lock.execute("ROLLBACK")
    topic.run(120)
    assert (topic.messages[-1], region.cache.message(NAME), region.cache.problem) == (REVOKED, REVOKED, "")


def test_a_daemon_does_not_start_without_what_it_has_accepted(topic: Topic, tmp_path: Path) -> None:
    topic.messages += [ACTIVE, REVOKED]
    first = Region(topic, tmp_path / "eu")
    topic.run(1)
    first.end()
    topic.messages[:] = [ACTIVE]
    with closing(sqlite3.connect(tmp_path / "eu", isolation_level=None)) as lock:
        lock.execute("PRAGMA locking_mode = EXCLUSIVE")
        lock.execute("BEGIN EXCLUSIVE")
        with pytest.raises(CacheUnavailable):
            Region(topic, tmp_path / "eu")
    region = Region(topic, tmp_path / "eu")
    topic.run(5)
    assert (region.state, region.cache.message(NAME)) == ("revoked", REVOKED)


MESSAGES = [signed(expected()), ENROLLED, ACTIVE, SUSPENDED, RESUMED, REVOKED, without(REVOKED, SIGNATURE)]
lives = st.lists(
    st.tuples(
        st.sampled_from([KEYS, WITHOUT_ANNA, trusting(ANNA, ACCESS), trusting(ACCESS)]),
        st.sampled_from([0.0, -400.0, -100_000.0, 100_000.0]),
        st.lists(st.sampled_from(MESSAGES), max_size=4),
    ),
    min_size=1,
    max_size=5,
)


@given(lives)
@settings(max_examples=examples(30), deadline=None)
def test_whatever_a_daemon_lives_through_what_it_holds_never_sinks_in_rank(
    lives: list[tuple[OperatorKeys, float, list[TopicMessage]]],
) -> None:
    with TemporaryDirectory() as folder, ExitStack() as open_files:
        topic, was_revoked, rank = Topic(open_files), False, None
        for keys, clock_off_s, messages in lives:
            region = Region(topic, Path(folder) / "eu", keys, clock_off_s)
            for message in messages:
                topic.messages.append(message)
                topic.run(70)
                held = region.registry.precedence(NAME)
                assert rank is None or held is None or held >= rank
                rank = held or rank
                was_revoked |= region.state == DeviceState.REVOKED
                assert was_revoked <= (region.state == DeviceState.REVOKED), "who was locked out for good stays so"
            region.end()
            topic.messages.clear()
