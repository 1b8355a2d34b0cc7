"""What is done with each message, with real queues, a real server and a real file; Pulsar's part is played by lists."""

import functools
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.webhooks import posting
from gateway.webhooks.intake import AlertTopic, TakenMessage
from gateway.webhooks.notifier import GoingBy, OpenMessages
from gateway.webhooks.rule_book import AccountDevices
from gateway.webhooks.status import WebhookMetrics
from gateway.webhooks.undelivered import decode_undelivered, encode_undelivered
from geo.alerts import AlertVerdict, VerdictKind, encode_verdict
from tests.gateway.webhooks.hook_server import HookServer, answers, hook_server
from tests.gateway.webhooks.notifier_world import NIGHT, TOPIC, World, at
from tests.gateway.webhooks.test_routes import EVERYBODY, account, alert, event, rules
from tests.waiting import wait_until


def test_a_message_is_acknowledged_after_each_of_its_webhooks_took_it(
    world: World, server: HookServer, tmp_path: Path
) -> None:
    with hook_server() as slow:
        slow.hang()
        world.webhooks["slow"] = slow.settings(tmp_path, timeout_s=20, max_age_s=60)
        world.restart()
        book = rules({"id": "acme/all"}, {"id": "acme/slow", "webhook": "slow"})
        world.take(world.message(1), book=book)
        wait_until(lambda: server.requests and slow.requests)
        world.settle_until(lambda: not world.queues["ops"].facts.unfinished)
        assert world.acknowledged == []
        slow.behave = answers()
        slow.over.set()
        world.settle_until(lambda: world.acknowledged)


def test_several_rules_of_one_webhook_are_one_message(world: World, server: HookServer) -> None:
    book = rules({"id": "acme/a"}, {"id": "acme/b"}, {"id": "acme/c", "kinds": ["exit"]})
    world.take(world.message(1), book=book)
    world.settle_until(lambda: world.acknowledged == ["m1"])
    (request,) = server.requests
    assert request.content["rules"] == ["acme/a", "acme/b"]
    assert request.key == f"{1:024x}/provisional"
    assert request.is_signed()


def test_what_is_for_nobody_malformed_or_of_another_tenant_is_counted_and_acknowledged(world: World) -> None:
    junk = TakenMessage(TOPIC, "junk", b"no alert", lambda: world.acknowledged.append("junk"))
    world.take(world.message(1, device="bus-9"), world.message(2, tenant="beta"), junk)
    assert world.acknowledged == ["m1", "m2", "junk"]
    assert world.metrics.counts["passed_over"] == {"no-rule": 1, "tenant": 1, "malformed": 1}


@pytest.mark.parametrize(
    ("kind", "hours", "is_sent"), [("late", 23, True), ("late", 25, False), ("confirmed", 25, True)]
)
def test_of_what_happened_long_ago_and_nobody_heard_of_a_late_verdict_is_no_news(
    world: World, server: HookServer, kind: str, hours: int, is_sent: bool
) -> None:
    happened = event()
    said_ms = happened.t_ms + hours * 3_600_000
    verdict = AlertVerdict(
        id="0" * 24,
        revision=0,
        verdict=VerdictKind(kind),
        tenant="acme",
        device="bus-1",
        event=happened,
        decided_ms=said_ms,
    )
    topic = AlertTopic("persistent://acme/events/verdicts", "acme", is_verdicts=True)
    # however late it is read: what comes again after a stop is judged as it was
    world.now_s = said_ms / 1000 + 10 * 86_400
    world.take(TakenMessage(topic, "v", encode_verdict(verdict), lambda: world.acknowledged.append("v")))
    world.settle_until(lambda: world.acknowledged == ["v"])
    assert len(server.requests) == is_sent
    assert world.metrics.counts["passed_over"] == ({} if is_sent else {"stale": 1})


@pytest.mark.parametrize(("hours", "is_sent"), [(0.9, True), (1.1, False)])
def test_an_alert_that_was_raised_long_before_it_is_read_is_no_news(
    world: World, server: HookServer, hours: float, is_sent: bool
) -> None:
    world.alert_max_age_s = 3600
    world.restart()
    world.now_s = alert().raised_ms / 1000 + hours * 3600
    world.take(world.message(1))
    world.settle_until(lambda: world.acknowledged == ["m1"])
    assert len(server.requests) == is_sent
    assert world.metrics.counts["passed_over"] == ({} if is_sent else {"stale": 1})


