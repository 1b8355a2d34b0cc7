"""The page about contracts shows what `waybill reference check` says of its example, and of what is changed in it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cloud_jobs.billing.register import commands
from tests.cloud_jobs.billing.page_lake import DOCS, NOW, PageLake
from tests.page_sessions import assert_shown, printed, steps_of

PAGE = (DOCS / "contracts.md").read_text(encoding="utf-8")
NEEDS_PULSAR = "$ waybill reference put"


def changed(text: str, *changes: tuple[str, str]) -> str:
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    return text


def write_examples(example: str) -> None:
    """The files that the page speaks of, made of its own example."""
    seller, tariff, acme, south = re.split(r"^(?=\[\[)", example, flags=re.MULTILINE)[1:]
    tiers = ("tiers = [", "tiers = [{ up_to = 1000, unit_amount = 0.2 }, { up_to = 500, unit_amount = 0.1 },")
    wrong = [seller, changed(tariff, ('"entry"', '"entree"'), tiers), acme]
    files = {
        "wrong": "".join((*wrong, changed(south, ("effective_from", "efective_from")))),
        "overlap": changed(example, ("eu-0002", "eu-0001")),
        "tariff-corrected": changed(tariff, ("unit_amount = 0.45", "unit_amount = 0.50")),
        "beta": changed(acme, ('"acme"', '"beta"'), ("Acme Logistics", "Beta Freight"), ("2026-01-01", "2026-02-01")),
    }
    for name, text in files.items():
        Path(f"{name}.toml").write_text(text, encoding="utf-8")


def test_the_commands_of_the_page_print_what_stands_below_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    PageLake(tmp_path).arrive()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(commands, "checked_time", lambda _: NOW)
    write_examples(Path("contracts.toml").read_text(encoding="utf-8"))
    for command in ("close", "issue"):
        assert "80.58 EUR" in printed(f"$ waybill bill {command} --lake lake --period 2026-01-05")
    steps = [step for step in steps_of(PAGE) if not step[0].startswith(NEEDS_PULSAR)]
    names = {"contracts", "wrong", "overlap", "tariff-corrected", "beta"}
    assert {line.split()[4].rstrip(";") for line, _ in steps} == {f"{name}.toml" for name in names}
    for line, expected in steps:
        assert_shown(line, expected)
