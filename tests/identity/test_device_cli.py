"""`waybill device` as a command, on a registry in memory: who changed an entry, and whose key signed that."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import waybill.identity.registry_session as registry_session_module
from tests.identity.registry_in_memory import MESSAGES, InMemory
from tests.identity.registry_strategies import CHANGE, CLAIM, active, expected
from tests.tokens import token_file
from waybill.identity.change_outcome import Became, ChangeOutcome, DeviceOutcome
from waybill.identity.command_session import shows_progress
from waybill.identity.device_cli import app
from waybill.identity.registry import Beginning, DeviceEntry, move, resume, revoke, suspend
from waybill.identity.registry_messages import DevicePublication, read_entry


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(registry_session_module, "RegistrySession", InMemory)
    file = tmp_path / "operator.toml"
    file.write_text(
        'admin_url = "http://nowhere"\nservice_url = "pulsar://127.0.0.1:1"\nregions = ["eu"]\nunsigned = true\n'
        'tenants = ["acme", "zeta"]\n'
    )
    return file


def run(config: Path, *arguments: str) -> str:
    done = CliRunner().invoke(app, [*arguments, "--config", str(config)])
    assert done.exit_code == 0, done.output
    return done.stdout


def test_what_a_region_did_not_confirm_is_marked_in_the_list(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    why = "us refuses it: unknown-key"
    monkeypatch.setattr(InMemory, "unconfirmed", {"acme/bus-2": why})
    assert [line.endswith(f"  NOT CONFIRMED: {why}") for line in run(config, "list").splitlines()] == [False, True]
    facts = json.loads(run(config, "list", "--json"))
    assert [(one["device"], one["confirmed"], one["why"]) for one in facts] == [
        ("bus-1", True, None),
        ("bus-2", False, why),
    ]


def test_where_confirmations_cannot_be_read_the_list_says_so(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(InMemory, "unconfirmed", None)
    done = CliRunner().invoke(app, ["list", "--config", str(config)])
    assert "confirmations cannot be read" in done.stderr
    assert [one["confirmed"] for one in json.loads(run(config, "list", "--json"))] == [None, None]


@pytest.mark.parametrize("by_hand", [(), ("--by-hand",)])
def test_a_refused_command_leaves_no_token_of_its_own_and_touches_no_other(
    config: Path, tmp_path: Path, by_hand: tuple[str, ...]
) -> None:
    token = tmp_path / "bus-1.token"
    move = ["move", "acme/nobody", "zeta", "--reason", "sold", "--token-file", str(token), *by_hand]
    refused = CliRunner().invoke(app, [*move, "--config", str(config)])
    assert refused.exit_code == (2 if by_hand else 3), refused.output
    assert not token.exists()
    token.write_text("another's")
    assert CliRunner().invoke(app, [*move, "--config", str(config)]).exit_code == 2
    assert token.read_text() == "another's"


def test_a_key_that_is_not_of_who_the_entry_names_is_shown_beside_it(config: Path) -> None:
    own, other = run(config, "list").splitlines()
    assert own.endswith("by anna")
    assert other.endswith("by anna, signed by bea")
    assert [line.endswith("signed by bea  because") for line in run(config, "show", "acme/bus-2").splitlines()] == [
        False,
        True,
    ]


def test_programs_always_hear_whose_key_it_was(config: Path) -> None:
    found = json.loads(run(config, "show", "acme/bus-1", "--json"))
    assert (found["device"]["changed_by"], found["device"]["signed_by"]) == ("anna", "anna")
    found = json.loads(run(config, "show", "acme/bus-2", "--json"))
    assert (found["device"]["signed_by"], found["history"][0]["signed_by"]) == ("bea", "bea")


def test_a_signature_that_nobody_looked_at_names_nobody(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(InMemory, "trusted", None)
    assert "signed by" not in run(config, "list")
    assert json.loads(run(config, "show", "acme/bus-2", "--json"))["device"]["signed_by"] == ""


def publishing(monkeypatch: pytest.MonkeyPatch, *, holds: bool = True, missing: tuple[str, ...] | None = None) -> None:
    made = tuple(read_entry(*message, None) for message in MESSAGES[:1])
    became = Became.CONFIRMED if holds else Became.OUTRANKED
    devices = {one.entry.name: DeviceOutcome(became, "" if holds else "another holds") for one in made}
    outcome = ChangeOutcome(made, devices, missing, "us refuses it: unknown-key" if missing else "")
    monkeypatch.setattr(InMemory, "publish", lambda *_, **__: outcome)


CHANGES = {
    "expect": ("acme/new", "--region", "eu", "--by-hand"),
    "suspend": ("acme/bus-1",),
    "resume": ("acme/bus-1",),
    "revoke": ("acme/bus-1",),
    "move": ("acme/bus-1", "zeta", "--by-hand"),
    "replace": ("acme/bus-1", "bus-9", "--by-hand"),
}


@pytest.mark.parametrize("command", [name for name in CHANGES if name != "resume"])
@pytest.mark.parametrize(
    ("holds", "missing", "status", "result"),
    [
        (True, None, 0, "done"),
        (True, (), 0, "done"),
        (False, None, 4, "outranked"),
        (True, ("eu",), 5, "not-confirmed"),
    ],
)
def test_programs_hear_what_became_of_each_change(
    config: Path, monkeypatch: pytest.MonkeyPatch, command: str, *, holds: bool, missing: Any, status: int, result: str
) -> None:
    publishing(monkeypatch, holds=holds, missing=missing)
    arguments = [command, *CHANGES[command], "--reason", "because", "--json", "--config", str(config)]
    done = CliRunner().invoke(app, arguments)
    said = json.loads(done.stdout)
    assert (done.exit_code, said["result"], done.stderr) == (status, result, "")
    assert [one["device"] for one in said["devices"]] == ["bus-1"]
    assert said["missing"] == [*(missing or ())]
    assert bool(said["why"]) == bool(status)


@pytest.mark.parametrize("command", CHANGES)
def test_programs_hear_that_the_settings_are_wrong(tmp_path: Path, command: str) -> None:
    arguments = [command, *CHANGES[command], "--reason", "because", "--json", "--config", str(tmp_path / "none.toml")]
    done = CliRunner().invoke(app, arguments)
    assert (done.exit_code, json.loads(done.stdout)["result"]) == (78, "wrong-settings")


def test_programs_hear_that_a_change_is_refused(config: Path) -> None:
    arguments = ["resume", "acme/bus-1", "--reason", "because", "--json", "--config", str(config)]
    done = CliRunner().invoke(app, arguments)
    said = json.loads(done.stdout)
    assert (done.exit_code, said["result"]) == (3, "refused")
    assert "acme/bus-1" in said["why"]


@pytest.mark.parametrize(
    "arguments", [("expect", "zetta/bus-1", "--region", "eu"), ("move", "acme/bus-1", "zetta")], ids=["expect", "move"]
)
def test_a_tenant_that_there_is_not_is_refused_with_the_one_that_may_be_meant(
    config: Path, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    token = tmp_path / "bus-1.token"
    more = ["--token-file", str(token), "--reason", "sold", "--config", str(config)]
    refused = CliRunner().invoke(app, [*arguments, *more])
    assert refused.exit_code == 3, refused.output
    assert "there is no tenant 'zetta': did you mean zeta?" in refused.stderr
    assert not token.exists()


@pytest.mark.parametrize(
    ("device", "region", "said"),
    [
        ("acme/bus-1", "EU", "there is no region 'EU': did you mean eu? `regions` of {config} names eu;"),
        ("acme/bus-1", "mars", "there is no region 'mars': `regions` of {config} names eu;"),
        ("kaze/bus-1", "eu", "there is no tenant 'kaze': `tenants` of {config} names acme, zeta;"),
    ],
)
def test_what_the_settings_do_not_name_is_refused_before_the_registry_is_read(
    config: Path, monkeypatch: pytest.MonkeyPatch, device: str, region: str, said: str
) -> None:
    def enter(_: object) -> None:
        raise AssertionError("nothing has to be read for that")

    monkeypatch.setattr(InMemory, "__enter__", enter)
    expect = ["expect", device, "--region", region, "--by-hand", "--reason", "new", "--config", str(config)]
    refused = CliRunner().invoke(app, expect)
    assert (refused.exit_code, said.format(config=config) in refused.stderr) == (3, True), refused.output


def test_while_a_region_is_missing_nothing_is_called_confirmed_and_one_that_the_settings_lack_is_named(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = tuple(read_entry(*message, None) for message in MESSAGES[:1])
    outcome = ChangeOutcome(made, {}, ("asia",), "asia has not confirmed it", ("eu", "us"), ("asia",))
    monkeypatch.setattr(InMemory, "publish", lambda *_, **__: outcome)
    command = ["revoke", "acme/bus-1", "--reason", "stolen", "--config", str(config)]
    done = CliRunner().invoke(app, command)
    assert (done.exit_code, "confirmed:" in done.stdout) == (5, False)
    assert "`regions` of the settings lacks asia" in done.stderr
    assert "in force in eu, us alone after 10 s: asia has not confirmed it" in done.stderr
    found = json.loads(CliRunner().invoke(app, [*command, "--json"]).stdout)
    assert (found["confirmed"], found["missing"], found["unlisted"]) == (["eu", "us"], ["asia"], ["asia"])


def test_what_a_region_calls_itself_and_says_moves_no_cursor(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = tuple(read_entry(*message, None) for message in MESSAGES[:1])
    (name,) = (one.entry.name for one in made)
    why = "a\x1b[2J refuses it: \x9b1m"
    missing = {name: DeviceOutcome(Became.NOT_CONFIRMED, why)}
    for outcome in (
        ChangeOutcome(made, missing, ("a\x1b[2J",), why, ("eu\x1b[1m",), ("a\x1b[2J",)),
        ChangeOutcome(made, {}, (), "", ("eu\x1b[1m",)),
    ):
        monkeypatch.setattr(InMemory, "publish", lambda *_, made=outcome, **__: made)
        done = CliRunner().invoke(app, ["revoke", "acme/bus-1", "--reason", "stolen", "--config", str(config)])
        assert r"\x1b[" in done.output
        assert not {"\x1b", "\x9b"} & {*done.output}
    monkeypatch.setattr(InMemory, "unconfirmed", {name: why})
    listed = CliRunner().invoke(app, ["list", "--config", str(config)]).output
    assert r"NOT CONFIRMED: a\x1b[2J refuses it: \x9b1m" in listed


def test_a_device_that_was_never_enrolled_is_listed_so_and_resume_names_the_way_on(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    resumed = DevicePublication(resume(suspend(expected(), CHANGE), CHANGE), "id")
    monkeypatch.setattr(InMemory, "publications", lambda _: [resumed])
    assert "  active (never enrolled)  " in run(config, "list")
    assert [one["never_enrolled"] for one in json.loads(run(config, "list", "--json"))] == [True]
    monkeypatch.setattr(InMemory, "publish", lambda *_, **__: ChangeOutcome((resumed,)))
    monkeypatch.setattr(InMemory, "get", lambda *_: suspend(expected(), CHANGE))
    assert "expect acme/bus-1 --region eu --again" in run(config, "resume", "acme/bus-1", "--reason", "x")


def test_an_expected_device_whose_predecessor_ended_otherwise_is_said_to_be_one_of_its_own(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = move(active(), "zeta", Beginning(CLAIM), CHANGE)[1]
    held = {"zeta/bus-1": begun, "acme/bus-1": revoke(active(), CHANGE)}
    made: list[DeviceEntry] = []

    def published(_: object, entries: Iterable[DeviceEntry], *__: object, **___: object) -> ChangeOutcome:
        made.extend(entries)
        return ChangeOutcome(())

    monkeypatch.setattr(InMemory, "get", lambda _, name: held.get(name))
    monkeypatch.setattr(InMemory, "publish", published)
    options = ["--region", "eu", "--factory", "SN-1", "--reason", "x", "--config", str(config)]
    done = CliRunner().invoke(app, ["expect", "zeta/bus-1", "--again", *options])
    assert (done.exit_code, [one.predecessor for one in made]) == (0, [None]), done.output
    assert "acme/bus-1 ended otherwise: zeta/bus-1 is a device of its own" in done.stderr


def test_a_token_that_was_given_out_ends_by_again_alone_and_never_unseen(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def published(_: object, entries: Iterable[DeviceEntry], *__: object, **___: object) -> ChangeOutcome:
        return ChangeOutcome(tuple(DevicePublication(one, "019e") for one in entries))

    monkeypatch.setattr(InMemory, "get", lambda *_: expected())
    monkeypatch.setattr(InMemory, "publish", published)
    options = ["--reason", "x", "--config", str(config), "--region", "eu"]
    for claim in (["--token-file", str(tmp_path / "other.token")], ["--by-hand"]):
        done = CliRunner().invoke(app, ["expect", "acme/bus-1", *claim, *options])
        assert done.exit_code == 3
        assert "expected already, in region eu with a one-time token that is good" in done.stderr
        assert (tmp_path / "other.token").exists() is (claim == ["--by-hand"]), "of the one before that was published"
        done = CliRunner().invoke(app, ["expect", "acme/bus-1", "--again", *claim, *options])
        assert done.exit_code == 0
        assert "acme/bus-1: it was expected in region eu with a one-time token" in done.stderr
        assert "void" in done.stderr
    done = CliRunner().invoke(app, ["expect", "acme/bus-1", "--again", "--by-hand", "--json", *options])
    assert "void" in json.loads(done.stdout)["void"]["acme/bus-1"]


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["show", "acme/bus-9"], 3, "waybill device: the registry has no device acme/bus-9: did you mean acme/bus-2?"),
        (
            ["resume", "acme/bus-1", "--reason", "x"],
            3,
            "resume of acme/bus-1 is refused by its entry in the registry: it",
        ),
        (["show", "bus-9"], 2, "write TENANT/DEVICE"),
        (["replace", "acme/bus-1", "acme/bus-9", "--by-hand", "--reason", "x"], 2, "write the name alone"),
        (["replace", "acme/bus-1", "bus 9", "--by-hand", "--reason", "x"], 2, "'bus 9' is no name of a device"),
        (["revoke", "acme/bus-1", "--reason", " "], 2, "the reason is one line"),
        (["revoke", "acme/bus-1", "--reason", "x" * 501], 2, "the reason is one line"),
        (["revoke", "acme/bus-1", "--reason", "x", "--key", "nowhere.key"], 2, "does not exist"),
        (["list", "--tenant", "acmee"], 0, "no device of 'acmee': did you mean acme? it has those of acme"),
        (["list", "--tenant", "kaze"], 0, "no device of 'kaze': it has those of acme"),
    ],
)
def test_what_is_wrong_is_said_with_the_value_and_what_to_write(
    config: Path, arguments: list[str], status: int, said: str
) -> None:
    done = CliRunner().invoke(app, [*arguments, "--config", str(config)], env={"COLUMNS": "300"})
    assert (done.exit_code, said in done.stderr) == (status, True), done.stderr


@pytest.mark.parametrize(("claim", "is_said"), [("--by-hand", True), ("--factory", False)])
def test_a_device_by_hand_is_said_to_be_let_in_at_once(
    config: Path, monkeypatch: pytest.MonkeyPatch, claim: str, is_said: bool
) -> None:
    def published(_: object, entries: Iterable[DeviceEntry], *__: object, **___: object) -> ChangeOutcome:
        return ChangeOutcome(tuple(DevicePublication(one, "019e") for one in entries))

    monkeypatch.setattr(InMemory, "publish", published)
    options = [claim, *(["SN-1"] if claim == "--factory" else []), "--region", "eu", "--reason", "new"]
    said = run(config, "expect", "acme/bus-7", *options)
    advice = (
        "it may connect at once, with a certificate by hand: waybill pki device acme/bus-7 --region eu --out FOLDER"
    )
    assert (advice in said) is is_said


def test_an_empty_registry_is_said_to_be_empty(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(InMemory, "publications", lambda _: [])
    assert "no device yet" in CliRunner().invoke(app, ["list", "--config", str(config)]).stderr


def test_files_that_the_settings_name_and_that_are_missing_are_wrong_settings(config: Path, tmp_path: Path) -> None:
    config.write_text(config.read_text() + f'[access]\ntoken_file = "{tmp_path}/nope.token"\n')
    done = CliRunner().invoke(app, ["list", "--config", str(config)])
    assert (done.exit_code, f"{tmp_path}/nope.token" in done.stderr) == (78, True), done.stderr


def test_a_token_file_in_a_folder_that_is_not_there_is_refused_by_its_name(config: Path) -> None:
    options = ["--region", "eu", "--token-file", "/nodir/b.token", "--reason", "x", "--config", str(config)]
    done = CliRunner().invoke(app, ["expect", "acme/bus-4", *options], env={"COLUMNS": "300"})
    assert (done.exit_code, "there is no such file or folder" in done.stderr) == (2, True), done.stderr


def test_what_takes_a_while_is_shown_once_where_no_terminal_is(capsys: pytest.CaptureFixture[str]) -> None:
    moments = iter([0.0, 1.0, 2.5, 3.0])
    with shows_progress(lambda: next(moments)) as shown:
        shown("reading the registry", 1)
        shown("reading the registry", 2)
        shown("reading the registry", 3_000)
        shown("reading the registry", 4_000)
    assert capsys.readouterr().err == "waybill device: reading the registry: 3,000 ...\n"


def test_with_a_token_that_has_ended_a_command_is_refused_at_once(tmp_path: Path) -> None:
    token = token_file(tmp_path, "fleet-operator", ends_in_s=-86_400)
    config = tmp_path / "operator.toml"
    config.write_text(
        'service_url = "pulsar://127.0.0.1:1"\nadmin_url = "http://127.0.0.1:1"\nregions = ["eu"]\n'
        f'tenants = ["acme"]\nunsigned = true\naccess.token_file = "{token}"\n'
    )
    said = CliRunner().invoke(app, ["suspend", "acme/bus-1", "--reason", "x", "--config", str(config), "--json"])
    answer = json.loads(said.stdout)
    assert (said.exit_code, answer["result"]) == (3, "refused")
    assert f"token of fleet-operator in {token} ended at" in answer["why"]


def test_where_the_local_stack_does_not_run_a_command_says_so_at_once(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        text = re.sub(
            r'service_url = ".*"', f'service_url = "pulsar://127.0.0.1:{taken.getsockname()[1]}"', config.read_text()
        )
        (config.parent / "operator.toml").write_text(text)
        monkeypatch.setenv("WAYBILL_STACK", str(config.parent))
        done = CliRunner().invoke(app, ["list"])
        assert (done.exit_code, "waybill up" in done.stderr) == (1, True), done.output
        taken.listen()
        assert CliRunner().invoke(app, ["list"]).exit_code == 0
