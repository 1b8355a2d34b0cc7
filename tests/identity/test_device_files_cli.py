"""`waybill reference ... devices` as a command, on a registry in memory: all of a file, or nothing of it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import cast

import pytest
from typer.testing import CliRunner, Result

import waybill.identity.registry_session as registry_session_module
from cloud_jobs.reference_cli import app
from tests.identity.registry_in_memory import InMemory
from tests.identity.registry_strategies import CHANGE, active
from waybill.identity.change_outcome import Became, ChangeCutShort, ChangeOutcome, DeviceOutcome
from waybill.identity.claims import make_token, read_token
from waybill.identity.device_file import MAX_DEVICES_FILE_BYTES
from waybill.identity.errors import SignatureFault, SignatureRefused
from waybill.identity.registry import Claim, DeviceEntry, DeviceState, expect, revoke, suspend
from waybill.identity.registry_messages import DevicePublication

HELD = [
    active(device="active"),
    suspend(active(device="suspended"), CHANGE),
    revoke(active(device="revoked"), CHANGE),
]


class Registry(InMemory):
    """A registry that takes what is published."""

    trusted = None
    held: dict[str, DeviceEntry]
    wait_s = -1.0

    def publications(self) -> list[DevicePublication]:
        return [DevicePublication(one, "019e") for one in self.held.values()]

    def publish(self, *given: object, **_: object) -> ChangeOutcome:
        entries, wait_s = cast("tuple[Iterable[DeviceEntry], float]", given)
        made = tuple(entries)
        self.held.update({one.name: one for one in made})
        type(self).wait_s = wait_s
        return ChangeOutcome(tuple(DevicePublication(one, "019e") for one in made))


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> dict[str, DeviceEntry]:
    made = {one.name: one for one in HELD}
    monkeypatch.setattr(Registry, "held", made, raising=False)
    monkeypatch.setattr(registry_session_module, "RegistrySession", Registry)
    return made


@pytest.fixture
def config(tmp_path: Path) -> Path:
    file = tmp_path / "operator.toml"
    file.write_text(
        'admin_url = "http://nowhere"\nservice_url = "pulsar://127.0.0.1:1"\nregions = ["eu"]\nunsigned = true\n'
        'tenants = ["acme", "zeta"]\n'
    )
    return file


def table(device: str, state: str, **more: str | int) -> str:
    keys = {"tenant": "acme", "device": device, "state": state} | more
    written = {name: value if isinstance(value, int) else f'"{value}"' for name, value in keys.items()}
    return "[[device]]\n" + "".join(f"{name} = {value}\n" for name, value in written.items())


GOOD = (
    table("new", "expected", region="eu")
    + table("serial", "expected", region="eu", factory="SN-1")
    + table("active", "suspended")
    + table("suspended", "active", resumes=2)
    + table("revoked", "revoked")
)


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(one) for one in arguments], env={"COLUMNS": "300"})


def file_of(folder: Path, text: str) -> Path:
    file = folder / "devices.toml"
    file.write_text(text)
    return file


def test_a_file_is_published_whole_and_then_asks_for_nothing(
    tmp_path: Path, config: Path, held: dict[str, DeviceEntry]
) -> None:
    file, tokens = file_of(tmp_path, GOOD), tmp_path / "tokens"
    done = run("diff", "devices", file, "-c", config)
    assert done.exit_code == 1
    assert [line.removeprefix(f"{file}:") for line in done.stdout.splitlines()] == [
        "1: acme/new: new, expected, region eu (expect)",
        "6: acme/serial: new, expected, region eu (expect)",
        "12: acme/active: active -> suspended (version 1 by anna)",
        "16: acme/suspended: suspended -> active (version 2 by anna)",
        "21: acme/revoked: same, revoked (version 2 by anna)",
    ]
    done = run("put", "devices", file, "-c", config, "-m", "fleet of 2027", "--tokens", tokens)
    assert done.exit_code == 0, done.output
    assert "changes: 2 expect, 1 resume, 1 suspend; 1 as they are" in done.stdout
    assert {name: str(one.state) for name, one in held.items()} == {
        "acme/active": "suspended",
        "acme/suspended": "active",
        "acme/revoked": "revoked",
        "acme/new": "expected",
        "acme/serial": "expected",
    }
    assert {one.reason for name, one in held.items() if name != "acme/revoked"} == {"fleet of 2027"}
    assert Registry.wait_s == 10, "somebody is locked out"
    token, claim = tokens / "acme" / "new.token", held["acme/new"].claim
    assert (token.stat().st_mode & 0o777, (tokens / "acme").stat().st_mode & 0o777) == (0o600, 0o700)
    assert claim is not None
    assert claim.password_hash == read_token(token.read_text().strip()).password_hash
    assert [one.relative_to(tokens).as_posix() for one in tokens.rglob("*.token")] == ["acme/new.token"]
    for _ in range(2):
        again = run("put", "devices", file, "-c", config, "-m", "once more")
        assert (again.exit_code, again.stdout) == (0, "changes: none; 5 as they are\n"), again.output
    assert run("diff", "devices", file, "-c", config).exit_code == 0


def test_of_a_file_with_a_fault_nothing_is_published_and_all_faults_are_named(
    tmp_path: Path, config: Path, held: dict[str, DeviceEntry]
) -> None:
    wrong = (
        GOOD
        + table("nobody", "suspended")
        + table("far", "expected", region="mars")
        + table("other", "expected", region="eu", tenant="acne")
        + table("active-2", "moved")
    )
    file, tokens = file_of(tmp_path, wrong), tmp_path / "tokens"
    for command in (
        ("check", "devices", file, "-c", config),
        ("diff", "devices", file, "-c", config),
        ("put", "devices", file, "-c", config, "-m", "x", "--tokens", tokens),
    ):
        done = run(*command)
        assert (done.exit_code, "4 faults; nothing can be published" in done.stderr) == (1, True), done.output
        assert f"{file}:25: acme/nobody: the registry has no such device" in done.stderr
        assert "did you mean acme/bus-2?" in done.stderr
        assert f"{file}:29: acme/far: there is no region 'mars'" in done.stderr
        assert f"{file}:34: acne/other: there is no tenant 'acne': did you mean acme?" in done.stderr
        assert f"{file}:39: acme/active-2: a file has no such change: `waybill device move`" in done.stderr
        said = json.loads(run(*command, "--json").stdout)
        kinds = [one["fault"] for one in said["faults"]]
        assert kinds == ["not-known", "not-in-settings", "not-in-settings", "not-by-file"]
    assert held == {one.name: one for one in HELD}
    assert not tokens.exists()


def test_a_token_without_a_folder_and_a_change_without_a_right_are_faults_at_their_places(
    tmp_path: Path, config: Path, held: dict[str, DeviceEntry], monkeypatch: pytest.MonkeyPatch
) -> None:
    file, tokens = file_of(tmp_path, GOOD), tmp_path / "tokens"
    done = run("put", "devices", file, "-c", config, "-m", "x")
    assert (done.exit_code, f"{file}:1: acme/new: it gets a one-time token" in done.stderr) == (1, True), done.output
    no_right = SignatureRefused(SignatureFault.NO_RIGHT, "not for acme")
    monkeypatch.setattr(InMemory, "refusal", lambda *_: no_right)
    done = run("put", "devices", file, "-c", config, "-m", "x", "--tokens", tokens)
    assert (done.exit_code, done.stderr.count("no-right: not for acme")) == (1, 4), done.output
    assert not [*tokens.rglob("*.token")], "a token that was never published does not stay"
    assert held == {one.name: one for one in HELD}


def test_a_put_that_was_cut_short_is_given_again_with_the_same_tokens(
    tmp_path: Path, config: Path, held: dict[str, DeviceEntry], monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"new-{number}" for number in range(4)]
    file = file_of(tmp_path, "".join(table(name, "expected", region="eu") for name in names))
    tokens = tmp_path / "tokens"

    def breaks(self: Registry, entries: Iterable[DeviceEntry], *_: object, **__: object) -> ChangeOutcome:
        first, *left = entries
        self.held[first.name] = first
        devices = {one.name: DeviceOutcome(Became.NOT_PUBLISHED, "its turn did not come") for one in left}
        cut = "cut short: the link is cut"
        raise ChangeCutShort(ChangeOutcome((DevicePublication(first, "019e"),), devices, cut_short=cut))

    with monkeypatch.context() as cut:
        cut.setattr(Registry, "publish", breaks)
        done = run("put", "devices", file, "-c", config, "-m", "x", "--tokens", tokens)
    assert (done.exit_code, "cut short: the link is cut" in done.stderr) == (75, True), done.output
    assert "acme/new-0: expected, version 1" in done.stdout
    assert "acme/new-3:  NOT PUBLISHED: its turn did not come" in done.stdout
    before = {one.name: one.read_text() for one in tokens.rglob("*.token")}
    assert len(before) == 4
    assert run("put", "devices", file, "-c", config, "-m", "x", "--tokens", tokens).exit_code == 0
    assert {one.name: one.read_text() for one in tokens.rglob("*.token")} == before
    for name in names:
        claim = held[f"acme/{name}"].claim
        assert claim is not None
        assert claim.id == read_token(before[f"{name}.token"].strip()).id


def test_a_file_where_a_token_belongs_that_is_none_is_left_alone_and_named(
    tmp_path: Path, config: Path, held: dict[str, DeviceEntry]
) -> None:
    file, other = file_of(tmp_path, table("new", "expected", region="eu")), tmp_path / "tokens" / "acme" / "new.token"
    other.parent.mkdir(parents=True)
    other.write_text("my notes")
    other.chmod(0o600)
    done = run("put", "devices", file, "-c", config, "-m", "x", "--tokens", tmp_path / "tokens")
    assert (done.exit_code, "this is no enrolment token" in done.stderr) == (1, True), done.output
    assert (other.read_text(), len(held)) == ("my notes", len(HELD))


def spoil(kind: str, file: Path) -> None:
    """What somebody may have put where a token belongs."""
    token = make_token().text.get_secret_value() + "\n"
    if kind == "link":
        (file.parent / "other").write_text(token)
        (file.parent / "other").chmod(0o600)
        file.symlink_to("other")
    elif kind == "pipe":
        os.mkfifo(file, 0o600)
    else:
        file.write_text(token)
        file.chmod(0o666 if kind == "others may write it" else 0o600)
    if kind == "folder":
        file.parent.chmod(0o777)
    if kind == "another token twice":
        (file.parent / "new-2.token").write_text(token)
        (file.parent / "new-2.token").chmod(0o600)


@pytest.mark.parametrize("kind", ["link", "pipe", "others may write it", "folder", "another token twice"])
def test_a_token_that_another_may_have_put_there_is_not_published(
    tmp_path: Path, config: Path, held: dict[str, DeviceEntry], kind: str
) -> None:
    text = table("new", "expected", region="eu") + table("new-2", "expected", region="eu")
    tokens = tmp_path / "tokens"
    (tokens / "acme").mkdir(parents=True, mode=0o700)
    spoil(kind, tokens / "acme" / "new.token")
    done = run("put", "devices", file_of(tmp_path, text), "-c", config, "-m", "x", "--tokens", tokens)
    assert (done.exit_code, "no token can be" in done.stderr or "cannot be written" in done.stderr) == (1, True), done
    assert held == {one.name: one for one in HELD}


def test_the_folder_of_tokens_is_this_users_alone(tmp_path: Path, config: Path, held: dict[str, DeviceEntry]) -> None:
    file, tokens = file_of(tmp_path, table("new", "expected", region="eu")), tmp_path / "a" / "tokens"
    assert run("put", "devices", file, "-c", config, "-m", "x", "--tokens", tokens).exit_code == 0
    assert [one.stat().st_mode & 0o777 for one in (tokens, tokens / "acme")] == [0o700, 0o700]
    assert "acme/new" in held


def test_one_factory_serial_is_not_given_to_several_devices(
    tmp_path: Path, config: Path, held: dict[str, DeviceEntry]
) -> None:
    serials = {"region": "eu", "factory": "SN-1"}
    file = file_of(tmp_path, table("s1", "expected", **serials) + table("s2", "expected", **serials))
    for command in (("check", "devices", file), ("check", "devices", file, "-c", config)):
        done = run(*command)
        assert (done.exit_code, done.stderr.splitlines()[0]) == (
            1,
            f"{file}:7: acme/s2: the factory serial SN-1 is that of acme/s1 ({file}:1)",
        )
    held["acme/s0"] = expect("acme", "s0", region="eu", claim=Claim(id="SN-1"), change=CHANGE)
    file = file_of(tmp_path, table("s1", "expected", **serials) + table("s0", "expected"))
    done = run("put", "devices", file, "-c", config, "-m", "x")
    assert (done.exit_code, "serial SN-1 is that of acme/s0" in done.stderr) == (1, True), done.output


def test_a_list_that_no_command_takes_as_a_file_says_so(
    config: Path, held: dict[str, DeviceEntry], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("waybill.identity.device_file.MAX_DEVICES", len(held) - 1)
    done = run("list", "devices", "--toml", "-c", config)
    assert (done.exit_code, "3 devices, and a command takes 2" in done.stderr) == (0, True), done.output


def test_a_file_without_a_device_is_none(tmp_path: Path) -> None:
    done = run("check", "devices", file_of(tmp_path, "# later\n"), "--json")
    said = json.loads(done.stdout)
    assert (done.exit_code, said["result"], said["faults"][0]["reason"]) == (1, "fault", "no device is in it")


def test_a_file_without_a_device_is_none_beside_another_one_either(tmp_path: Path) -> None:
    file, empty = file_of(tmp_path, GOOD), tmp_path / "empty.toml"
    empty.write_text("")
    done = run("check", "devices", empty, file)
    assert (done.exit_code, f"{empty}: cannot" in done.stderr, f"{empty}: no device is in it" in done.stderr) == (
        1,
        False,
        True,
    ), done.output


def test_what_a_file_says_moves_no_cursor_where_its_faults_are_named(tmp_path: Path) -> None:
    wrong = table("a\\u001b[2Jb", "expected") + '["\\u001b[2J"]\n[[device]]\n"\\u202e" = 1\n'
    file = tmp_path / "x\x1b[2J.toml"
    file.write_text(wrong)
    done = CliRunner().invoke(app, ["check", "devices", str(file)], color=True)
    assert done.exit_code == 1
    assert [line for line in done.stderr.splitlines() if not line.isprintable()] == []
    assert "\\x1b[2J: no such table" in done.stderr


def test_the_files_of_a_command_are_bounded_together(tmp_path: Path) -> None:
    files = [tmp_path / f"{number}.toml" for number in range(3)]
    for number, file in enumerate(files):
        file.write_text("".join(table(f"b-{number}-{one}", "revoked") for one in range(4000)))
    done = run("check", "devices", *files)
    assert (done.exit_code, f"{files[2]}:8001: the files of a command have at most 10,000" in done.stderr) == (1, True)
    for file in files:
        file.write_text("#" * (MAX_DEVICES_FILE_BYTES // 2))
    assert f"{files[2]}: cannot be read: it has more than" in run("check", "devices", *files).stderr


def test_a_check_without_settings_judges_the_file_alone(tmp_path: Path) -> None:
    file = file_of(tmp_path, GOOD)
    done = run("check", "devices", file)
    assert (done.exit_code, done.stdout) == (0, "right by themselves, not held against the registry: 5 devices\n")
    assert run("devices", "check", file).stdout == done.stdout, "the words may stand in either order"
    assert run("check", "--json", "devices", file).stdout == run("devices", "check", "--json", file).stdout
    assert run("check", "-c", tmp_path / "none.toml", "devices", file).stdout == ""
    assert run("check", "-c", tmp_path / "none.toml", "devices", file).exit_code == 78
    assert run("check", "devices", tmp_path / "none.toml").exit_code == 1
    assert run("check", "devices", file, "-c", tmp_path / "none.toml").exit_code == 78


def test_the_registry_is_listed_as_a_file_that_changes_nothing(
    tmp_path: Path, config: Path, held: dict[str, DeviceEntry]
) -> None:
    text = run("list", "devices", "--toml", "-c", config).stdout
    assert text.count("[[device]]") == len(held)
    assert run("diff", "devices", file_of(tmp_path, text), "-c", config).exit_code == 0
    assert len(run("list", "devices", "-c", config).stdout.splitlines()) == len(held)
    assert run("history", "devices", "acme/active", "-c", config).stdout.count("because") == 1
    assert held["acme/active"].state is DeviceState.ACTIVE
