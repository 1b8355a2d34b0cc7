"""`waybill push` as a command: keys, signatures in place, and why no device takes a file."""

import json
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from edge_agent.push.push_cli import app
from waybill.identity.signatures import read_operator_key, read_signed_push, sign_push
from waybill.settings import MAX_PUSHED_BYTES

TEXT = "[drain]\nwindow = 7\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with anna's key, who is trusted for acme, and settings for one of its devices."""
    monkeypatch.chdir(tmp_path)
    assert run("key", "anna", "--tenant", "acme", "--kind", "settings")[0] == 0
    settings = tmp_path / "acme" / "bus-17.toml"
    settings.parent.mkdir()
    settings.write_text(TEXT)
    return tmp_path


def run(*words: object) -> tuple[int, str]:
    done = CliRunner().invoke(app, list(map(str, words)))
    return done.exit_code, done.output


def test_what_is_signed_is_taken_and_its_versions_grow(folder: Path) -> None:
    file = folder / "acme" / "bus-17.toml"
    first, second = (json.loads(run("sign", file, "--key", "anna.key", "--json")[1])[0] for _ in range(2))
    assert first["device"] == "acme/bus-17"
    assert second["version"] > first["version"]
    assert tomllib.loads(file.read_text()) == tomllib.loads(TEXT)
    assert read_signed_push(file.read_bytes()).settings == TEXT.encode(), "signed once, however often"
    code, text = run("check", file, "--operators", "operators.toml")
    assert (code, text) == (0, f"{file}: version {second['version']} by anna\n")


def test_a_check_names_each_reason_and_ends_with_1(folder: Path) -> None:
    file, other, moved = (folder / name for name in ("acme/bus-17.toml", "zeta/bus-1.toml", "acme/bus-18.toml"))
    other.parent.mkdir()
    other.write_text(TEXT)
    moved.write_text(TEXT)
    unsigned = json.loads(run("check", file, "--operators", "operators.toml", "--json")[1])
    assert "not that of a signed push" in unsigned[0]["refused"]
    run("sign", file, other, "--key", "anna.key")
    moved.write_bytes(file.read_bytes())
    code, text = run("check", file, other, moved, "--operators", "operators.toml", "--json")
    good, no_right, for_another = json.loads(text)
    assert (code, good["signed_by"], good["refused"]) == (1, "anna", None)
    assert "zeta" in no_right["refused"]
    assert "it is for acme/bus-17" in for_another["refused"]


def test_a_file_that_cannot_be_signed_leaves_all_as_they_were(folder: Path) -> None:
    file, large = folder / "acme" / "bus-17.toml", folder / "acme" / "bus-18.toml"
    for content in ("#" * MAX_PUSHED_BYTES, "[drain", "#" * (MAX_PUSHED_BYTES + 1)):
        large.write_text(content)
        code, text = run("sign", file, large, "--key", "anna.key")
        assert (code, len(text.splitlines())) == (1, 1)
        assert file.read_text() == TEXT


def test_a_key_is_never_replaced_and_a_second_one_is_trusted_beside_it(folder: Path) -> None:
    before = (folder / "anna.key").read_bytes()
    code, text = run("key", "anna", "--tenant", "acme", "--kind", "settings")
    assert (code, "never replaced" in text) == (1, True)
    assert (folder / "anna.key").read_bytes() == before
    made = json.loads(run("key", "bea", "--tenant", "*", "--kind", "*", "--json")[1])
    keys = tomllib.loads((folder / "operators.toml").read_text())["keys"]
    assert {key["name"] for key in keys.values()} == {"anna", "bea"}
    assert keys[made["key_id"]]["tenants"] == ["*"]
    assert (folder / "bea.key").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "words",
    [
        ["sign", "acme/bus-17.toml", "--key", "none.key"],
        ["sign", "acme/none.toml", "--key", "anna.key"],
        ["check", "acme/bus-17.toml", "--operators", "none.toml"],
        ["key", "../up", "--tenant", "acme", "--kind", "settings"],
        ["key", "carl", "--tenant", "a/b", "--kind", "settings"],
    ],
    ids=" ".join,
)
def test_what_cannot_be_done_is_said_without_a_traceback(folder: Path, words: list[str]) -> None:
    before = sorted(folder.rglob("*"))
    code, text = run(*words)
    assert code == (78 if "--operators" in words else 1), text
    assert "Traceback" not in text
    assert sorted(folder.rglob("*")) == before


NO_DEVICE_TAKES = {
    "a key like another": ("[drain]\nwindw = 7\n", "drain.windw: no such setting; did you mean 'window'?"),
    "a table like another": ("[drian]\nwindow = 7\n", "drian.window cannot be pushed"),
    "a quota": ("[buffer]\nmax_bytes = 9\n", "buffer.max_bytes cannot be pushed"),
    "what the device alone says": ('[device]\nid = "x"\n', "device.id cannot be pushed"),
    "a number past its bound": ("[drain]\nheartbeat_s = 86400\n", "drain.heartbeat_s = 86400.0: a push may set it"),
    "a region without a host": ('[[uplinks]]\nregion = "eu"\n', "needs host"),
    "no TOML, by its own lines": ("[drain]\nwindow = \n", "is not valid TOML: Invalid value (at line 2"),
    "no UTF-8": (b"\xff", "codec can't decode"),
}


@pytest.mark.parametrize(("text", "says"), NO_DEVICE_TAKES.values(), ids=NO_DEVICE_TAKES)
def test_what_no_device_takes_is_neither_signed_nor_called_right(folder: Path, text: str | bytes, says: str) -> None:
    file, content = folder / "acme" / "bus-17.toml", text if isinstance(text, bytes) else text.encode()
    file.write_bytes(content)
    code, said = run("sign", file, "--key", "anna.key")
    assert (code, said.startswith(f"waybill push: {file}: ")) == (1, True), said
    assert says in said
    assert file.read_bytes() == content
    file.write_bytes(sign_push(read_operator_key(folder / "anna.key"), "acme/bus-17", 5, content))
    code, said = run("check", file, "--operators", "operators.toml")
    assert (code, says in said) == (1, True), said
