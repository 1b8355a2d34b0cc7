"""The page of the architecture draws the imports of the code, and an acknowledgement runs through few modules."""

from __future__ import annotations

import runpy
from pathlib import Path

from tests.structure.ack_path import modules_of_two_acknowledgements

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = runpy.run_path(str(ROOT / "docs" / "pictures" / "architecture.py"))
ACK_MODULES_AT_MOST = 30


def test_the_drawing_and_the_table_of_imports_are_those_of_the_code() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    assert SCRIPT["renewed"](page) == page, f"imports changed: run `{SCRIPT['COMMAND']}` and commit the page"


def test_an_acknowledgement_runs_through_few_modules(tmp_path: Path) -> None:
    first, second = modules_of_two_acknowledgements(tmp_path)
    assert first == second
    assert len(first) <= ACK_MODULES_AT_MOST
