"""What is noted is known after a restart, once, and nothing that was not noted whole."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest

from gateway.webhooks.deciding import HOUR_MS, PassDecision
from gateway.webhooks.digest import MAX_HELD, MAX_LISTED, HeldBack, digests_of, is_digest_due
from gateway.webhooks.errors import StateUnusable
from gateway.webhooks.notebook import MAX_OPEN_MS, MAX_SUMMARISED, NotificationBook
from geo.alerts import AlertRule

RULE = AlertRule.model_validate({"id": "acme/yard", "effective_from": "2026-01-01T00:00:00Z", "webhook": "ops"})
NIGHT = {"timezone": "UTC", "windows": [{"days": ["thu"], "from": "00:00", "until": "06:00"}]}
QUIET = RULE.model_copy(update={"quiet": type(RULE).model_validate(RULE.model_dump() | {"quiet": NIGHT}).quiet})


def held(number: int, at_ms: int = 1000, decision: PassDecision = PassDecision.QUIET) -> HeldBack:
    return HeldBack(f"{number:04}/provisional", at_ms, decision, "acme", "bus-1", "enter", "yard", 500)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state.sqlite"


def test_what_was_noted_is_known_after_a_restart(path: Path) -> None:
    with NotificationBook(path) as book, book.transaction():
        book.note_passed("acme/yard", "a", 1000)
        book.note_passed("acme/yard", "a", 2000)
        assert book.note_held("acme/yard", held(1), 0)
        assert not book.note_held("acme/yard", held(1), 0)
    with NotificationBook(path) as book:
        assert "a" in book.history("acme/yard")
        assert book.history("acme/yard").count(1000) == 1
        assert book.held("acme/yard") == ([held(1)], {})
        (digest,) = digests_of(RULE, *book.held("acme/yard"))
        with book.transaction():
            book.forget_held("acme/yard", [digest], 0)
    with NotificationBook(path) as book:
        assert book.rules_with_held() == []
        assert book.digests == {digest.key: digest}
        with book.transaction():
            book.forget_digest(digest.key)
    with NotificationBook(path) as book:
        assert book.digests == {}


def test_a_transaction_that_fails_leaves_nothing_on_disk(path: Path) -> None:
    def fails(book: NotificationBook) -> None:
        with book.transaction():
            book.note_passed("acme/yard", "a", 1000)
            raise ZeroDivisionError

    with NotificationBook(path) as book, pytest.raises(ZeroDivisionError):
        fails(book)
    with NotificationBook(path) as book:
        assert "a" not in book.history("acme/yard")


def test_what_passed_and_ended_an_hour_ago_is_forgotten_and_a_clock_that_was_ahead_is_no_lock(path: Path) -> None:
    with NotificationBook(path) as book:
        with book.transaction():
            book.forget_before(0, 0)
            for key, at_ms in (("old", 0), ("new", HOUR_MS), ("ahead", 1000 * HOUR_MS)):
                book.note_passed("acme/yard", key, at_ms)
        for key, at_ms in (("old", 0), ("new", HOUR_MS), ("ahead", 1000 * HOUR_MS)):
            book.note_ended([key], at_ms)
        with book.transaction():
            book.forget_before(HOUR_MS + 1, HOUR_MS + 1)
        assert "old" not in book.history("acme/yard")
        assert book.history("acme/yard").count(HOUR_MS + 1) == 2
    with NotificationBook(path) as book:
        assert book.history("acme/yard").count(2 * HOUR_MS + 1) == 0
        assert "old" not in book.history("acme/yard")
        with book.transaction():
            book.forget_before(2 * HOUR_MS + 1, 2 * HOUR_MS + 1)
        assert "new" in book.history("acme/yard"), "its acknowledgement may have been lost: it comes after the start"
        with book.transaction():
            book.forget_before(3 * HOUR_MS + 1, 3 * HOUR_MS + 1)
        assert "new" not in book.history("acme/yard")


def test_what_passed_and_is_not_acknowledged_is_known_for_as_long_as_it_may_come_again(path: Path) -> None:
    with NotificationBook(path) as book, book.transaction():
        book.note_passed("acme/yard", "open", 0)
    for at_ms in (2 * HOUR_MS, 48 * HOUR_MS, MAX_OPEN_MS - 1):
        with NotificationBook(path) as book:
            with book.transaction():
                book.forget_before(at_ms, at_ms)
            assert "open" in book.history("acme/yard")
            assert book.history("acme/yard").count(at_ms) == 0, "it counts for its own hour"
    with NotificationBook(path) as book:
        with book.transaction():
            book.forget_before(MAX_OPEN_MS, MAX_OPEN_MS)
        assert "open" not in book.history("acme/yard")


def test_of_many_that_were_held_back_some_are_listed_and_all_are_counted(path: Path) -> None:
    with NotificationBook(path) as book, book.transaction():
        for number in range(MAX_HELD + 7):
            book.note_held("acme/yard", held(number), 0)
    with NotificationBook(path) as book:
        (digest,) = digests_of(RULE, *book.held("acme/yard"))
        content = json.loads(digest.body)["digest"]
        assert content["held_back"] == MAX_HELD + 7
        assert len(content["messages"]) == MAX_LISTED
        assert content["by_kind"] == {"enter": MAX_HELD}


def test_a_file_of_another_program_or_version_is_refused_and_named(path: Path) -> None:
    path.write_bytes(b"no database " * 100)
    with pytest.raises(StateUnusable, match=r"state\.sqlite"), NotificationBook(path):
        pass
    path.unlink()
    with sqlite3.connect(path) as other:
        other.execute("PRAGMA user_version = 99")
    other.close()
    with pytest.raises(StateUnusable, match="version 99"), NotificationBook(path):
        pass


def test_a_summary_waits_until_it_is_not_quiet_and_an_hour_after_the_limit(path: Path) -> None:
    hour = 3_600_000  # 1970-01-01 was a Thursday
    assert not is_digest_due(QUIET, [held(1)], 5 * hour)
    assert is_digest_due(QUIET, [held(1)], 6 * hour)
    limited = [held(1), held(2, 1000, PassDecision.LIMIT)]
    assert not is_digest_due(RULE, limited, 1000 + hour - 1)
    assert is_digest_due(RULE, limited, 1000 + hour)
    assert not is_digest_due(RULE, [], 10 * hour)


def test_a_summary_is_the_same_however_often_it_is_made() -> None:
    several = [held(number, 1000 - number) for number in range(5)]
    (digest,) = digests_of(RULE, several, {})
    assert digests_of(RULE, several[::-1], {}) == [digest]
    assert digest.key.startswith("digest/acme/yard/acme/996-")


def test_an_alert_and_its_withdrawal_are_one_event_and_one_verdict(path: Path) -> None:
    withdrawn = held(1)._replace(key="0001/verdict-0", verdict="withdrawn")
    late = held(2)._replace(key="0002/verdict-0", verdict="late", kind="exit")
    unsaid = held(3)._replace(key="0003/verdict-1", verdict="withdrawn", kind=None, place=None)
    with NotificationBook(path) as book, book.transaction():
        for one in (held(1), withdrawn, late, unsaid):
            book.note_held("acme/yard", one, 0)
    with NotificationBook(path) as book:
        (digest,) = digests_of(RULE, *book.held("acme/yard"))
    content = json.loads(digest.body)["digest"]
    assert (content["by_kind"], content["by_verdict"]) == ({"enter": 1, "exit": 1}, {"late": 1, "withdrawn": 2})
    said = [(one["key"], one.get("verdict")) for one in content["messages"]]
    assert said == [
        ("0001/provisional", None),
        ("0001/verdict-0", "withdrawn"),
        ("0002/verdict-0", "late"),
        ("0003/verdict-1", "withdrawn"),
    ]


def test_each_tenant_has_a_summary_of_its_own(path: Path) -> None:
    with NotificationBook(path) as book, book.transaction():
        for number in range(MAX_HELD + 3):
            book.note_held("acme/yard", held(number), 0)
        book.note_held("acme/yard", held(9999)._replace(tenant="zeta", device="z-1"), 0)
    with NotificationBook(path) as book:
        acme, zeta = digests_of(RULE, *book.held("acme/yard"))
        assert (acme.tenant, zeta.tenant) == ("acme", "zeta")
        assert acme.key != zeta.key
        counts = [json.loads(one.body)["digest"]["held_back"] for one in (acme, zeta)]
        assert counts == [MAX_HELD + 3, 1]
        assert b"z-1" not in acme.body
        assert b"bus-1" not in zeta.body


def test_a_summary_of_other_messages_of_the_same_moment_is_another_one() -> None:
    """A clock that was set back comes to it twice."""
    (one,), (other,) = (digests_of(RULE, [held(number)], {}) for number in (1, 2))
    assert one.key != other.key


def test_what_stands_in_a_summary_or_is_counted_for_one_is_known_for_an_hour_of_a_steady_clock(path: Path) -> None:
    with NotificationBook(path) as book, book.transaction():
        book.forget_before(0, 0)
        for number in range(MAX_HELD + 2):
            book.note_held("acme/yard", held(number), 0)
        assert not book.note_held("acme/yard", held(MAX_HELD + 1), 0), "it was counted"
        assert book.held("acme/yard")[1] == {"acme": 2}
        book.forget_held("acme/yard", digests_of(RULE, *book.held("acme/yard")), 0)
    with NotificationBook(path) as book, book.transaction():
        assert all(book.is_held("acme/yard", held(number).key) for number in range(MAX_HELD + 2))
        book.forget_before(1000 * HOUR_MS, 2 * HOUR_MS)
        assert book.is_held("acme/yard", held(1).key), "whatever the clock says, and anew after each start"
        book.forget_before(1000 * HOUR_MS, 3 * HOUR_MS)
        assert not book.is_held("acme/yard", held(1).key)
    with NotificationBook(path) as book:
        assert not book.is_held("acme/yard", held(1).key)


def test_of_what_is_summarised_the_latest_are_known(path: Path) -> None:
    with NotificationBook(path) as book, book.transaction():
        for number in range(MAX_HELD + MAX_SUMMARISED + 3):
            book.note_held("acme/yard", held(number), number)
    with NotificationBook(path) as book:
        known = [book.is_held("acme/yard", held(MAX_HELD + number).key) for number in range(MAX_SUMMARISED + 3)]
        assert known == [False] * 3 + [True] * MAX_SUMMARISED


def test_a_clock_that_is_years_ahead_forgets_nothing_that_may_come_again(path: Path) -> None:
    with NotificationBook(path) as book, book.transaction():
        book.forget_before(0, 0)
        book.note_passed("acme/yard", "open", 0)
        book.forget_before(2 * MAX_OPEN_MS, 60_000)
        assert "open" in book.history("acme/yard")
