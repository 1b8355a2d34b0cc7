"""The examples that need no server print what their pages say."""

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cloud_jobs.__main__ import app
from cloud_jobs.config import CloudSettings
from edge_agent.config import AgentSettings
from gateway.config import GatewaySettings
from waybill.settings import Settings, parse

DOCS = Path(__file__).resolve().parents[2] / "docs"


def blocks(page: str) -> list[tuple[str, str]]:
    return re.findall(r"^```(\w*)\n(.*?)^```$", (DOCS / page).read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def test_the_batch_on_the_wire_page_prints_what_stands_below_it(capsys: pytest.CaptureFixture[str]) -> None:
    (_, program), (_, printed), *_ = blocks("wire.md")
    exec(compile(program, "wire.md", "exec"), {})  # noqa: S102 - the project's own page
    assert capsys.readouterr().out == printed


def test_the_commands_of_the_spatial_page_write_what_stands_below_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    _, session = blocks("spatial.md")[0]
    said = dict(re.findall(r"^\$ (.+)\n((?:[^$].*\n)*)", session, re.MULTILINE))
    Path("fences.geojson").write_text(said["cat fences.geojson"])
    fixes = [
        f"{device},{1767600000000 + 10_000 * number},53.5500000,{9.97 + 0.0013 * number + east:.7f}\n"
        for device, east in (("eu-0001", 0.0), ("eu-0002", 0.0005))
        for number in range(31)
    ]
    Path("fixes.csv").write_text("device_id,t_ms,lat,lon\n" + "".join(fixes))
    assert Path("fixes.csv").read_text().startswith(said["head -3 fixes.csv"])
    for command in (command for command in said if command.startswith("cloud-jobs ")):
        assert CliRunner().invoke(app, command.split()[1:]).exit_code == 0
    assert Path("usage.csv").read_text() == said["cat usage.csv"]
    assert Path("encounters.csv").read_text() == said["cat encounters.csv"]


@pytest.mark.parametrize(
    ("page", "model"), [("edge-agent.md", AgentSettings), ("gateway.md", GatewaySettings), ("ingest.md", CloudSettings)]
)
def test_the_settings_in_an_example_can_be_used(page: str, model: type[Settings]) -> None:
    files = [text for language, text in blocks(page) if language == "toml"]
    assert files
    for text in files:
        parse(model, text, page)
