"""`waybill reference ... devices`: all of a file, or nothing of it; tokens stay where they open something."""

# ruff: noqa: F811 - a fixture is asked for by its name

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cloud_jobs.reference.commands import app
from tests.identity.registry_strategies import CERTIFICATE, CHANGE, active
from tests.identity.registry_world import (  # noqa: F401 - fixtures
    Command,
    World,
    command,
    config,
    outcomes,
    put,
    table,
    world,
)
from waybill.identity.claims import make_token, read_token
from waybill.identity.device_files import MAX_DEVICES_FILE_BYTES
from waybill.identity.errors import SignatureFault, SignatureRefused
from waybill.identity.registry import Claim, enrol, expect, revoke, suspend
from waybill.identity.registry_session import RegistrySession
from waybill.identity.registry_topic import RegistryUnreachable

GOOD = (
    table("new", "expected", region="eu")
    + table("serial", "expected", region="eu", factory="SN-1")
    + table("active", "suspended")
    + table("suspended", "active", resumes=2)
    + table("revoked", "revoked")
)


@pytest.fixture
def fleet(world: World) -> World:
    for entry in (
        active(device="active"),
        suspend(active(device="suspended"), CHANGE),
        revoke(active(device="revoked"), CHANGE),
    ):
        world.confirmed(entry)
    return world


def test_a_file_is_published_whole_and_then_asks_for_nothing(
    tmp_path: Path, fleet: World, command: Command, put: Command
) -> None:
    tokens = tmp_path / "a" / "tokens"
    done = put(GOOD, "--tokens", tokens)
    assert (done.exit_code, "changes: 2 expect, 1 resume, 1 suspend; 1 as they are" in done.stdout) == (0, True), done
    assert fleet.states == {
        "active": "suspended",
        "suspended": "active",
        "revoked": "revoked",
        "new": "expected",
        "serial": "expected",
    }
    token, claim = tokens / "acme" / "new.token", fleet.held()["acme/new"].claim
    assert [one.stat().st_mode & 0o777 for one in (token, tokens / "acme", tokens)] == [0o600, 0o700, 0o700]
    assert claim is not None
    assert claim.password_hash == read_token(token.read_text().strip()).password_hash
    assert [one.name for one in tokens.rglob("*.token")] == ["new.token"]
    before = len(fleet.messages)
    assert (put(GOOD).exit_code, len(fleet.messages)) == (0, before)
    assert command("diff", tmp_path / "devices.toml").exit_code == 0
    fleet.confirmed(enrol(fleet.held()["acme/serial"], CERTIFICATE, CHANGE))
    assert put(GOOD).exit_code == 0, "who is enrolled by now is as the file says"
    # The registry as a file changes nothing of it.
    listed = tmp_path / "listed.toml"
    listed.write_text(command("toml").stdout)
    assert (listed.read_text().count("[[device]]"), command("diff", listed).exit_code) == (5, 0)
    assert command("history", "acme/active").stdout.count("because") == 2


def test_a_difference_is_shown_by_device_and_place(tmp_path: Path, fleet: World, command: Command) -> None:
    file = tmp_path / "devices.toml"
    file.write_text(GOOD)
    done = command("diff", file)
    assert done.exit_code == 1
    assert [line.removeprefix(f"{file}:") for line in done.stdout.splitlines()] == [
        "1: acme/new: new, expected, region eu (expect)",
        "6: acme/serial: new, expected, region eu (expect)",
        "12: acme/active: active -> suspended (version 1 by anna)",
        "16: acme/suspended: suspended -> active (version 2 by anna)",
        "21: acme/revoked: same, revoked (version 2 by anna)",
    ]
    facts = json.loads(command("diff", file, "--json").stdout)["devices"]
    assert [one["change"] for one in facts] == ["expect", "expect", "suspend", "resume", "nothing"]


