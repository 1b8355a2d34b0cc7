"""The register killed at each of its writes, and asked by several clerks at once: the same documents, each once.

To the lake it is one thing whether the store, the clerk's command or the machine is killed: what was written is there,
and the rest is not. What a command that died left behind, the next one finds, and does what is left.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import nullcontext, suppress
from datetime import UTC, datetime, timedelta
from secrets import token_hex
from typing import NamedTuple

import pytest

from cloud_jobs.lake.tables import Lake
from deploy.local import ObjectStore
from simulator.month import ArrivedBatch, Decide, Deliver, Month, Publish, hard_month
from tests.system.billed_month import Centre, billed
from tests.system.dying_store import DyingStore
from tests.system.lake_in_store import copy_lake, place

pytestmark = [pytest.mark.system, pytest.mark.own_servers, pytest.mark.timeout(900)]

NOW = datetime(2026, 4, 8, tzinfo=UTC)
LATER = NOW + timedelta(days=13)


class KnownMonth(NamedTuple):
    """What is known of the month when it is issued, and what comes late."""

    published: tuple[Publish, ...]
    early: tuple[ArrivedBatch, ...]
    late: tuple[ArrivedBatch, ...]
    decision: Decide


def known_month() -> KnownMonth:
    month: Month = hard_month(15)
    published = tuple(step for step in month.steps[:5] if isinstance(step, Publish))
    (decision,) = (step for step in month.steps if isinstance(step, Decide))
    first, second, late, *_ = (step for step in month.steps if isinstance(step, Deliver))
    return KnownMonth(published, (*first.deliveries, *second.deliveries), late.deliveries, decision)


def close_and_issue(centre: Centre) -> None:
    centre.close(NOW)
    centre.issue(NOW)


def close_and_adjust(centre: Centre) -> None:
    centre.close(LATER)
    centre.adjust(LATER)


def void(centre: Centre) -> None:
    centre.void(LATER)


COMMANDS: dict[str, Callable[[Centre], None]] = {"issue": close_and_issue, "adjust": close_and_adjust, "void": void}
WRITES = {"issue": 8, "adjust": 8, "void": 4}
"""At least so many: files and a commit of each of the three tables of a closing, and of the documents."""
EVERY = {"issue": 12, "adjust": 12, "void": 6}
"""In each run of the tests one of so many writes is the last; all of them take minutes."""


def prepare(centre: Centre, name: str) -> None:
    """What is there before a command: a metered month; for the others issued, and for `adjust` with what came late."""
    month = known_month()
    for step in month.published:
        centre.publish(step)
    centre.take_in(month.early)
    centre.decide(month.decision)
    centre.meter()
    if name != "issue":
        close_and_issue(centre)
    if name == "adjust":
        centre.take_in(month.late)
        centre.meter()


class Walk:
    """A command, a lake that was prepared for it, and copies of that lake."""

    def __init__(self, name: str, store: ObjectStore, dying: DyingStore) -> None:
        self._name = name
        self._store = store
        self._dying = dying
        self._prefix = f"{name}-{token_hex(4)}"
        prepare(self._centre("before"), name)
        self._run("whole")
        self.writes = dying.writes
        self.whole = billed(self._centre("whole"))

    def lost_at(self, number: int) -> None:
        """From this write on nothing is written or answered."""
        self._run(f"lost-{number}", lost_at=number)
        assert self._dying.is_lost
        self._again(f"lost-{number}")

    def unanswered(self, number: int) -> None:
        """This write is made, and its answer is lost."""
        self._run(f"unanswered-{number}", unanswered=number)
        self._again(f"unanswered-{number}")

    def _again(self, copy: str) -> None:
        centre = self._centre(copy)
        # whatever was lost: each number is there once, none is left out, and each document is as it was issued
        there = {one["invoice_number"] for one in centre.documents()}
        COMMANDS[self._name](centre)
        found = billed(centre)
        assert found == self.whole, copy
        assert there <= {json.loads(one)["invoice_number"] for one in found["documents"]}

    def _run(self, copy: str, *, lost_at: int | None = None, unanswered: int | None = None) -> None:
        copy_lake(self._store, f"{self._prefix}-before", f"{self._prefix}-{copy}")
        # there again after the loss before
        self._dying.begin()
        centre = self._centre(copy, self._dying.endpoint)
        self._dying.begin(lost_at=lost_at, unanswered=unanswered)
        with suppress(Exception) if copy != "whole" else nullcontext():
            COMMANDS[self._name](centre)

    def _centre(self, copy: str, endpoint: str | None = None) -> Centre:
        return Centre(Lake(place(self._store, f"{self._prefix}-{copy}", endpoint)))


@pytest.fixture
def walk(store: ObjectStore, dying: DyingStore, request: pytest.FixtureRequest) -> Walk:
    return Walk(request.param, store, dying)


@pytest.mark.parametrize(
    "walk", ["issue", *(pytest.param(name, marks=pytest.mark.nightly) for name in ("adjust", "void"))], indirect=True
)
def test_what_is_lost_at_a_write_is_done_by_the_next_command_and_nothing_twice(
    walk: Walk, request: pytest.FixtureRequest
) -> None:
    name = request.node.callspec.params["walk"]
    assert walk.writes >= WRITES[name]
    for number in range(0, walk.writes, EVERY[name]):
        walk.lost_at(number)


@pytest.mark.nightly
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("walk", COMMANDS, indirect=True)
def test_what_is_lost_at_any_write_or_not_answered_is_done_by_the_next_command(walk: Walk) -> None:
    for number in range(walk.writes):
        walk.lost_at(number)
        walk.unanswered(number)
