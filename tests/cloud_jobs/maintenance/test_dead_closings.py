"""Rows of closings that died are swept, and never those of one that is named or still running."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from cloud_jobs.billing.documents import charges_of
from cloud_jobs.billing.register.closing import ClosingState
from cloud_jobs.billing.register.documents_of import issued_document
from cloud_jobs.billing.register.errors import ClosingTooLate
from cloud_jobs.billing.register.tables import closing_row
from cloud_jobs.lake.dead_runs import declare_dead
from tests.cloud_jobs.billing.contracts.makers import account, device, legal_entity, price, tariff
from tests.cloud_jobs.billing.register.billed_lake import BilledLake, used
from tests.cloud_jobs.maintenance.upkeep import run


class Killed(BaseException):
    """The process ends here."""


@pytest.fixture
def billed(tmp_path: Path) -> BilledLake:
    made = BilledLake.create(tmp_path, "van-1", "van-2")
    made.publish(legal_entity(), tariff(price()), account("acme", device("van-1")), account("beta", device("van-2")))
    made.use(used("van-1", 10_000), used("van-2", 4_000))
    return made


def close(billed: BilledLake, name: str) -> Any:
    return billed.close(name, now=datetime.now(UTC))


def killed_at(billed: BilledLake, name: str, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A closing whose process ends between the commit of its rows and that of `closings`."""

    def killed(*_: Any) -> Any:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(f"cloud_jobs.billing.register.close.{what}", killed)
        with pytest.raises(Killed):
            close(billed, name)


def rows_of(billed: BilledLake) -> dict[str, int]:
    """How many lines and certificates each run has."""
    found: dict[str, int] = {}
    for table in ("rated_lines", "certificates"):
        for name in billed.lake.rows(table, ["run"])["run"].to_pylist():
            found[name] = found.get(name, 0) + 1
    return found


def later(hours: float) -> datetime:
    return datetime.now(UTC) + timedelta(hours=hours)


def test_what_a_dead_closing_left_is_deleted_when_it_is_old_and_what_is_named_stays(
    billed: BilledLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    close(billed, "one")
    billed.issue("first")
    killed_at(billed, "dead", "closing_row", monkeypatch)
    assert rows_of(billed) == {"one": 4, "dead": 4}
    assert run(billed.lake, now=later(3)).dead_rows == 0
    assert run(billed.lake, now=later(9), dry_run=True).dead_rows == 4
    assert rows_of(billed) == {"one": 4, "dead": 4}
    made = run(billed.lake, now=later(9))
    assert (made.dead_rows, made.errors) == (4, [])
    assert rows_of(billed) == {"one": 4}
    assert run(billed.lake, now=later(9)).dead_rows == 0
    assert charges_of(issued_document(billed.register, "WB-EU-00000001"))[0].amount_minor == 450


def test_rows_that_were_merged_with_those_of_others_are_found(
    billed: BilledLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed_at(billed, "dead", "closing_row", monkeypatch)
    close(billed, "one")
    # the month is long past: files of one day become one
    assert any(one.merges for one in run(billed.lake).tables if one.table == "rated_lines")
    assert len(billed.lake.open("rated_lines").file_uris()) == 1
    assert run(billed.lake, now=later(9)).dead_rows == 4
    assert rows_of(billed) == {"one": 4}
    assert {one.outcome for one in close(billed, "two")} == {ClosingState.FINAL}


def test_a_closing_that_goes_on_after_it_was_taken_for_dead_closes_nothing(
    billed: BilledLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    swept: list[int] = []

    def stopped(*given: Any) -> Any:
        # the machine sleeps through a sweep just before the commit
        if not swept:
            swept.append(run(billed.lake, now=later(9)).dead_rows)
        return closing_row(*given)

    monkeypatch.setattr("cloud_jobs.billing.register.close.closing_row", stopped)
    with pytest.raises(ClosingTooLate, match="close the period again"):
        close(billed, "slow")
    monkeypatch.undo()
    assert (swept, billed.lake.rows("closings").num_rows) == ([4], 0)
    assert {one.outcome for one in close(billed, "again")} == {ClosingState.FINAL}
    assert len(billed.issue("first").documents) == 2


def test_a_closing_that_was_faster_is_not_declared_dead(billed: BilledLake) -> None:
    close(billed, "one")
    assert declare_dead(billed.lake, {"one", "other"}) == {"other"}
    assert declare_dead(billed.lake, {"one", "other"}) == {"other"}
    assert {one.outcome for one in close(billed, "two")} == {ClosingState.FINAL}