def test_of_a_file_with_a_fault_nothing_is_published_and_all_faults_are_named(
    tmp_path: Path, fleet: World, command: Command
) -> None:
    file, tokens, before = tmp_path / "devices.toml", tmp_path / "tokens", len(fleet.messages)
    file.write_text(
        GOOD
        + table("activ", "suspended")
        + table("far", "expected", region="mars")
        + table("other", "expected", region="eu", tenant="acne")
        + table("active-2", "moved")
    )
    for asked in (("check", file), ("diff", file), ("put", file, "--tokens", tokens)):
        done = command(*asked)
        assert (done.exit_code, "4 faults; nothing can be published" in done.stderr) == (1, True), done.output
        assert f"{file}:25: acme/activ: the registry has no such device" in done.stderr
        assert "did you mean acme/active?" in done.stderr
        assert f"{file}:29: acme/far: there is no region 'mars'" in done.stderr
        assert f"{file}:34: acne/other: there is no tenant 'acne': did you mean acme?" in done.stderr
        assert f"{file}:39: acme/active-2: a file has no such change: `waybill device move`" in done.stderr
        kinds = [one["fault"] for one in json.loads(command(*asked, "--json").stdout)["faults"]]
        assert kinds == ["not-known", "not-in-settings", "not-in-settings", "not-by-file"]
    assert (len(fleet.messages), tokens.exists()) == (before, False)


