"""What somebody else changes while a command for many devices runs."""

# ruff: noqa: F811 - a fixture is asked for by its name

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.identity.registry_strategies import CERTIFICATE, CHANGE, active, change, expected
from tests.identity.registry_world import Command, World, command, outcomes, put, world  # noqa: F401 - fixtures
from tests.identity.test_device_files_cli import table
from waybill.identity.claims import read_token
from waybill.identity.device_cli import app
from waybill.identity.errors import SignatureFault, SignatureRefused
from waybill.identity.registry import DeviceEntry, enrol, resume, revoke, suspend
from waybill.identity.registry_session import RegistrySession
from waybill.pulsar.cluster_clock import ClockDiffers


def test_who_is_enrolled_while_others_are_published_is_as_the_file_says(world: World, put: Command) -> None:
    world.put(active("acme", "z"))

    def enrolled() -> None:
        held = {one.key: one for one in world.messages}["acme/f1"]
        world.confirmed(enrol(DeviceEntry.model_validate_json(held.body), CERTIFICATE, CHANGE))

    world.before["acme/z"] = enrolled
    done = put(table("f1", "expected", region="eu", factory="SN-1") + table("z", "suspended"), "--json")
    assert (done.exit_code, outcomes(done)) == (0, {"f1": "confirmed", "z": "confirmed"}), done.output


@pytest.mark.parametrize("wait", ["0", "0.05"])
def test_who_was_locked_out_and_is_let_in_while_others_are_published_is_not_called_confirmed(
    world: World, put: Command, command: Command, wait: str
) -> None:
    locked = suspend(active("acme", "s"), change())
    text = table("s", "suspended") + table("z", "suspended")
    for names, run in enumerate((lambda *more: put(text, *more), lambda *more: command("suspend", *STOPPED, *more))):
        world.messages.clear()
        world.put(active("acme", "z"))
        world.put(locked)
        world.before["acme/z"] = lambda: world.confirmed(resume(locked, change()))
        done = run("--wait", wait, "--json")
        assert (done.exit_code, outcomes(done)["s"]) == (4, "outranked"), (names, done.output)
        assert "acme/s" not in json.loads(done.stdout)["confirmed"]
        assert "active, version 3" in json.loads(done.stdout)["outcomes"]["acme/s"]["why"]


STOPPED = ("acme/s", "acme/z")


def test_what_another_one_did_alike_is_as_it_is_and_the_regions_are_asked_about_it(
    world: World, put: Command, command: Command
) -> None:
    def alike() -> None:
        world.put(suspend(active("acme", "y"), change()))

    for run in (
        lambda: put(table("z", "suspended") + table("y", "suspended"), "--json"),
        lambda: command("suspend", "acme/z", "acme/y", "--wait", "0.05", "--json"),
    ):
        world.messages.clear()
        for name in "zy":
            world.put(active("acme", name))
        world.before["acme/z"] = alike
        done = run()
        assert (done.exit_code, outcomes(done)) == (5, {"z": "confirmed", "y": "not-confirmed"}), done.output


def test_of_two_puts_at_once_a_token_stays_where_it_opens_something_and_only_there(
    world: World, put: Command, command: Command, tmp_path: Path
) -> None:
    new, tokens, file = table("new", "expected", region="eu"), tmp_path / "tokens", tmp_path / "other.toml"
    file.write_text(new)

    def beside(folder: Path) -> Callable[[], object]:
        return lambda: command("put", file, "--wait", "0", "--tokens", folder)

    for folder, exit_code, became in ((tokens, 0, "confirmed"), (tmp_path / "others", 6, "refused")):
        world.messages.clear()
        world.put(active("acme", "z"))
        world.before["acme/z"] = beside(folder)
        done = put(table("z", "suspended") + new, "--tokens", tokens, "--json")
        assert (done.exit_code, outcomes(done)["new"]) == (exit_code, became), done.output
        assert [one.parent.parent for one in tmp_path.rglob("*.token")] == [folder]
        (folder / "acme" / "new.token").unlink()
    # outranked: what another one published at the same version came behind ours, and holds
    world.messages.clear()
    world.put(active("acme", "z"))
    other = expected("acme", "new")
    world.before["acme/z"] = lambda: world.put(other)
    done = put(new + table("z", "suspended"), "--tokens", tokens, "--json")
    assert (done.exit_code, outcomes(done)["new"], [*tmp_path.rglob("*.token")]) == (4, "outranked", []), done.output


