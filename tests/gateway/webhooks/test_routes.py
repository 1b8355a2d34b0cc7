"""Who hears of what: by the rule, and by whose the device was when it happened."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.webhooks.notification import Notification, alert_notification, body_of, verdict_notification
from gateway.webhooks.rule_book import AccountDevices, RuleBook, routes, usable_devices
from gateway.webhooks.tail import SeenAlert, json_line
from geo.alerts import (
    Alert,
    AlertVerdict,
    FinalEvent,
    MalformedAlert,
    VerdictKind,
    encode_alert,
    encode_verdict,
    usable_rule,
)
from geo.reference.in_force import HeldVersion

DAY_MS = 86_400_000
T0 = round(datetime(2026, 12, 1, tzinfo=UTC).timestamp() * 1000)


def day(number: int) -> str:
    return datetime.fromtimestamp((T0 + number * DAY_MS) / 1000, UTC).isoformat()


def account(
    name: str, begin: int, *devices: tuple[str, int, int | None], parent: str | None = None
) -> HeldVersion[Any]:
    assigned = [
        {"tenant": "acme", "device": device, "region": "eu", "begin": day(since)}
        | ({} if until is None else {"end": day(until)})
        for device, since, until in devices
    ]
    body = {"id": name, "effective_from": day(begin), "tariff": "t", "devices": assigned, "name": name}
    begin_ms, made = usable_devices(json.dumps(body | ({} if parent is None else {"parent": parent})))
    return HeldVersion({}, made, begin_ms)


def rules(*several: dict[str, Any]) -> RuleBook:
    found = []
    for one in several:
        begin, made = usable_rule(json.dumps({"effective_from": day(-30), "webhook": "ops"} | one))
        found.append(HeldVersion({}, made, begin))
    return RuleBook(found)


def alert(device: str = "bus-1", at: int = 0, **more: Any) -> Alert:
    plain = {
        "id": "0" * 24,
        "tenant": "acme",
        "device": device,
        "region": "eu",
        "epoch": 1,
        "seq": 2,
        "kind": "enter",
        "place": "yard",
        "t_ms": T0 + at * DAY_MS,
        "received_ms": T0 + at * DAY_MS + 500,
        "raised_ms": T0 + at * DAY_MS + 600,
    }
    return Alert.model_validate(plain | more)


def notified(device: str = "bus-1", at: int = 0, **more: Any) -> Notification:
    return alert_notification(encode_alert(alert(device, at, **more)))


def verdict(kind: VerdictKind, **more: Any) -> Notification:
    plain: dict[str, Any] = {"id": "0" * 24, "revision": 1, "verdict": kind, "tenant": "acme", "device": "bus-1"}
    return verdict_notification(encode_verdict(AlertVerdict(**plain | {"decided_ms": T0 + 60_000} | more)))


def event(**more: Any) -> FinalEvent:
    return FinalEvent.model_validate({"kind": "enter", "place": "yard", "t_ms": T0, "epoch": 1, "seq": 2} | more)


WHOLE = st.integers(0, 2**63 - 1)
EVERYBODY = AccountDevices([account("acme", -30, ("bus-1", -30, None))])


def heard(notification: Notification, book: RuleBook, accounts: AccountDevices = EVERYBODY) -> list[str]:
    return sorted(rule.id for found in routes(notification, book, accounts).values() for rule in found)


def test_an_account_hears_of_its_devices_for_as_long_as_they_are_its() -> None:
    accounts = AccountDevices([account("acme", -30, ("bus-1", -10, 5)), account("beta", -30, ("bus-1", 5, None))])
    book = rules({"id": "acme/all"}, {"id": "beta/all"})
    owners = {at: heard(notified(at=at), book, accounts) for at in (-11, -10, 4, 5, 100)}
    assert owners == {-11: [], -10: ["acme/all"], 4: ["acme/all"], 5: ["beta/all"], 100: ["beta/all"]}
    assert heard(notified("bus-2"), book, accounts) == []
    assert heard(notified(tenant="beta"), book, accounts) == [], "another tenant's device of the same name"


def test_who_pays_for_an_account_hears_of_its_devices() -> None:
    accounts = AccountDevices(
        [
            account("top", -30),
            account("mid", -30, parent="top"),
            account("low", -30, ("bus-1", -30, None), parent="mid"),
        ]
    )
    book = rules(*({"id": f"{name}/all"} for name in ("top", "mid", "low", "other")))
    assert heard(notified(), book, accounts) == ["low/all", "mid/all", "top/all"]


def test_a_withdrawn_alert_is_matched_by_what_was_said_and_without_that_everybody_hears_of_it() -> None:
    book = rules({"id": "acme/enter", "kinds": ["enter"]}, {"id": "acme/exit", "kinds": ["exit"]})
    assert heard(verdict(VerdictKind.WITHDRAWN, alerted=event()), book) == ["acme/enter"]
    assert heard(verdict(VerdictKind.WITHDRAWN), book) == ["acme/enter", "acme/exit"]


def test_who_heard_of_another_time_of_the_same_event_hears_what_it_became() -> None:
    accounts = AccountDevices(
        [account(name, -30, ("bus-1", at, at + 1)) for at, name in enumerate(("a", "b", "c", "d"))]
    )
    book = rules(*({"id": f"{name}/all"} for name in "abcd"))
    at = [event(t_ms=T0 + number * DAY_MS) for number in range(4)]
    assert heard(verdict(VerdictKind.CORRECTED, event=at[1]), book, accounts) == ["b/all"]
    moved = verdict(VerdictKind.CORRECTED, event=at[1], alerted=at[0], previous=at[2])
    assert heard(moved, book, accounts) == ["a/all", "b/all", "c/all"]
    withdrawn = verdict(VerdictKind.WITHDRAWN, alerted=at[0], previous=at[1])
    assert heard(withdrawn, book, accounts) == ["a/all", "b/all"]


def test_the_version_of_the_rule_counts_that_was_in_force_when_it_was_said() -> None:
    book = rules({"id": "acme/a", "kinds": ["exit"]}, {"id": "acme/a", "effective_from": day(2)})
    assert heard(notified(at=1), book) == []
    assert heard(notified(at=2), book) == ["acme/a"]
    assert heard(notified(at=1, raised_ms=T0 + 3 * DAY_MS), book) == ["acme/a"]
    gone = rules({"id": "acme/a"}, {"id": "acme/a", "effective_from": day(2), "enabled": False})
    assert (heard(notified(at=1), gone), heard(notified(at=2), gone)) == (["acme/a"], [])


@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 20), st.integers(0, 20), st.integers(0, 20)), max_size=8)
)
def test_it_is_what_the_versions_say_one_by_one(several: list[tuple[str, int, int, int]]) -> None:
    stated = {(name, begin): (since, until) for name, begin, since, until in several if since < until}
    held = [account(name, begin, ("bus-1", *span)) for (name, begin), span in stated.items()]
    accounts = AccountDevices(held)
    for at in range(21):
        expected = set()
        for name in "ab":
            begins = [begin for one, begin in stated if one == name and begin <= at]
            if begins and stated[name, max(begins)][0] <= at < stated[name, max(begins)][1]:
                expected.add(name)
        assert accounts.accounts_of("acme", "bus-1", T0 + at * DAY_MS) == expected


@given(st.binary(max_size=200))
def test_no_bytes_raise_anything_but_that_they_are_none(data: bytes) -> None:
    for read in (alert_notification, verdict_notification):
        with pytest.raises(MalformedAlert):
            read(data)


def test_keys_and_bodies_follow_from_the_message_alone() -> None:
    one = notified()
    assert one.key == f"{'0' * 24}/provisional"
    assert verdict(VerdictKind.LATE, event=event()).key == f"{'0' * 24}/verdict-1"
    assert body_of(one, ["b", "a"]) == body_of(notified(), ["a", "b"])
    content = json.loads(body_of(one, ["acme/a"]))
    assert content["type"] == "alert"
    said = content["alert"]
    assert (said["epoch"], said["seq"], said["id"]) == ("1", "2", alert().id)


@given(WHOLE, WHOLE, st.lists(st.tuples(WHOLE, WHOLE), max_size=16))
def test_no_digit_of_an_id_is_lost_where_numbers_are_floats(epoch: int, seq: int, until: list[tuple[int, int]]) -> None:
    ids: dict[str, Any] = {"epoch": epoch, "seq": seq}
    one = notified(seen_until=tuple(until), **ids)
    # as JavaScript reads it
    said = json.loads(body_of(one, ["acme/a"]), parse_int=float)["alert"]
    assert (int(said["epoch"]), int(said["seq"])) == (epoch, seq)
    assert [(int(a), int(b)) for a, b in said["seen_until"]] == until
    assert said["t_ms"] == alert().t_ms
    corrected = verdict(VerdictKind.CORRECTED, event=event(**ids))
    withdrawn = verdict(VerdictKind.WITHDRAWN, alerted=event(**ids))
    for part, other in ((corrected, "event"), (withdrawn, "alerted")):
        said = json.loads(body_of(part, ["acme/a"]), parse_int=float)["verdict"][other]
        assert (int(said["epoch"]), int(said["seq"])) == (epoch, seq)
    line = json.loads(json_line(SeenAlert(alert(**ids), T0)), parse_int=float)["alert"]
    assert (int(line["epoch"]), int(line["seq"])) == (epoch, seq)
