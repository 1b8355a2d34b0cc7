"""`waybill reference ... devices` as a command, on a registry in memory: all of a file, or nothing of it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import cast

import pytest
from typer.testing import CliRunner, Result

import identity.registry_session
from cloud_jobs.reference_cli import app
from identity.claims import read_token
from identity.errors import SignatureFault, SignatureRefused
from identity.registry import DeviceEntry, DeviceState, revoke, suspend
from identity.registry_messages import DevicePublication
from identity.registry_publisher import RegistryUnreachable
from identity.registry_session import ChangeOutcome
from tests.identity.registry_strategies import CHANGE, active
from tests.identity.test_device_cli import InMemory

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

    def publish(self, *given: object) -> ChangeOutcome:
        entries, wait_s = cast("tuple[Iterable[DeviceEntry], float]", given)
        made = tuple(entries)
        self.held.update({one.name: one for one in made})
        type(self).wait_s = wait_s
        return ChangeOutcome(tuple(DevicePublication(one, "019e") for one in made), True, None)


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> dict[str, DeviceEntry]:
    made = {one.name: one for one in HELD}
    monkeypatch.setattr(Registry, "held", made, raising=False)
    monkeypatch.setattr(identity.registry_session, "RegistrySession", Registry)
    return made


@pytest.fixture
def config(tmp_path: Path) -> Path:
    file = tmp_path / "operator.toml"
    file.write_text(
        'admin_url = "http://nowhere"\nservice_url = "pulsar://127.0.0.1:1"\nregions = ["eu"]\nunsigned = true\n'
        'tenants = ["acme", "zeta"]\n'
    )
    return file


def table(device: str, state: str, **more: str) -> str:
    keys = {"tenant": "acme", "device": device, "state": state} | more
    return "[[device]]\n" + "".join(f'{name} = "{value}"\n' for name, value in keys.items())


GOOD = (
    table("new", "expected", region="eu")
    + table("serial", "expected", region="eu", factory="SN-1")
    + table("active", "suspended")
    + table("suspended", "active")
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
        "20: acme/revoked: same, revoked (version 2 by anna)",
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
        assert f"{file}:24: acme/nobody: the registry has no such device" in done.stderr
        assert "did you mean acme/bus-2?" in done.stderr
        assert f"{file}:28: acme/far: there is no region 'mars'" in done.stderr
        assert f"{file}:33: acne/other: there is no tenant 'acne': did you mean acme?" in done.stderr
        assert f"{file}:38: acme/active-2: a file has no such change: `waybill device move`" in done.stderr
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

    def breaks(self: Registry, entries: Iterable[DeviceEntry], *_: object) -> ChangeOutcome:
        first = next(iter(entries))
        self.held[first.name] = first
        raise RegistryUnreachable("published: acme/new-0, and no more: the link is cut")

    with monkeypatch.context() as cut:
        cut.setattr(Registry, "publish", breaks)
        done = run("put", "devices", file, "-c", config, "-m", "x", "--tokens", tokens)
    assert (done.exit_code, "published: acme/new-0, and no more" in done.stderr) == (75, True), done.output
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
    done = run("put", "devices", file, "-c", config, "-m", "x", "--tokens", tmp_path / "tokens")
    assert (done.exit_code, "is there already, and cannot be used" in done.stderr) == (1, True), done.output
    assert (other.read_text(), len(held)) == ("my notes", len(HELD))


def test_a_check_without_settings_judges_the_file_alone(tmp_path: Path) -> None:
    file = file_of(tmp_path, GOOD)
    done = run("check", "devices", file)
    assert (done.exit_code, done.stdout) == (0, "right by themselves, not held against the registry: 5 devices\n")
    assert run("devices", "check", file).stdout == done.stdout, "the words may stand in either order"
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
