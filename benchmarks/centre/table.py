"""The table that a benchmark prints: each figure beside the one that is asked."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import NamedTuple

import structlog


class Figure(NamedTuple):
    """One figure."""

    what: str
    asked: str
    measured: str


def print_rows(title: str, rows: Iterable[Figure]) -> None:
    write = sys.stdout.write
    write(f"\n{title}\n\n| what | asked | measured |\n|---|---|---|\n")
    for row in rows:
        write(f"| {row.what} | {row.asked} | {row.measured} |\n")
    sys.stdout.flush()


def quiet() -> None:
    """Only warnings are logged: the table is what is to be read."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(30))