def test_a_token_without_a_folder_and_a_change_without_a_right_are_faults_at_their_places(
    tmp_path: Path, fleet: World, put: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, tokens = len(fleet.messages), tmp_path / "tokens"
    done = put(GOOD)
    assert (done.exit_code, ":1: acme/new: it gets a one-time token" in done.stderr) == (1, True), done.output
    no_right = SignatureRefused(SignatureFault.NO_RIGHT, "not for acme")
    monkeypatch.setattr(RegistrySession, "refusal", lambda *_: no_right)
    done = put(GOOD, "--tokens", tokens)
    assert (done.exit_code, done.stderr.count("no-right: not for acme")) == (1, 4), done.output
    assert not [*tokens.rglob("*.token")], "a token that was never published does not stay"
    assert len(fleet.messages) == before


def test_a_put_that_was_cut_short_is_given_again_with_the_same_tokens(
    tmp_path: Path, world: World, put: Command
) -> None:
    def cut() -> None:
        raise RegistryUnreachable("the link is cut")

    names = [f"new-{number}" for number in range(4)]
    text, tokens = "".join(table(name, "expected", region="eu") for name in names), tmp_path / "tokens"
    world.before["acme/new-1"] = cut
    done = put(text, "--tokens", tokens)
    assert (done.exit_code, "cut short: 1 published, 3 not published" in done.stderr) == (75, True), done.output
    before = {one.name: one.read_text() for one in tokens.rglob("*.token")}
    assert [*before] == ["new-0.token"], "of what was not published no token stays"
    assert put(text, "--tokens", tokens).exit_code == 0
    after = {one.name: one.read_text() for one in tokens.rglob("*.token")}
    assert (len(after), before.items() <= after.items()) == (4, True)
    for name, entry in world.held().items():
        assert entry.claim is not None
        assert entry.claim.id == read_token(after[f"{name.removeprefix('acme/')}.token"].strip()).id


def test_what_changed_meanwhile_is_refused_by_its_name_and_its_token_does_not_stay(
    tmp_path: Path, fleet: World, put: Command
) -> None:
    tokens, other = tmp_path / "tokens", expect("acme", "new", region="eu", claim=Claim(id="SN-9"), change=CHANGE)
    fleet.before["acme/active"] = lambda: fleet.confirmed(other)
    done = put(table("active", "suspended") + table("new", "expected", region="eu"), "--tokens", tokens, "--json")
    assert (done.exit_code, outcomes(done)) == (6, {"active": "done", "new": "refused"}), done.output
    assert not [*tokens.rglob("*.token")]


def spoil(kind: str, file: Path) -> None:
    """What somebody may have put where a token belongs."""
    token = make_token().text.get_secret_value() + "\n"
    if kind == "link":
        (file.parent / "other").write_text(token)
        file.symlink_to("other")
    else:
        file.write_text("my notes" if kind == "no token" else token)
    if kind == "folder":
        file.parent.chmod(0o777)
    if kind == "another token twice":
        (file.parent / "new-2.token").write_text(token)


@pytest.mark.parametrize("kind", ["link", "no token", "folder", "another token twice"])
def test_a_token_that_another_may_have_put_there_is_not_published(
    tmp_path: Path, fleet: World, put: Command, kind: str
) -> None:
    tokens, before = tmp_path / "tokens", len(fleet.messages)
    (tokens / "acme").mkdir(parents=True, mode=0o700)
    spoil(kind, tokens / "acme" / "new.token")
    done = put(table("new", "expected", region="eu") + table("new-2", "expected", region="eu"), "--tokens", tokens)
    assert (done.exit_code, "its token cannot be kept in" in done.stderr) == (1, True), done.output
    assert len(fleet.messages) == before


def test_one_factory_serial_is_not_given_to_several_devices(
    tmp_path: Path, fleet: World, command: Command, put: Command
) -> None:
    serials, file = {"region": "eu", "factory": "SN-1"}, tmp_path / "devices.toml"
    file.write_text(table("s1", "expected", **serials) + table("s2", "expected", **serials))
    done = command("check", file)
    said = f"{file}:7: acme/s2: the factory serial SN-1 is that of acme/s1 ({file}:1)"
    assert (done.exit_code, done.stderr.splitlines()[0]) == (1, said)
    fleet.put(expect("acme", "s0", region="eu", claim=Claim(id="SN-1"), change=CHANGE))
    done = put(table("s1", "expected", **serials) + table("s0", "expected"))
    assert (done.exit_code, "serial SN-1 is that of acme/s0" in done.stderr) == (1, True), done.output


def test_of_what_was_published_long_ago_no_region_is_asked(
    fleet: World, put: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet.said.clear()
    later_s = time.time() + 2 * 86_400
    monkeypatch.setattr(time, "time", lambda: later_s)
    done = put(table("revoked", "revoked"), "--json")
    assert (done.exit_code, outcomes(done)) == (0, {"revoked": "done"}), done.output
    assert "not kept so long" in done.stdout


def test_a_token_that_is_refused_at_the_clock_or_interrupted_stays_only_where_it_may_be_published(
    tmp_path: Path, world: World, put: Command
) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    world.before["acme/new"] = interrupt
    done = put(table("new", "expected", region="eu"), "--tokens", tmp_path / "tokens", "--json")
    assert (done.exit_code, outcomes(done)) == (130, {"new": "unconfirmed"}), done.output
    assert len([*tmp_path.rglob("*.token")]) == 1


def run(*arguments: object) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, [str(one) for one in arguments], env={"COLUMNS": "300"}, color=True)
    return done.exit_code, done.stdout, done.stderr


def test_a_check_without_settings_judges_the_file_alone(tmp_path: Path) -> None:
    file, empty, none = tmp_path / "devices.toml", tmp_path / "empty.toml", tmp_path / "none.toml"
    file.write_text(GOOD)
    empty.write_text("# later\n")
    right = "right by themselves, not held against the registry: 5 devices\n"
    assert run("check", "devices", file)[:2] == run("devices", "check", file)[:2] == (0, right)
    assert run("check", "devices", file, "-c", none)[0] == 78
    assert "no device is in it" in run("check", "devices", empty, file)[2]
    assert run("check", "devices", none)[0] == 1
    file.write_text(table("a", "active") * 2)
    assert f"{file}:5: acme/a is given twice ({file}:1)" in run("check", "devices", file)[2]


def test_what_a_file_says_moves_no_cursor_where_its_faults_are_named(tmp_path: Path) -> None:
    file = tmp_path / "x\x1b[2J.toml"
    file.write_text(table("a\\u001b[2Jb", "expected") + '["\\u001b[2J"]\n[[device]]\n"\\u202e" = 1\n')
    status, _, said = run("check", "devices", file)
    assert (status, [line for line in said.splitlines() if not line.isprintable()]) == (1, [])
    assert "\\x1b[2J: no such table" in said


def test_the_files_of_a_command_are_bounded_together(tmp_path: Path) -> None:
    files = [tmp_path / f"{number}.toml" for number in range(3)]
    for number, file in enumerate(files):
        file.write_text("".join(table(f"b-{number}-{one}", "revoked") for one in range(4000)))
    assert f"{files[2]}:8001: the files of a command have at most 10,000" in run("check", "devices", *files)[2]
    for file in files:
        file.write_text("#" * (MAX_DEVICES_FILE_BYTES // 2))
    assert f"{files[2]}: cannot be read: it has more than" in run("check", "devices", *files)[2]


def test_a_put_once_more_says_whether_a_region_has_confirmed_by_now(fleet: World, put: Command) -> None:
    fleet.silent = {"us"}
    text = table("active", "suspended")
    assert [put(text).exit_code, put(text).exit_code] == [5, 5]
    fleet.confirm("us", "acme/active", str(fleet.newest))
    assert put(text).exit_code == 0
