"""However narrow a terminal is, no number and no name is cut, and what is left out is said."""

from __future__ import annotations

import io
import re

from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from cloud_jobs.terminal import Column, FittedTable

NUMBER = "WE-00000001"
WORDS = st.text("abc ", max_size=40).map(str.strip)


def shown(table: FittedTable, width: int) -> str:
    paper = io.StringIO()
    Console(file=paper, width=width).print(table)
    return paper.getvalue()


def documents(reason: str = "", invoice: str = "") -> FittedTable:
    made = FittedTable(
        Column("number"),
        Column.text("type"),
        Column.number("net", 2),
        Column.number("gross"),
        Column.text("reason", 1),
        Column.text("of", 3),
    )
    made.add(NUMBER, "credit note (void)", "-1,234.56 EUR", "-1,469.13 EUR", reason, invoice)
    return made


@given(st.integers(12, 200), WORDS, st.lists(st.integers(-(10**9), 10**9), max_size=5))
def test_whole_columns_are_whole_at_any_width_and_no_line_is_wider(width: int, word: str, amounts: list[int]) -> None:
    table = FittedTable(Column("id"), Column.text("words", 1), Column.number("amount"), Column.number("less", 2))
    for place, amount in enumerate(amounts):
        table.add(f"WE-{place:08}", word, f"{amount}", f"{amount}")
    out = shown(table, max(width, 14))
    found = re.findall(r"WE-\d{8}|-?\d+", out)
    for place, amount in enumerate(amounts):
        assert f"WE-{place:08}" in found
        assert str(amount) in found
    assert max(map(cell_len, out.splitlines()), default=0) <= max(width, 14)
    assert "…" not in out


def test_with_room_each_row_is_one_line_and_nothing_is_left_out() -> None:
    out = shown(documents("wrong buyer", NUMBER), 120)
    assert [line for line in out.splitlines() if "wrong buyer" in line and "credit note (void)" in line]
    assert "Left out" not in out


def test_texts_fold_before_columns_go_and_the_least_goes_first() -> None:
    folded = shown(documents("wrong buyer", NUMBER), 86)
    assert [line for line in folded.splitlines() if "credit" in line and "(void)" not in line]
    assert "Left out" not in folded
    narrow = shown(documents("wrong buyer", NUMBER), 62)
    assert "Left out, for want of room: net, of." in narrow
    assert "wrong" in narrow
