"""What was taken once is given up for nothing of lower rank, whatever the clock says and whichever keys are trusted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.access.kept_entries import rank_of
from tests.examples import examples
from tests.gateway.access.test_held_entries import HOUR_S, NAME, Region, Topic, without
from tests.identity.operators import trusting
from tests.identity.registry_strategies import CERTIFICATE, active, change, expected
from tests.identity.test_registry_signing import ACCESS, ANNA, BOTH, KEYS, signed
from waybill.identity.registry import DeviceState, Precedence, enrol, resume, revoke, suspend
from waybill.identity.registry_messages import DevicePublication
from waybill.identity.signatures import SIGNATURE
from waybill.pulsar.compacted_topic import TopicMessage

MINUTES_MS = 60_000
ACTIVE = signed(active(), BOTH)
SUSPENDED_ENTRY = suspend(active(), change())
SUSPENDED = signed(SUSPENDED_ENTRY, ANNA, after_ms=MINUTES_MS)
RESUMED_ENTRY = resume(SUSPENDED_ENTRY, change())
RESUMED = signed(RESUMED_ENTRY, ANNA, after_ms=2 * MINUTES_MS)
REVOKED_ENTRY = revoke(active(), change())
REVOKED = signed(REVOKED_ENTRY, ANNA, after_ms=10 * MINUTES_MS)
WITHOUT_ANNA = trusting(BOTH, ACCESS)
BEHIND_S = -400.0


@pytest.fixture
def topic() -> Iterator[Topic]:
    with ExitStack() as open_files:
        made = Topic(open_files)
        made.now_s = 1200.0
        yield made


def after_restart(topic: Topic, path: Path, **how: object) -> Region:
    """A daemon that has taken all of the topic, and is started again."""
    first = Region(topic, path)
    topic.run(1)
    first.end()
    return Region(topic, path, **how)  # type: ignore[arg-type]


def test_a_daemon_that_starts_with_its_clock_behind_holds_what_it_had_and_publishes_nothing_older(
    topic: Topic, tmp_path: Path
) -> None:
    topic.messages += [ACTIVE, REVOKED]
    again = after_restart(topic, tmp_path / "eu", clock_off_s=-1000.0)
    assert again.registry.get(NAME) == REVOKED_ENTRY
    assert topic.run(HOUR_S) == 0
    assert again.registry.get(NAME) == REVOKED_ENTRY
    assert again.seen.message(NAME) == REVOKED


def test_over_an_entry_that_is_ahead_of_our_clock_nothing_older_is_published(topic: Topic, tmp_path: Path) -> None:
    topic.messages += [ACTIVE, REVOKED]
    us = Region(topic, tmp_path / "us", clock_off_s=-100_000.0)
    us.registry._clock = lambda: 0
    us.registry.hold(DevicePublication(active(), ACTIVE.properties["publication_id"]), ACTIVE)
    us.seen.keep(ACTIVE)
    topic.messages.append(without(REVOKED, SIGNATURE))
    assert topic.run(HOUR_S) == 0
    assert "ahead of this machine's clock" in us.registry.problem
    assert NAME in us.registry.problem
    assert "dated ahead" in us.held.doubt(NAME)


def test_what_was_ahead_of_our_clock_is_read_again_as_soon_as_it_is_not(topic: Topic, tmp_path: Path) -> None:
    topic.messages += [ACTIVE, REVOKED]
    topic.now_s = 600
    eu = Region(topic, tmp_path / "eu", clock_off_s=BEHIND_S)
    topic.run(50)
    assert eu.registry.get(NAME) == active()
    assert "2026-11-23 12:10:00" in eu.registry.problem
    topic.run(60)
    assert (eu.registry.get(NAME), eu.registry.problem, eu.held.doubt(NAME)) == (REVOKED_ENTRY, "", "")
    assert topic.messages == [ACTIVE, REVOKED]
    late = Region(topic, tmp_path / "us", clock_off_s=-HOUR_S)
    topic.run(5)
    assert late.registry.get(NAME) is None
    late.clock_off_s = 0.0
    topic.run(2)
    assert late.registry.get(NAME) == REVOKED_ENTRY, "the clock was set"


def test_what_a_stranger_dates_ahead_is_not_waited_for(topic: Topic, tmp_path: Path) -> None:
    eu = Region(topic, tmp_path / "eu")
    topic.messages += [ACTIVE, without(signed(REVOKED_ENTRY, after_ms=10**9), SIGNATURE)]
    topic.run(5)
    assert eu.registry.problem == ""
    assert topic.run(100) == 1, "what holds comes last again"


def test_a_start_beside_keys_that_lack_one_leaves_who_was_locked_out_so_and_names_the_device(
    topic: Topic, tmp_path: Path
) -> None:
    topic.messages += [ACTIVE, REVOKED]
    again = after_restart(topic, tmp_path / "eu", keys=WITHOUT_ANNA)
    assert again.registry.get(NAME) == REVOKED_ENTRY
    topic.messages.append(ACTIVE)
    topic.run(HOUR_S)
    assert again.seen.message(NAME) == REVOKED
    assert topic.messages[-1] == REVOKED, "not the older one"
    assert f"{NAME} was revoked by a key that is not trusted now (unknown-key)" in again.held.problem
    assert again.held.doubt(NAME)
    again.trust(KEYS)
    topic.run(1)
    assert (again.held.problem, again.held.doubt(NAME)) == ("", "")


def test_who_was_let_in_by_a_key_that_is_not_trusted_now_is_not_and_nothing_older_takes_the_place(
    topic: Topic, tmp_path: Path
) -> None:
    topic.messages += [ACTIVE, SUSPENDED, RESUMED]
    again = after_restart(topic, tmp_path / "eu", keys=WITHOUT_ANNA)
    topic.messages[:] = [ACTIVE]
    assert topic.run(HOUR_S) == 0
    assert (again.registry.get(NAME), again.seen.message(NAME)) == (None, RESUMED)
    assert f"{NAME} was active by a key that is not trusted now" in again.held.problem
    again.trust(KEYS)
    topic.run(1)
    assert again.registry.get(NAME) == RESUMED_ENTRY, "though the topic has lost it"
    assert topic.messages[-1] == RESUMED
    assert again.held.problem == ""


@pytest.mark.parametrize("by", [REVOKED, RESUMED], ids=["locked out", "let in"])
def test_what_is_in_doubt_is_decided_by_whoever_signs_it_anew(topic: Topic, tmp_path: Path, by: TopicMessage) -> None:
    topic.messages += [ACTIVE, by]
    again = after_restart(topic, tmp_path / "eu", keys=WITHOUT_ANNA)
    entry = REVOKED_ENTRY if by is REVOKED else RESUMED_ENTRY
    anew = signed(entry, BOTH, after_ms=15 * MINUTES_MS)
    topic.messages.append(anew)
    topic.run(2)
    assert (again.registry.get(NAME), again.seen.message(NAME), again.held.problem) == (entry, anew, "")


def test_a_key_that_is_taken_out_while_the_daemon_runs_puts_what_it_signed_in_doubt_too(
    topic: Topic, tmp_path: Path
) -> None:
    eu = Region(topic, tmp_path / "eu")
    topic.messages += [ACTIVE, REVOKED]
    topic.run(1)
    eu.trust(WITHOUT_ANNA)
    topic.run(1)
    assert eu.registry.get(NAME) == REVOKED_ENTRY
    assert f"{NAME} was revoked by a key" in eu.held.problem


def test_what_the_topic_has_lost_is_published_again_whole_and_named_until_it_is_there(
    topic: Topic, tmp_path: Path
) -> None:
    other = signed(active("acme", "bus-2"), BOTH)
    topic.messages += [ACTIVE, REVOKED, other]
    again = after_restart(topic, tmp_path / "eu")
    topic.messages.clear()
    again.turn()
    assert "2 devices are known here and not on the topic" in again.held.problem
    topic.run(2)
    assert sorted(topic.messages) == sorted([REVOKED, other])
    assert again.held.problem == ""
    assert topic.run(HOUR_S) == 0


def test_a_topic_that_is_lost_is_written_again_by_one_region_and_not_by_each(topic: Topic, tmp_path: Path) -> None:
    messages = [signed(active("acme", f"bus-{number}"), BOTH) for number in range(20)]
    topic.messages += messages
    regions = [Region(topic, tmp_path / name) for name in ("eu", "us")]
    topic.run(1)
    for region in regions:
        region.end()
    topic.messages.clear()
    for name in ("eu", "us"):
        Region(topic, tmp_path / name)
    topic.run(HOUR_S)
    assert sorted(topic.messages) == sorted(messages)


def test_what_came_while_the_file_could_not_be_read_does_not_replace_what_ranks_above_it(
    topic: Topic, tmp_path: Path
) -> None:
    import sqlite3  # noqa: PLC0415

    topic.messages += [ACTIVE, REVOKED]
    first = Region(topic, tmp_path / "eu")
    topic.run(1)
    first.end()
    topic.messages[:] = [ACTIVE]
    with closing(sqlite3.connect(tmp_path / "eu", isolation_level=None)) as lock:
        lock.execute("PRAGMA locking_mode = EXCLUSIVE")
        lock.execute("BEGIN EXCLUSIVE")
        again = Region(topic, tmp_path / "eu", keys=WITHOUT_ANNA)
        topic.run(1)
        assert again.registry.get(NAME) == active()
    topic.run(5)
    assert again.registry.get(NAME) == REVOKED_ENTRY
    assert again.seen.message(NAME) == REVOKED


ENROLLED = signed(enrol(expected(), CERTIFICATE, change()), ACCESS, after_ms=MINUTES_MS, on=expected())
MESSAGES = [signed(expected()), ENROLLED, ACTIVE, SUSPENDED, RESUMED, REVOKED, without(REVOKED, SIGNATURE)]
lives = st.lists(
    st.tuples(
        st.sampled_from([KEYS, WITHOUT_ANNA, trusting(ANNA, ACCESS), trusting(ACCESS)]),
        st.sampled_from([0.0, BEHIND_S, -1000.0, -100_000.0, 100_000.0]),
        st.lists(st.sampled_from(MESSAGES), max_size=4),
    ),
    min_size=1,
    max_size=5,
)


@given(lives)
@settings(max_examples=examples(60), deadline=None)
def test_whatever_a_daemon_lives_through_what_it_keeps_never_sinks_in_rank(
    lives: list[tuple[object, float, list[TopicMessage]]],
) -> None:
    with TemporaryDirectory() as folder, ExitStack() as open_files:
        topic, was_revoked = Topic(open_files), False
        kept: TopicMessage | None = None
        topic.now_s = 1200.0
        for keys, clock_off_s, messages in lives:
            region = Region(topic, Path(folder) / "eu", keys, clock_off_s)  # type: ignore[arg-type]
            assert was_revoked <= _is_revoked(region), "who was locked out for good stays so"
            for message in messages:
                topic.messages.append(message)
                found = _kept_after_a_while(topic, region)
                assert kept is None or _rank(found) >= _rank(kept)
                kept = found
                was_revoked |= _is_revoked(region)
                assert was_revoked <= _is_revoked(region)
            region.end()
            topic.messages.clear()


def _rank(message: TopicMessage | None) -> Precedence:
    assert message is not None
    rank = rank_of(message)
    assert rank is not None
    return rank


def _is_revoked(region: Region) -> bool:
    entry = region.registry.get(NAME)
    return entry is not None and entry.state is DeviceState.REVOKED


def _kept_after_a_while(topic: Topic, region: Region) -> TopicMessage | None:
    """What a region keeps after it ran for a while, in which it published nothing that ranks below that."""
    before = len(topic.messages)
    topic.run(300)
    found = region.seen.message(NAME)
    assert all(_rank(message) == _rank(found) for message in topic.messages[before:])
    return found
