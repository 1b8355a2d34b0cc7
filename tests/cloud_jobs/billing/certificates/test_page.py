"""The page about certificates shows the certificate of a silent vehicle, and what is decided of it and what is not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cloud_jobs.billing.certificates import cli as decisions_cli
from tests.cloud_jobs.billing.page_lake import DOCS, NOW, PageLake
from tests.page_sessions import assert_shown, steps_of

PAGE = (DOCS / "certificates.md").read_text(encoding="utf-8")


def test_the_page_shows_what_its_program_and_its_commands_print(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    PageLake(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(decisions_cli, "checked_time", lambda _: NOW)
    (program,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    (certificate,) = re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)
    exec(compile(program, "certificates.md", "exec"), {})  # noqa: S102 - the project's own page
    assert capsys.readouterr().out == certificate
    steps = steps_of(PAGE)
    assert {line.split()[3] for line, _ in steps} == {"close-device", "withdraw", "list"}
    for line, expected in steps:
        assert_shown(line, expected)