def test_what_no_webhook_takes_is_acknowledged_only_when_it_is_written_and_says_all_of_it(
    world: World, server: HookServer
) -> None:
    server.behave = answers("400 No")
    world.take(world.message(1))
    world.settle_until(lambda: world.written)
    assert world.acknowledged == []
    (ended,) = world.written
    kept = decode_undelivered(encode_undelivered(ended, 5))
    assert (kept.reason, kept.attempts, kept.detail, kept.webhook) == ("refused", 1, "400 No", "ops")
    assert kept.delivery.body == server.requests[0].body
    world.notifier.written.append(ended)
    world.notifier.settle()
    assert world.acknowledged == ["m1"]


def test_an_unknown_webhook_one_for_others_and_a_full_queue_have_their_reasons(
    world: World, server: HookServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.hang()
    monkeypatch.setattr(posting, "MAX_WAITING", 1)
    world.webhooks["full"] = server.settings(tmp_path, parallel=1)
    world.webhooks["beta"] = server.settings(tmp_path, accounts=["beta*"])
    world.restart()
    several = ("full", "beta", "nowhere")
    book = rules(*({"id": f"acme/{name}", "webhook": name} for name in several))
    world.take(world.message(1), world.message(2), book=book)
    reasons = [(one.delivery.webhook, one.reason) for one in world.written]
    assert sorted(reasons) == [
        ("beta", "other-account"),
        ("beta", "other-account"),
        ("full", "queue-full"),
        ("nowhere", "unknown-webhook"),
        ("nowhere", "unknown-webhook"),
    ]


def test_a_rule_of_another_account_takes_no_message_from_whose_webhook_it_is(
    world: World, server: HookServer, tmp_path: Path
) -> None:
    world.webhooks["ops"] = server.settings(tmp_path, accounts=["acme"])
    world.restart()
    accounts = AccountDevices([account("acme", -30, ("bus-1", -30, None), parent="umbrella"), account("umbrella", -30)])
    world.notifier.take([world.message(1)], GoingBy(rules({"id": "acme/all"}, {"id": "umbrella/all"}), accounts))
    world.settle_until(lambda: server.requests and world.written)
    assert [one.content["rules"] for one in server.requests] == [["acme/all"]]
    assert [(one.delivery.rules, one.reason) for one in world.written] == [(("umbrella/all",), "other-account")]


def test_after_a_kill_what_was_not_acknowledged_is_sent_again_with_the_same_key(
    world: World, server: HookServer
) -> None:
    server.hang()
    for number in range(20):
        world.take(world.message(number), book=rules({"id": "acme/all", "max_per_hour": 20}))
    wait_until(lambda: server.requests)
    world.restart()
    assert world.acknowledged == []
    server.behave = answers()
    for number in range(21):
        world.take(world.message(number), book=rules({"id": "acme/all", "max_per_hour": 20}))
    world.settle_until(lambda: len(world.acknowledged) == 21)
    assert set(server.keys) == {f"{number:024x}/provisional" for number in range(20)}, "and the limit held"
    assert world.metrics.counts["held_back"] == {"limit": 1}
    bodies = {one.key: {other.body for other in server.requests if other.key == one.key} for one in server.requests}
    assert all(len(several) == 1 for several in bodies.values())


def test_what_passed_passes_again_after_a_restart_however_late_it_comes_again(world: World, server: HookServer) -> None:
    server.hang()
    book = rules({"id": "acme/all", "max_per_hour": 1, "quiet": NIGHT})
    world.take(world.message(1), book=book)
    wait_until(lambda: server.requests)
    # at 23:00, after several starts, it is quiet: who heard of it, or did not, is not known
    for clock in ("15:00:00", "19:00:00", "23:00:00"):
        world.restart()
        world.now_s = at(clock)
        world.notifier.tick(GoingBy(book, EVERYBODY))
    server.behave = answers()
    world.take(world.message(1), world.message(2), book=book)
    world.settle_until(lambda: world.acknowledged == ["m2", "m1"])
    assert set(server.keys) == {f"{1:024x}/provisional"}


def test_what_is_quiet_is_held_back_and_summarised_once_when_the_quiet_time_ends(
    world: World, server: HookServer
) -> None:
    book = rules({"id": "acme/all", "quiet": NIGHT}, {"id": "acme/other", "places": ["none"]})
    by = GoingBy(book, EVERYBODY)
    world.now_s = at("23:00:00")
    world.take(*(world.message(number, place=f"yard-{number % 2}") for number in range(5)), book=book)
    assert world.acknowledged == [f"m{number}" for number in range(5)]
    world.notifier.tick(by)
    assert server.requests == []
    world.restart()
    world.take(world.message(4, place="yard-0"), book=book)  # its acknowledgement was lost
    world.now_s = at("23:00:00") + 7 * 3600
    for _ in range(3):
        world.notifier.tick(by)
    world.settle_until(lambda: server.requests and not world.book.digests())
    world.notifier.tick(by)
    (request,) = server.requests
    content = request.content
    assert (content["type"], content["rules"]) == ("digest", ["acme/all"])
    assert content["digest"]["held_back"] == 5
    assert content["digest"]["by_place"] == {"yard-0": 3, "yard-1": 2}
    assert request.key == content["key"] == f"digest/acme/all/acme/{round(at('23:00:00') * 1000)}-{request.key[-16:]}"
    assert request.is_signed()


def test_a_summary_that_was_killed_on_its_way_is_sent_again_with_the_same_key(world: World, server: HookServer) -> None:
    book = rules({"id": "acme/all", "quiet": NIGHT})
    world.now_s = at("23:00:00")
    world.take(world.message(1), book=book)
    world.now_s += 8 * 3600
    server.hang()
    world.notifier.tick(GoingBy(book, EVERYBODY))
    wait_until(lambda: server.requests)
    world.restart()
    server.behave = answers()
    world.notifier.tick(GoingBy(book, EVERYBODY))
    world.settle_until(lambda: not world.book.digests())
    assert len(set(server.keys)) == 1
    assert len({one.body for one in server.requests}) == 1


def test_what_the_limit_held_back_is_summarised_an_hour_later_and_a_rule_that_is_gone_says_nothing(
    world: World, server: HookServer
) -> None:
    limited = {"id": "acme/all", "max_per_hour": 2}
    silent = {"id": "acme/silent", "max_per_hour": 1, "digest": False, "webhook": "nowhere"}
    book = rules(limited, silent | {"places": ["yard"]})
    world.take(*(world.message(number) for number in range(6)), book=book)
    world.settle_until(lambda: len(server.requests) == 2)
    world.now_s += 3599
    world.notifier.tick(GoingBy(book, EVERYBODY))
    assert not world.book.digests()
    world.now_s += 2
    world.notifier.tick(GoingBy(book, EVERYBODY))
    world.settle_until(lambda: len(server.requests) == 3)
    assert server.requests[-1].content["digest"]["by_reason"] == {"limit": 4}
    world.take(*(world.message(number) for number in range(10, 16)), book=book)
    world.notifier.tick(GoingBy(rules({"id": "acme/other"}), EVERYBODY))
    assert world.book.rules_with_held() == []


BEFORE_ALL = datetime(1970, 1, 2, tzinfo=UTC).timestamp()
LONG_AFTER = datetime(2036, 12, 1, 12, tzinfo=UTC).timestamp()
QUIET = {"id": "acme/all", "quiet": NIGHT}


@pytest.mark.parametrize("wrong_s", [BEFORE_ALL, LONG_AFTER, at("22:59:59")])
def test_what_is_held_back_is_summarised_whatever_the_clock_says_meanwhile(
    world: World, server: HookServer, wrong_s: float
) -> None:
    # one version that ends the rule long after, so that a clock of then says that nobody wants to hear
    book = rules(QUIET, QUIET | {"effective_from": "2030-01-01T00:00:00Z", "enabled": False})
    by = GoingBy(book, EVERYBODY)
    world.now_s = at("23:00:00")
    world.take(world.message(1), book=book)
    world.now_s = wrong_s
    world.notifier.tick(by)
    world.take(world.message(2), book=book)
    world.notifier.tick(by)
    world.restart()
    # what was not acknowledged, or whose acknowledgement was lost, comes again
    world.take(world.message(2), book=book)
    world.notifier.tick(by)
    world.now_s = at("23:00:00") + 8 * 3600
    for _ in range(2):
        world.notifier.tick(by)
    both = {f"{number:024x}/provisional" for number in (1, 2)}
    world.settle_until(lambda: posted(server) == both and not world.book.digests())


def posted(server: HookServer) -> set[str]:
    """The keys of the messages that were posted, alone or in a summary; no one in two forms."""
    alone = {one.key for one in server.requests if one.content["type"] != "digest"}
    summaries = {one.key: one.content["digest"] for one in server.requests if one.content["type"] == "digest"}
    in_summaries = [one["key"] for digest in summaries.values() for one in digest["messages"]]
    assert len({*in_summaries}) == len(in_summaries)
    assert not alone & {*in_summaries}
    return alone | {*in_summaries}


def test_a_rule_that_is_disabled_summarises_what_it_had_held_back_and_one_said_anew_without_does_not(
    world: World, server: HookServer
) -> None:
    world.now_s = at("23:00:00")
    world.take(world.message(1), book=rules(QUIET))
    world.passes(8 * 3600)
    off = QUIET | {"effective_from": "2026-12-02T00:00:00Z", "enabled": False}
    world.notifier.tick(GoingBy(rules(QUIET, off), EVERYBODY))
    world.settle_until(lambda: server.requests and not world.book.digests())
    assert posted(server) == {f"{1:024x}/provisional"}
    world.now_s = at("23:00:00")
    world.take(world.message(2), book=rules(QUIET))
    world.notifier.tick(GoingBy(rules(QUIET | {"digest": False}), EVERYBODY))
    assert (world.book.rules_with_held(), len(server.requests)) == ([], 1)


TOPIC_OF_OPEN_MESSAGES = AlertTopic("topic", "acme", is_verdicts=False)


@given(st.lists(st.integers(0, 4), max_size=8), st.randoms(use_true_random=False))
def test_each_is_acknowledged_once_when_all_of_it_has_ended(counts: list[int], random: object) -> None:
    acknowledged: list[int] = []
    messages, numbers, left = OpenMessages(), iter(range(1000)), dict[int, int]()
    order: list[tuple[int, int]] = []
    for nth, count in enumerate(counts):
        deliveries = [next(numbers) for _ in range(count)]
        acknowledge = functools.partial(acknowledged.append, nth)
        messages.begin(TakenMessage(TOPIC_OF_OPEN_MESSAGES, str(nth), b"", acknowledge), deliveries)
        left[nth] = count
        order += [(nth, number) for number in deliveries]
    assert acknowledged == [nth for nth, count in enumerate(counts) if not count]
    random.shuffle(order)  # type: ignore[attr-defined]
    for nth, number in order:
        assert nth not in acknowledged
        messages.end(number)
        messages.end(number)
        left[nth] -= 1
        assert (nth in acknowledged) == (left[nth] == 0)
    assert sorted(acknowledged) == sorted(range(len(counts)))
    assert len(messages) == 0


@pytest.mark.parametrize(
    ("name", "labels"),
    [
        ("messages", {"type": "alert"}),
        ("messages", {"type": "verdict"}),
        ("passed_over", {"reason": "stale"}),
        ("passed_over", {"reason": "malformed"}),
        ("held_back", {"reason": "quiet"}),
        ("held_back", {"reason": "limit"}),
        ("deliveries", {"webhook": "ops", "outcome": "refused"}),
    ],
)
def test_what_never_happened_is_a_zero_for_prometheus_and_nothing_in_the_status(
    name: str, labels: dict[str, str]
) -> None:
    metrics = WebhookMetrics(["ops"])
    assert metrics.registry.get_sample_value(f"waybill_webhooks_{name}_total", labels) == 0
    assert not any(metrics.counts.values())
