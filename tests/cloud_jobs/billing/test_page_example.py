"""The bill's page shows what its commands print of the lake of two vehicles that drove for an hour."""

import json
from pathlib import Path

import pytest
from rich.cells import cell_len

from cloud_jobs import terminal as fitted_table
from cloud_jobs.billing.certificates import cli as decisions_cli
from cloud_jobs.billing.documents import Form
from cloud_jobs.billing.register import commands
from cloud_jobs.billing.register.closing import ClosingState
from tests.cloud_jobs.billing.page_lake import DOCS, NOW, PageLake
from tests.page_sessions import assert_shown, printed, steps_of

PAGE = (DOCS / "billing.md").read_text(encoding="utf-8")
LATE_BATCH = "# a batch of the vehicle arrives"


def test_the_commands_of_the_page_print_what_stands_below_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = PageLake(tmp_path)
    monkeypatch.chdir(tmp_path)
    for module in (commands, decisions_cli):
        monkeypatch.setattr(module, "checked_time", lambda _: NOW)
    shown = steps_of(PAGE)
    words = {line.split()[3] for line, _ in shown if line.startswith("$")}
    assert words == {"close", "close-device", "issue", "show", "diff", "adjust", "void", "explain"}
    for line, expected in shown:
        if line.startswith("#"):
            assert line.startswith(LATE_BATCH)
            made.arrive()
        else:
            assert_shown(line, expected)
    # each reading of positions is logged beside the lake
    [log] = tmp_path.glob("lake-access-*.jsonl")
    readings = [json.loads(one) for one in log.read_text(encoding="utf-8").splitlines()]
    explained = [line for line, _ in shown if line.startswith("$ waybill bill explain")]
    assert [one["command"] for one in readings] == ["waybill bill explain"] * len(explained)


def test_on_a_terminal_of_80_columns_no_number_amount_or_name_is_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    PageLake(tmp_path).arrive()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(commands, "checked_time", lambda _: NOW)
    monkeypatch.setattr(fitted_table, "PIPE_WIDTH", 80)
    whole = {
        "close --period 2026-01-05": {"acme", "final", "80.58 EUR"},
        "issue --period 2026-01-05": {"WE-00000001", "95.89 EUR", "2026-01-05"},
        "list": {"WE-00000001", "95.89 EUR", "2026-01-05"},
        "show WE-00000001": {"WE-00000001", "DE02 1203 0000 0000 2020 51", "95.89 EUR", "20.65 km"},
        "explain WE-00000001 11": {"20.654561", "20.654561 km", "9.29 EUR", "2026-01-05T08:00:00Z"},
    }
    for line, words in whole.items():
        out = printed(f"$ waybill bill {line} --lake lake")
        assert [word for word in words if word not in out] == [], out
        assert "…" not in out.replace(", …", ""), "a list of ranges may be cut, and says so"
        assert max(map(cell_len, out.splitlines())) <= 80


BILL_PAGE = (Path(__file__).parents[3] / "docs" / "billing.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("word", [f"| {state} |" for state in ClosingState] + [f"`{form}`" for form in Form])
def test_every_outcome_and_every_form_is_named(word: str) -> None:
    assert word in BILL_PAGE
