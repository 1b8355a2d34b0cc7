"""The page about reconciling shows what the command prints: of a period that is equal, and of a record there twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cloud_jobs.billing.register.metered_lake import JANUARY, metered_lake
from tests.page_sessions import assert_shown, steps_of

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "reconcile.md").read_text(encoding="utf-8")
TWICE = "# a record that is there is appended once more"


def test_the_tables_of_the_page_are_what_the_command_prints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    billed = metered_lake(tmp_path / "lake")
    billed.close("one", days=JANUARY)
    billed.issue("clerk", JANUARY)
    monkeypatch.chdir(tmp_path)
    steps = steps_of(PAGE)
    assert [line[0] for line, _ in steps] == ["$", "#", "$"]
    for line, expected in steps:
        if line.startswith("#"):
            assert line.startswith(TWICE)
            rows = billed.lake.rows("records", where=[("device", "=", "eu-1"), ("seq", "=", 7)])
            billed.lake.append("records", rows.to_pylist())
        else:
            assert_shown(line, expected)
