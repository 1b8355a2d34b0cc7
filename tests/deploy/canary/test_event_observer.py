"""What the revisions of a probe's events say of it, as looks find them."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from deploy.canary import lake_observers
from deploy.canary.config import Hop
from deploy.canary.lake_observers import EventObserver
from deploy.canary.watch import CanaryWatch
from geo.spatial import DayEvent, identified
from tests.deploy.canary.canaries import canary_settings

NOON_S = 1_767_614_400.0


class World:
    """A probe that was sent at noon, and what the table has of it: a list of rows for each look."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.watch = CanaryWatch(canary_settings(folder), lambda: NOON_S + 60)
        self.number = self.watch.script.number_at(round(NOON_S * 1000))
        self.watch.send(self.number)
        self._looks: list[list[dict[str, Any]]] = []
        monkeypatch.setattr(lake_observers, "NewRows", lambda *_, **__: self)
        self._observer = EventObserver(self.watch)

    def read(self) -> list[dict[str, Any]]:
        return self._looks.pop(0)

    def row(self, kind: str, revision: int, *, off_ms: int = 0, retracted: bool = False) -> dict[str, Any]:
        item = next(one for one in self.watch.script.event_items(self.number) if one.name == kind)
        found = DayEvent(item.t_ms + off_ms, kind, "canary-eu", 0.0, 1, 3)
        (name,) = identified("canary", "canary-eu", [found])
        return {
            "id": name,
            "revision": revision,
            "retracted": retracted,
            "time": datetime.fromtimestamp(found.t_ms / 1000, UTC),
            "kind": kind,
            "place": "canary-eu",
            "value": 0.0,
            "epoch": 1,
            "seq": 3,
        }

    def look(self, *rows: dict[str, Any]) -> bool:
        """Whether something of the probe is missing or wrong afterwards."""
        self._looks.append([*rows])
        self._observer.look()
        return self.watch.is_short(self.number, Hop.EVENT)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    return World(tmp_path, monkeypatch)


def test_an_event_that_was_retracted_and_is_there_again_is_right_after_all(world: World) -> None:
    seen = [
        world.look(world.row("enter", 0), world.row("exit", 0)),
        world.look(world.row("enter", 1, retracted=True)),
        world.look(world.row("enter", 2)),
    ]
    assert seen == [False, True, False]


def test_one_that_was_retracted_and_came_back_by_one_look_was_never_away(world: World) -> None:
    assert not world.look(world.row("enter", 0), world.row("exit", 0))
    assert not world.look(world.row("enter", 1, retracted=True), world.row("enter", 2))


def test_one_that_comes_back_takes_back_no_other_fault(world: World) -> None:
    world.look(world.row("enter", 0), world.row("exit", 0, off_ms=500))
    world.look(world.row("enter", 1, retracted=True))
    assert world.look(world.row("enter", 2)), "the other one is off"


def test_one_that_comes_back_and_is_off_is_wrong(world: World) -> None:
    world.look(world.row("enter", 0, off_ms=500), world.row("exit", 0))
    world.look(world.row("enter", 1, off_ms=500, retracted=True))
    assert world.look(world.row("enter", 2, off_ms=500))
