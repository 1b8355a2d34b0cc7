"""The page about accounting shows what its commands print of the example's invoice."""

import re
from pathlib import Path

import pytest

from cloud_jobs.billing.register import commands
from tests.cloud_jobs.billing.page_lake import DOCS, NOW, PageLake
from tests.page_sessions import assert_shown, printed, steps_of

PAGE = (DOCS / "accounting.md").read_text(encoding="utf-8")
FILES = {"toml": "datev.toml", "csv": "payments.csv"}


def test_the_commands_of_the_page_print_what_stands_below_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    PageLake(tmp_path).arrive()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(commands, "checked_time", lambda _: NOW)
    for language, name in FILES.items():
        [text] = re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
        Path(name).write_text(text, encoding="utf-8")
    for command in ("close", "issue"):
        printed(f"$ waybill bill {command} --lake lake --period 2026-01-05")
    for line, expected in steps_of(PAGE):
        assert_shown(line, expected)
    assert Path("EXTF_2026-01.csv").read_bytes().count(b"\r\n") == 3
