"""What an operator reads of an access daemon, and what a program does."""

import json
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from gateway.access import status as status_module
from gateway.access.cli import app
from gateway.access.config import AccessEndpoint
from gateway.access.status import AccessStatus, read_access_status, status_table
from waybill.daemon.status_server import StatusServer, json_answer

SAID = AccessStatus(
    region="eu",
    pid=1,
    started_at="now",
    last_error="registry: away",
    last_entry_refused="x\x1b[2Jy\nhealthy yes",
    registry_unreachable_since_s=120.0,
    lists={"Waybill regional authority eu": 86_400.0},
    connections_refused={"devices": {"tls": 2}},
)


def test_each_thing_that_the_status_has_is_in_the_table_and_a_refused_text_makes_no_line() -> None:
    printed = StringIO()
    Console(width=200, file=printed, force_terminal=True, color_system=None).print(status_table(SAID))
    cells = (line.strip("│").split("│") for line in printed.getvalue().splitlines() if "│" in line)
    rows = {name.strip(): text.strip() for name, text in cells}
    assert (rows["healthy"], rows["last error"]) == ("no", "registry: away")
    assert rows["registry unreachable since"] == "1970-01-01T00:02:00Z"
    assert rows["lists"] == "Waybill regional authority eu until 1970-01-02T00:00:00Z"
    assert rows["connections refused"] == "devices tls 2"
    assert "\x1b[2J" not in printed.getvalue()
    assert {name.removesuffix("_s").replace("_", " ") for name in AccessStatus.model_fields} == rows.keys()


def test_programs_get_json_and_both_the_exit_status(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.access.cli.load", lambda *_: type("Settings", (), {"status": None, "region": "eu"}))
    monkeypatch.setattr(status_module, "read_access_status", lambda _: SAID)
    command = ["status", "--config", str(tmp_path / "access.toml")]
    for_people, for_programs = (CliRunner().invoke(app, [*command, *more]) for more in ([], ["--json"]))
    assert (for_people.exit_code, for_programs.exit_code) == (1, 1)
    assert AccessStatus.model_validate(json.loads(for_programs.output)) == SAID
    assert "access daemon of eu" in for_people.output


def test_what_a_daemon_serves_is_read() -> None:
    said = AccessStatus(region="eu", pid=7, started_at="now", enrolments={"enrolled": 3})
    with StatusServer("127.0.0.1", 0, {"/status": lambda: json_answer(said.model_dump_json())}) as server:
        assert read_access_status(AccessEndpoint(port=server.port)) == said
