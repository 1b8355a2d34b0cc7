"""A command for many devices that somebody ends, says what it has published by then."""

# ruff: noqa: F811 - a fixture is asked for by its name

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.identity.registry_strategies import active
from tests.identity.registry_world import Command, World, command, outcomes, put, world  # noqa: F401 - fixtures
from tests.identity.test_device_files_cli import table
from waybill.identity import registry_session
from waybill.identity.change_outcome import Interrupted
from waybill.identity.registry_session import RegistrySession, published_in_turn

TEXT = "".join(table(name, "revoked") for name in "abc")


def interrupt(*_: object) -> None:
    raise KeyboardInterrupt


@pytest.fixture
def devices(world: World) -> World:
    for name in "abc":
        world.put(active("acme", name))
    return world


def test_who_interrupts_it_hears_of_each_device_how_far_it_came(devices: World, put: Command, command: Command) -> None:
    devices.before["acme/b"] = interrupt
    done = put(TEXT, "--json")
    said = json.loads(done.stdout)
    assert (done.exit_code, said["result"]) == (130, "interrupted"), done.output
    assert outcomes(done) == {"a": "published", "b": "unknown", "c": "not-published"}
    assert "1 published, of acme/b nobody knows, 1 not published: interrupted at acme/b" in said["why"]
    done = command("revoke", "acme/b", "acme/c", "--wait", "0.05")
    assert (done.exit_code, "confirmed: eu, us" in done.stdout) == (0, True), done.output


def test_who_interrupts_the_first_one_hears_that_it_may_be_published_and_its_token_stays(
    world: World, put: Command, tmp_path: Path
) -> None:
    world.before["acme/new"] = interrupt
    done = put(table("new", "expected", region="eu"), "--tokens", tmp_path / "tokens", "--json")
    assert (done.exit_code, outcomes(done)) == (130, {"new": "unknown"}), done.output
    assert len([*tmp_path.rglob("*.token")]) == 1


@pytest.mark.parametrize("where", ["read back", "waiting"])
def test_who_interrupts_the_wait_hears_what_is_published(
    devices: World, command: Command, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    devices.silent = {"us"}
    if where == "waiting":
        monkeypatch.setattr(RegistrySession, "_heard", interrupt)
    else:
        after_reading: Callable[..., bool] = RegistrySession._progress

        def progress(session: RegistrySession, what: str, *more: object) -> bool:
            if what == "read back":
                raise KeyboardInterrupt
            return after_reading(session, what, *more)

        monkeypatch.setattr(registry_session.RegistrySession, "_progress", progress)
    done = command("revoke", "acme/a", "acme/b", "acme/nobody", "--wait", "5")
    assert done.exit_code == 130, done.output
    assert "acme/a: revoked, version 2" in done.stdout
    assert "2 published, 0 not published: interrupted before" in done.stderr
    assert "the registry has no device acme/nobody" in done.stderr
    assert "confirmed" not in done.stdout


def test_who_interrupts_while_progress_is_shown_hears_what_is_published() -> None:
    def interrupted(count: int) -> None:
        if count == 2:
            raise KeyboardInterrupt

    entries = {one.name: one for one in (active("acme", name) for name in "abc")}
    sent = published_in_turn(tuple(entries), entries.__getitem__, lambda _: "1", interrupted)
    assert ([*sent.made], list(sent.left)) == (["acme/a", "acme/b"], ["acme/c"])
    assert isinstance(sent.error, Interrupted)