def test_a_token_that_another_put_published_stays_though_this_one_ends_without_a_publication(
    world: World, put: Command, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.put(active("acme", "y"))
    new, tokens, file = table("new", "expected", region="eu"), tmp_path / "tokens", tmp_path / "other.toml"
    file.write_text(new)
    asked: list[int] = []

    def meanwhile(*given: Any) -> None:
        asked.append(len(given))
        if len(asked) == 1:
            assert command("put", file, "--wait", "0", "--tokens", tokens).exit_code == 0
            world.put(revoke(active("acme", "y"), change()))

    monkeypatch.setattr("waybill.identity.registry_session.check_clock", meanwhile)
    done = put(table("y", "suspended") + new, "--tokens", tokens, "--json")
    assert (done.exit_code, outcomes(done)["y"]) == (3, "refused"), done.output
    assert [one.name for one in tmp_path.rglob("*.token")] == ["new.token"]


def test_a_put_whose_clock_is_refused_leaves_a_token_that_another_put_has_published(
    world: World, put: Command, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    new, tokens, file = table("new", "expected", region="eu"), tmp_path / "tokens", tmp_path / "other.toml"
    file.write_text(new)
    asked: list[int] = []

    def clock_of_the_first_is_wrong(*given: Any) -> None:
        asked.append(len(given))
        if len(asked) == 1:
            assert command("put", file, "--wait", "0", "--tokens", tokens).exit_code == 0
            raise ClockDiffers("http://nowhere", -3600)

    monkeypatch.setattr("waybill.identity.registry_session.check_clock", clock_of_the_first_is_wrong)
    done = put(new, "--tokens", tokens)
    assert (done.exit_code, "3600 s behind" in done.stderr) == (3, True), done.output
    (token,) = tmp_path.rglob("*.token")
    entry = DeviceEntry.model_validate_json(world.messages[-1].body)
    assert entry.claim is not None
    assert entry.claim.id == read_token(token.read_text().strip()).id
    # and without another one nothing stays
    world.messages.clear()
    token.unlink()
    monkeypatch.setattr(
        "waybill.identity.registry_session.check_clock", refused_by(ClockDiffers("http://nowhere", 3600))
    )
    assert (put(new, "--tokens", tokens).exit_code, [*tmp_path.rglob("*.token")]) == (3, [])


def refused_by(error: Exception) -> Callable[..., None]:
    def asked(*_: object) -> None:
        raise error

    return asked


def test_who_was_refused_a_signature_is_named_though_others_are_signed_again(
    world: World, tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "ab":
        world.put(active("acme", name))
    rights = RegistrySession._check_rights

    def of_all_but_b(session: RegistrySession, entries: Iterable[DeviceEntry]) -> None:
        given = list(entries)
        if [one.name for one in given] == ["acme/b"]:
            raise SignatureRefused(SignatureFault.UNSIGNED, "no right any more")
        rights(session, given)

    monkeypatch.setattr(RegistrySession, "_check_rights", of_all_but_b)
    world.before["acme/a"] = lambda: world.put(revoke(active("acme", "a"), change()))
    config = str(tmp_path / "operator.toml")
    done = CliRunner().invoke(app, ["sign", "acme/b", "acme/a", "-c", config, "--json"])
    assert (done.exit_code, outcomes(done)["b"]) == (6, "refused"), done.output


def test_a_token_of_a_device_of_the_file_is_given_to_no_other_one(world: World, put: Command, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    one, two = (table(name, "expected", region="eu") for name in ("n1", "n2"))
    assert put(one, "--tokens", tokens).exit_code == 0
    (tokens / "acme" / "n2.token").write_bytes((tokens / "acme" / "n1.token").read_bytes())
    (tokens / "acme" / "n2.token").chmod(0o600)
    done = put(one + two, "--tokens", tokens)
    assert (done.exit_code, "it is the token of acme/n1" in done.stderr, len(world.messages)) == (1, True, 1), done
