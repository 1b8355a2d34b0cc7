"""Maintenance erases positions at whatever moment of a closing or of an explanation: neither takes it for a fault."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import pytest

from cloud_jobs.billing.register.closing import ClosingState
from cloud_jobs.explain.issued_line import explain_line
from cloud_jobs.job_settings import MaintenanceSettings
from cloud_jobs.lake.erasures import Erasure
from cloud_jobs.lake.tables import Lake
from cloud_jobs.maintenance.job import Maintenance
from tests.cloud_jobs.billing.register.billed_lake import BilledLake
from tests.cloud_jobs.billing.register.metered_lake import FIXES, JANUARY, TEN, metered_lake

_Made = TypeVar("_Made")
_MOST_READS = 100


def at_each_read(
    monkeypatch: pytest.MonkeyPatch, folder: Path, work: Callable[[BilledLake], _Made]
) -> list[tuple[int, _Made]]:
    """What a work gives in a lake of its own each time, if positions are erased just before it opens records or
    erasures for the first, the second, … time; and how many were erased."""
    found = list[tuple[int, _Made]]()
    for before in range(_MOST_READS):
        copy = folder.parent / f"{folder.name}-{before}"
        shutil.copytree(folder, copy)
        opens = Opens(Lake(copy), before)
        with monkeypatch.context() as patched:
            patched.setattr(Lake, "open", opens)
            made = work(BilledLake(Lake(copy)))
        shutil.rmtree(copy)
        if opens.erased is None:
            return found
        found.append((opens.erased, made))
    raise AssertionError("so often nothing reads")


class Opens:
    """Stands for `Lake.open`, and erases in between."""

    def __init__(self, lake: Lake, before: int) -> None:
        self._lake, self._left, self._open = lake, before, Lake.open
        self.erased: int | None = None

    def __get__(self, lake: Lake, _: type) -> Callable[..., Any]:
        return lambda table, *more: self._opened(lake, table, *more)

    def _opened(self, lake: Lake, table: str, *more: Any) -> Any:
        if table in {"records", "erasures"}:
            self._left -= 1
            if self._left == -1:
                # maintenance opens them, too; it sweeps by the store's clock, which has another year than the drive
                now = datetime.now(UTC)
                upkeep = Maintenance(self._lake, MaintenanceSettings(), now=lambda: now, store_now=lambda: now)
                self.erased = upkeep.run([Erasure("acme", "eu-1", TEN + timedelta(days=10))]).positions_erased
        return self._open(lake, table, *more)


def test_a_closing_during_which_positions_are_erased_is_the_one_that_it_would_have_been(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "lake"
    expected = [
        (one.key.payer, ClosingState.FINAL, one.net_minor) for one in metered_lake(folder).close("0", days=JANUARY)
    ]
    found = at_each_read(monkeypatch, folder, lambda billed: billed.close("one", days=JANUARY))
    assert (len(found) > 3, {erased for erased, _ in found}) == (True, {FIXES})
    for _, closings in found:
        assert [(one.key.payer, one.outcome, one.net_minor) for one in closings] == expected, closings


def test_what_is_erased_while_it_is_explained_is_unknown_and_not_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "lake"
    billed = metered_lake(folder)
    billed.close("0", days=JANUARY)
    number = next(one.number for one in billed.issue("clerk", JANUARY).documents if one.key.payer == "acme")

    def explained(billed: BilledLake) -> bool | None:
        return explain_line(billed.register, number, 1).explanation.agrees

    assert explained(billed) is True
    found = at_each_read(monkeypatch, folder, explained)
    assert {erased for erased, _ in found} == {FIXES}
    assert {agrees for _, agrees in found} <= {True, None}, found
