"""The `waybill` command offers what exists, imports what is used, and says how it ended."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import BaseModel
from typer.testing import CliRunner

from gateway.alerts.status import AlertsStatus
from gateway.webhooks.status import NotifierStatus
from waybill.commands import SUBCOMMANDS, command_line


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(command_line(SUBCOMMANDS, arguments, "help"), list(arguments))
    return result.exit_code, result.output


@pytest.mark.parametrize("name", ["up", "down", "status", "link", "topology"])
def test_every_command_is_offered_and_explains_itself(name: str) -> None:
    code, output = run(name, "--help")
    assert code == 0
    assert "Usage" in output
    assert name in run("--help")[1]


def test_status_imports_neither_spark_nor_the_pulsar_client(tmp_path: Path) -> None:
    code = (
        f"import sys; sys.argv = ['waybill', 'status', '--folder', {str(tmp_path)!r}]\n"
        "from waybill.commands import waybill\n"
        "try:\n    waybill()\nexcept SystemExit as end:\n"
        "    heavy = {'pyspark', 'pulsar', 'pandas', 'numpy'} & set(sys.modules)\n"
        "    raise SystemExit(f'{end.code} {sorted(heavy)}')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert done.stderr.splitlines()[-1] == "3 []"


@pytest.mark.parametrize("name", ["status", "down"])
def test_without_a_stack_the_exit_status_is_three_and_the_remedy_is_said(tmp_path: Path, name: str) -> None:
    code, output = run(name, "--folder", str(tmp_path))
    assert code == 3
    assert "waybill up" in output


def test_a_link_without_a_stack_says_so(tmp_path: Path) -> None:
    code, output = run("link", "eu", "cut", "--folder", str(tmp_path))
    assert code == 3
    assert "no stack runs" in output


@pytest.mark.parametrize(
    "words", [["up"], ["up", "--fresh"], ["up", "--detach", "--fresh"], ["demo"], ["drill", "hq-loss"]]
)
def test_no_command_writes_to_or_deletes_a_folder_that_is_not_ours(tmp_path: Path, words: list[str]) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    code, output = run(*words, "--folder", str(tmp_path))
    assert code in (1, 2)
    assert "nothing was written or deleted" in " ".join(output.split())
    assert list(tmp_path.iterdir()) == [tmp_path / "thesis.txt"]


@pytest.mark.parametrize("more", [[], ["--detach"]])
def test_a_topology_file_that_is_wrong_is_said_at_once_with_78(tmp_path: Path, more: list[str]) -> None:
    (tmp_path / "topology.toml").write_text("centre = 5\n")
    words = ["up", "--folder", str(tmp_path / "stack"), "--topology", str(tmp_path / "topology.toml")]
    code, output = run(*words, *more)
    assert code == 78
    assert f"{tmp_path}/topology.toml: " in output


RUNBOOKS = Path(__file__).parents[2] / "docs" / "runbooks"
OF_STATUS = re.compile(
    r"^\*\*See\.\*\* `(fleet-gateway|waybill) alerts status[^`]*`[^:.]*: (?P<rows>[^.]*)", re.MULTILINE
)
ROW = re.compile(r"\*(?P<emphasised>[a-z ]+)\*|`(?P<quoted>[a-z][a-z ]*[a-z])`")


@pytest.mark.parametrize(("page", "status"), [("alerts.md", AlertsStatus), ("webhooks.md", NotifierStatus)])
def test_rows_that_a_runbook_names_are_there(page: str, status: type[BaseModel]) -> None:
    rows = {name.replace("_", " ") for name in status.model_fields}
    named = [
        match["emphasised"] or match["quoted"]
        for line in OF_STATUS.finditer((RUNBOOKS / page).read_text(encoding="utf-8"))
        for match in ROW.finditer(line["rows"])
    ]
    assert named
    # `state standby` is a row and what stands in it
    assert [one for one in named if one not in rows and one.split(" ")[0] not in rows] == []
