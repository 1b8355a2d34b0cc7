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
from gateway.access.status import AccessStatus, RefusedEnrolment, RefusedPublications, read_access_status, status_table
from waybill.daemon.status_server import StatusServer, json_answer

ASKED = [
    RefusedEnrolment(at_s=60.0 * at, sender=f"claim@SN-{at}", reason="claim-used", detail="[x]") for at in range(7)
]
SENT = RefusedPublications(broker="devices", at="21:51", sender="kaze/bus-1", kind="ack", topic="t", times=3)
SAID = AccessStatus(
    region="eu",
    pid=1,
    started_at="now",
    last_error="registry: away",
    registry_unreachable_since_s=120.0,
    lists={"Waybill regional authority eu": 86_400.0},
    connections_refused={"devices": {"tls": 2}},
    enrolments_refused=ASKED,
    last_publications_refused=[SENT],
)


def shown(status: AccessStatus) -> dict[str, str]:
    printed = StringIO()
    Console(width=200, file=printed).print(status_table(status))
    rows, name = dict[str, str](), ""
    for line in printed.getvalue().splitlines():
        if "│" in line:
            head, text = (part.strip() for part in line.strip("│").split("│"))
            name = head or name
            rows[name] = f"{rows[name]}\n{text}" if name in rows else text
    return rows


def test_each_thing_that_the_status_has_is_in_the_table() -> None:
    rows = shown(SAID)
    assert rows["healthy"] == "no: registry: away"
    assert rows["registry unreachable since"] == "1970-01-01T00:02:00Z"
    assert rows["lists end"] == "Waybill regional authority eu: 1970-01-02T00:00:00Z"
    assert rows["connections refused"] == "devices tls 2"
    assert rows["publications refused last"] == "21:51 kaze/bus-1 at devices: ack, 3 times, t"
    others = {"region", "last_error", "lists", "last_publications_refused"}
    names = {name.removesuffix("_s").replace("_", " ") for name in AccessStatus.model_fields if name not in others}
    assert names <= rows.keys()


def test_what_a_refused_sender_wrote_moves_no_cursor_and_makes_no_line() -> None:
    evil = "x\x1b[2Jy\nhealthy yes"
    asked = RefusedEnrolment(at_s=0, sender=evil, reason="unreadable", detail=evil)
    said = SAID.model_copy(
        update={
            "enrolments_refused": [asked],
            "last_publications_refused": [SENT.model_copy(update={"topic": evil})],
            "last_entry_refused": evil,
        }
    )
    printed = StringIO()
    Console(width=200, file=printed, force_terminal=True, color_system=None).print(status_table(said))
    assert "\x1b[2J" not in printed.getvalue()
    lines = shown(said)
    assert [len(lines[name].splitlines()) for name in ("enrolments refused", "last entry refused")] == [1, 1]


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
