"""The page about bills explains every command of `waybill bill`, and every outcome and exit status."""

from __future__ import annotations

from pathlib import Path

import pytest

from cloud_jobs.bill_cli import app
from cloud_jobs.billing.documents import Form
from cloud_jobs.billing.register.closing import ClosingState

PAGE = (Path(__file__).parents[3] / "docs" / "billing.md").read_text(encoding="utf-8")
COMMANDS = [command.name or command.callback.__name__ for command in app.registered_commands if command.callback]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_is_explained(command: str) -> None:
    assert f"`waybill bill {command}`" in PAGE


@pytest.mark.parametrize("word", [f"| {state} |" for state in ClosingState] + [f"`{form}`" for form in Form])
def test_every_outcome_and_every_form_is_named(word: str) -> None:
    assert word in PAGE
