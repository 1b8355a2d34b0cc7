"""A decision follows from quiet hours, limit and what was decided before; all of that is known after a restart."""

import json
import sqlite3
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.errors import GatewayError
from gateway.webhooks.notebook import (
    HOUR_MS,
    KNOWN_MS,
    MAX_HELD,
    MAX_LISTED,
    HeldBack,
    NotificationBook,
    PassDecision,
    digests_of,
    is_digest_due,
)
from geo.alerts import AlertRule
from tests.examples import examples

NIGHT = {
    "timezone": "Europe/Berlin",
    "windows": [{"days": ["mon", "tue", "wed", "thu", "fri", "sat", "sun"], "from": "22:00", "until": "06:00"}],
}
NOON_MS = 12 * HOUR_MS
NIGHT_MS = 23 * HOUR_MS


def rule(**more: Any) -> AlertRule:
    plain = {"id": "acme/yard", "effective_from": "1971-01-01T00:00:00Z", "webhook": "ops"}
    return AlertRule.model_validate(plain | more)


QUIET, LIMITED = rule(quiet=NIGHT), rule(max_per_hour=1)


def message(number: int, **more: Any) -> HeldBack:
    plain = HeldBack(f"{number:04}/provisional", 0, "", "acme", "bus-1", "enter", "yard", 500)
    return plain._replace(**more)


def ms(text: str) -> int:
    return round(datetime.fromisoformat(text).timestamp() * 1000)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state.sqlite"


@pytest.fixture
def book() -> Iterator[NotificationBook]:
    with NotificationBook(Path(":memory:")) as made:
        yield made


def held(*several: HeldBack, at_ms: int = NIGHT_MS) -> list[HeldBack]:
    return [one._replace(at_ms=at_ms, decision="quiet") for one in several]


def hold(book: NotificationBook, *several: HeldBack, one: AlertRule = QUIET, at_ms: int = NIGHT_MS) -> None:
    with book.transaction():
        for each in several:
            assert book.decide(one, each, at_ms)[0] is not PassDecision.SEND


TIMES = st.lists(st.integers(0, 3 * HOUR_MS), max_size=60).map(lambda gaps: [sum(gaps[:n]) for n in range(len(gaps))])


@given(st.integers(1, 10), TIMES)
@settings(max_examples=examples(60), deadline=None)
def test_in_no_hour_more_pass_than_the_limit_and_none_is_held_back_with_room(most: int, times: list[int]) -> None:
    sent: list[int] = []
    with NotificationBook(Path(":memory:")) as book:
        for number, now_ms in enumerate(times):
            decision, is_new = book.decide(rule(max_per_hour=most), message(number), now_ms)
            within = sum(now_ms - HOUR_MS < at_ms for at_ms in sent)
            assert (decision, is_new) == (PassDecision.SEND if within < most else PassDecision.LIMIT, True)
            sent += [now_ms] if decision is PassDecision.SEND else []


def test_what_was_decided_is_decided_alike_when_it_comes_again_and_counts_once(path: Path) -> None:
    limited = rule(max_per_hour=2)
    for _ in range(3):
        with NotificationBook(path) as book, book.transaction():
            assert [book.decide(limited, message(number), NOON_MS)[0] for number in range(3)] == [
                "send",
                "send",
                "limit",
            ]
            # however late, within a day, and whatever the time is
            assert book.decide(limited, message(0), NOON_MS + KNOWN_MS - 1) == (PassDecision.SEND, False)
            assert book.decide(limited, message(2), NOON_MS + HOUR_MS) == (PassDecision.LIMIT, False)
    with NotificationBook(path) as book:
        book.forget_before(NOON_MS + KNOWN_MS - 1)
        assert not book.decide(limited, message(0), NOON_MS + KNOWN_MS)[1]
        book.forget_before(NOON_MS + KNOWN_MS)
        assert book.decide(limited, message(0), NOON_MS + KNOWN_MS)[1]
        assert not book.decide(limited, message(2), NOON_MS + KNOWN_MS)[1], "it waits for its summary"


def test_nothing_passes_while_it_is_quiet_by_the_local_clock(book: NotificationBook) -> None:
    times = {
        "2026-12-01T21:59:59+01:00": "send",
        "2026-12-01T22:00:00+01:00": "quiet",
        "2026-12-02T05:59:59+01:00": "quiet",
        "2026-12-02T06:00:00+01:00": "send",
        # in summer an hour earlier by UTC
        "2026-07-01T20:30:00Z": "quiet",
        "2026-12-01T20:30:00Z": "send",
    }
    assert {text: book.decide(QUIET, message(n), ms(text))[0] for n, text in enumerate(times)} == times
    # the night of a change is an hour shorter or longer
    for night, hours in (("2026-03-28", 7), ("2026-10-24", 9)):
        start = ms(f"{night}T12:00:00Z")
        assert sum(QUIET.is_quiet_at(start + minute * 60_000) for minute in range(24 * 60)) == hours * 60


def test_a_clock_that_was_ahead_and_is_set_back_fills_no_hour(book: NotificationBook) -> None:
    assert book.decide(LIMITED, message(0), 365 * 24 * HOUR_MS)[0] == "send"
    assert book.decide(LIMITED, message(1), NOON_MS)[0] == "send"


