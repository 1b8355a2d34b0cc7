"""What is said of a stack while it starts, and which settings are named."""

from __future__ import annotations

from pathlib import Path

from deploy.local.cli import Announced
from deploy.local.stack_state import ServerRecord


def record(name: str, state: str) -> ServerRecord:
    return ServerRecord(name=name, kind="x", state=state, process=None, log=Path("log"), addresses={})


def test_each_state_is_said_once_and_what_was_not_started_yet_is_not_called_stopped() -> None:
    said = Announced()
    assert said.lines([record("links", "healthy"), record("access-eu", "stopped")]) == ["links: healthy"]
    assert said.lines([record("links", "healthy"), record("access-eu", "starting")]) == []
    assert said.lines([record("access-eu", "healthy")]) == ["access-eu: healthy"]
    assert said.lines([record("access-eu", "stopped")]) == ["access-eu: stopped"]
