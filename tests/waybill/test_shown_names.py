"""What a command prints of names that others chose moves no cursor, changes no colour, and never ends the command."""

import os
from pathlib import Path

import pytest
from rich.console import Console
from rich.text import Text
from typer.testing import CliRunner

from cloud_jobs.reference.commands import app as reference
from cloud_jobs.terminal import Column, FittedTable
from edge_agent.push.push_cli import app as push
from tests.cloud_jobs.test_reference_publisher import CONTRACTS
from tests.identity.registry_world import table
from tests.new_lakes import new_lake
from waybill.identity.command_session import print_error
from waybill.identity.pki_cli import app as pki
from waybill.settings import printable

NAMES = {
    "escape": b"a\x1b[31m\r\nb.toml",
    "control": b"a\xc2\x9b31m.toml",
    "order": "a\u202eb.toml".encode(),
    "bytes": b"a\xff.toml",
}
"""C1 controls are read by terminals too, U+202E turns the direction, and a name need not be UTF-8."""


@pytest.fixture(params=NAMES)
def file(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return tmp_path / os.fsdecode(NAMES[request.param])


def shown(app: object, *words: object) -> str:
    done = CliRunner().invoke(app, [str(one) for one in words], env={"COLUMNS": "300"})  # type: ignore[arg-type]
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.output


def check(text: str) -> None:
    assert "toml" in text
    assert all(sign == "\n" or not printable(sign).startswith("\\") or sign == "\\" for sign in text), text


def test_names_of_files_are_escaped_where_contracts_are_compared_checked_and_refused(
    tmp_path: Path, file: Path
) -> None:
    new_lake(tmp_path / "lake")
    file.write_text(CONTRACTS)
    check(shown(reference, "diff", file, "--lake", tmp_path / "lake"))
    check(shown(reference, "diff", file, "--lake", tmp_path / "lake", "--json"))
    file.write_text("wrong = [\n")
    check(shown(reference, "diff", file, "--lake", tmp_path / "lake"))
    check(shown(reference, "check", file))
    file.unlink()
    check(shown(reference, "check", file))


def test_names_of_files_are_escaped_where_devices_are_checked(file: Path) -> None:
    file.write_text(table("b", "expected"))
    check(shown(reference, "check", "devices", file) + "toml")
    file.write_text(table("b", "no such"))
    check(shown(reference, "check", "devices", file))
    check(shown(reference, "check", "devices", file, "--json"))


def test_names_of_files_are_escaped_where_pushes_are_checked(tmp_path: Path, file: Path) -> None:
    file.write_text("x")
    (tmp_path / "operators.toml").write_text("")
    check(shown(push, "check", file, "--operators", file))
    check(shown(push, "sign", file, "--key", file))
    check(shown(pki, "renew", file.with_suffix(".toml")))


def test_tables_and_errors_escape_what_they_show() -> None:
    made = FittedTable(Column("name"), Column.text("why"))
    made.add("a\x1b[31m", Text("b\x9b1m", style="red"))
    console = Console(width=80, force_terminal=False)
    with console.capture() as printed:
        console.print(made)
    assert r"a\x1b[31m" in printed.get()
    assert r"b\x9b1m" in printed.get()


def test_an_error_of_identity_is_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    print_error("no file a\x1b[2J.pem")
    assert r"a\x1b[2J.pem" in capsys.readouterr().err


def test_what_is_printable_stays() -> None:
    text = "Müller, 1\u00a0000,50\u202f€ 東京 \\x1b"
    assert printable(text) == text
    assert printable("a\nb\tc", "\n") == "a\nb\\tc"
