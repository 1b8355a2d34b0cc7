"""A clock that steps loses no message of a notifier, and what comes again is said in one form alone."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from gateway.webhooks.notifier import GoingBy
from tests.gateway.webhooks.hook_server import HookServer
from tests.gateway.webhooks.notifier_world import NIGHT, World, at
from tests.gateway.webhooks.test_routes import EVERYBODY, rules

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
