"""The page about bills names every command, and every term of the JSON that it explains exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cloud_jobs.billing import bill, bill_document, to_json
from cloud_jobs.billing.cli import app
from tests.cloud_jobs.billing.strategies import LONG_AFTER, MARCH, account
from tests.cloud_jobs.billing.test_bill import row, tariff

PAGE = (Path(__file__).parents[3] / "docs" / "billing.md").read_text(encoding="utf-8")
COMMANDS = [command.name or command.callback.__name__ for command in app.registered_commands if command.callback]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_is_explained(command: str) -> None:
    assert f"`waybill bill {command}`" in PAGE


def test_every_term_of_the_page_is_in_the_json() -> None:
    terms = [cell for line in PAGE.splitlines() if re.search(r"\| B[TG]-", line) for cell in line.split("|")[1:2]]
    names = {name for cell in terms for part in re.findall(r"`([^`]+)`", cell) for name in re.findall(r"\w+", part)}
    made = bill(account(), [tariff()], [row(km=1)], period=MARCH, as_of=LONG_AFTER, completeness={})
    document = to_json(bill_document(made)).decode()
    assert len(names) > 10
    assert {name for name in names if f'"{name}"' not in document} == set()