def test_what_was_held_back_waits_for_its_summary_and_a_summary_for_its_delivery(path: Path) -> None:
    with NotificationBook(path) as book:
        hold(book, message(1))
    with NotificationBook(path) as book:
        assert (book.rules_with_held(), book.held("acme/yard")) == (["acme/yard"], (held(message(1)), {"acme": 0}))
        digests = digests_of(QUIET, *book.held("acme/yard"))
        with book.transaction():
            book.summarise("acme/yard", digests)
    with NotificationBook(path) as book:
        assert (book.rules_with_held(), book.digests()) == ([], digests)
        assert book.decide(QUIET, message(1), NOON_MS) == (PassDecision.QUIET, False), "it is not said twice"
        book.forget_digests([digests[0].key])
    with NotificationBook(path) as book:
        assert book.digests() == []


def test_a_rule_without_summaries_holds_nothing_for_one(book: NotificationBook) -> None:
    hold(book, message(1), one=rule(quiet=NIGHT, digest=False))
    assert book.rules_with_held() == []


def test_a_transaction_that_fails_leaves_nothing_on_disk(path: Path) -> None:
    def fails(book: NotificationBook) -> None:
        with book.transaction():
            book.decide(QUIET, message(1), NIGHT_MS)
            raise ZeroDivisionError

    with NotificationBook(path) as book, pytest.raises(ZeroDivisionError):
        fails(book)
    with NotificationBook(path) as book:
        assert book.rules_with_held() == []


def test_a_file_of_another_program_or_version_is_refused_and_named(path: Path) -> None:
    path.write_bytes(b"no database " * 100)
    with pytest.raises(GatewayError, match=r"state\.sqlite"), NotificationBook(path):
        pass
    path.unlink()
    with sqlite3.connect(path) as other:
        other.execute("PRAGMA user_version = 99")
    other.close()
    with pytest.raises(GatewayError, match="version 99"), NotificationBook(path):
        pass


def test_a_summary_waits_until_it_is_not_quiet_and_an_hour_after_the_limit() -> None:
    assert not is_digest_due(QUIET, held(message(1)), 5 * HOUR_MS - 1)
    assert is_digest_due(QUIET, held(message(1)), 5 * HOUR_MS)
    limited = [*held(message(1)), message(2, at_ms=NOON_MS, decision="limit")]
    assert not is_digest_due(LIMITED, limited, NOON_MS + HOUR_MS - 1)
    assert is_digest_due(LIMITED, limited, NOON_MS + HOUR_MS)
    assert not is_digest_due(LIMITED, [], NOON_MS)


def test_a_rule_that_is_always_quiet_keeps_its_messages_for_a_week_at_most() -> None:
    always = rule(
        quiet={
            "timezone": "UTC",
            "windows": [{"days": ["mon", "tue", "wed", "thu", "fri", "sat", "sun"], "from": "00:00", "until": "24:00"}],
        }
    )
    assert not is_digest_due(always, held(message(1)), NIGHT_MS + 7 * 24 * HOUR_MS - 1)
    assert is_digest_due(always, held(message(1)), NIGHT_MS + 7 * 24 * HOUR_MS)


def test_a_summary_is_the_same_however_often_it_is_made_and_another_of_other_messages() -> None:
    several = held(*(message(number) for number in range(5)))
    (digest,) = digests_of(QUIET, several, {})
    assert digests_of(QUIET, several[::-1], {}) == [digest]
    assert digest.key.startswith(f"digest/acme/yard/acme/{NIGHT_MS}-")
    assert digests_of(QUIET, several[1:], {})[0].key != digest.key


def test_each_tenant_has_a_summary_of_its_own_that_lists_some_and_counts_all(book: NotificationBook) -> None:
    hold(book, *(message(number) for number in range(MAX_HELD + 3)), message(9999, tenant="zeta", device="z-1"))
    acme, zeta = digests_of(QUIET, *book.held("acme/yard"))
    assert (acme.tenant, zeta.tenant) == ("acme", "zeta")
    contents = [json.loads(one.body)["digest"] for one in (acme, zeta)]
    assert [one["held_back"] for one in contents] == [MAX_HELD + 3, 1]
    assert [len(one["messages"]) for one in contents] == [MAX_LISTED, 1]
    assert contents[0]["by_kind"] == {"enter": MAX_HELD}
    assert b"z-1" not in acme.body
    assert b"bus-1" not in zeta.body


def test_an_alert_and_its_withdrawal_are_one_event_and_one_verdict() -> None:
    withdrawn = message(1, key="0001/verdict-0", verdict="withdrawn")
    late = message(2, key="0002/verdict-0", verdict="late", kind="exit")
    unsaid = message(3, key="0003/verdict-1", verdict="withdrawn", kind=None, place=None)
    (digest,) = digests_of(QUIET, held(message(1), withdrawn, late, unsaid), {})
    content = json.loads(digest.body)["digest"]
    assert (content["by_kind"], content["by_verdict"]) == ({"enter": 1, "exit": 1}, {"late": 1, "withdrawn": 2})
    said = [(one["key"], one.get("verdict")) for one in content["messages"]]
    assert said == [
        ("0001/provisional", None),
        ("0001/verdict-0", "withdrawn"),
        ("0002/verdict-0", "late"),
        ("0003/verdict-1", "withdrawn"),
    ]
