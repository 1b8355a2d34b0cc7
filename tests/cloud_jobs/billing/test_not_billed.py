"""What a bill says of records that are on no line, and of those that a line was computed from and that are erased."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from cloud_jobs.billing import Bill, NotMetered, UnknownAccount, bill_document, read_bill, to_html, to_json
from cloud_jobs.billing.cli import app
from cloud_jobs.billing.lake_reader import bill_from_lake
from cloud_jobs.billing.period import Period
from cloud_jobs.lake.erasures import Erasure
from cloud_jobs.lake.stored_files import stored_rows
from cloud_jobs.lake.tables import Lake
from cloud_jobs.usage.job import compute_usage
from geo.spatial import TrackSettings
from tests.cloud_jobs.billing.test_lake_reader import ACCOUNT, TARIFF
from tests.cloud_jobs.maintenance.upkeep import run as maintain
from tests.cloud_jobs.publications import row_of
from tests.system.lake_of_fixes import LakeFix, ingest

DAY = datetime(2026, 3, 5, 6, tzinfo=UTC)
AHEAD = datetime(2090, 1, 1, tzinfo=UTC)
ERASED_TO = datetime(2026, 3, 6, tzinfo=UTC)
SESSION: Any = SimpleNamespace(sparkContext=SimpleNamespace(defaultParallelism=1))


def fixes(device: str, *seqs: int, far_off: bool = False, day: int = 0, tenant: str = "acme") -> list[LakeFix]:
    begin = AHEAD if far_off else DAY + timedelta(day)
    times = [(seq, begin + timedelta(seconds=10 * seq)) for seq in seqs]
    return [LakeFix(device, seq, time, 53.0 + seq / 1000, 9.0, "eu", tenant, far_off) for seq, time in times]


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """One device with four fixes of one day, four of the next but one, and three of a clock far ahead."""
    made = Lake(tmp_path / "lake")
    made.create()
    published = [("account", "acme", ACCOUNT), ("tariff", "standard-eur", TARIFF)]
    made.append("reference", [row_of(*one) | {"collected_at": DAY} for one in published])  # type: ignore[arg-type]
    ingest(made, fixes("eu-0001", 1, 2, 3, far_off=True) + fixes("eu-0001", 4, 5, 6, 7))
    ingest(made, fixes("eu-0001", 8, 9, 10, 11, day=2) + fixes("us-0001", 1, 2))
    compute_usage(SESSION, made, TrackSettings())
    return made


def billed(lake: Lake, as_of: datetime | None = None) -> Bill:
    return bill_from_lake(lake, "acme", Period.parse("2026-03"), as_of or datetime.now(UTC))


def not_billed(made: Bill) -> list[tuple[str, int, int]]:
    return [(one.device, one.far_off, one.erased) for one in made.certificates]


def opened(lake: Lake, *options: str) -> str:
    asked = ["open", "--lake", str(lake.location), "--account", "acme", "--period", "2026-03", "--line", "1"]
    return CliRunner().invoke(app, [*asked, *options]).output


def test_records_of_a_clock_far_off_are_counted_for_their_device_and_do_not_keep_a_bill_from_being_final(
    lake: Lake,
) -> None:
    ingest(lake, fixes("eu-0001", 1, 2, far_off=True, tenant="other"))
    made = billed(lake)
    assert (made.status.value, not_billed(made)) == ("final", [("eu-0001", 3, 0), ("us-0001", 0, 0)])
    assert made.certificates[0].received == 11


def test_all_forms_of_a_bill_say_what_is_not_billed(lake: Lake) -> None:
    maintain(lake, Erasure("acme", "eu-0001", ERASED_TO))
    made = billed(lake)
    document = bill_document(made)
    assert read_bill(to_json(document)) == made
    found = document["completeness"][0]
    assert (found["records_far_off"], found["records_erased"]) == (3, 4)
    assert '<td class="n">3</td><td class="n">4</td>' in to_html(document)
    asked = ["show", "--lake", str(lake.location), "--account", "acme", "--period", "2026-03"]
    shown = CliRunner().invoke(app, asked).output
    (row,) = [line for line in shown.splitlines() if "complete" in line and "eu-0001" in line]
    assert [cell.strip() for cell in row.strip("│").split("│")] == ["eu-0001", "complete", "11", "0", "0", "3", "4"]


def test_a_bill_as_of_a_moment_counts_what_was_received_and_erased_by_then_also_after_a_merge(lake: Lake) -> None:
    then = datetime.now(UTC)
    before = to_json(bill_document(billed(lake, then)))
    ingest(lake, fixes("eu-0001", 20, 21, far_off=True))
    maintain(lake, Erasure("acme", "eu-0001", ERASED_TO))
    assert to_json(bill_document(billed(lake, then))) == before
    assert not_billed(billed(lake))[0] == ("eu-0001", 5, 4)


def test_only_files_of_clocks_far_off_that_can_hold_the_device_are_opened(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    for other in ("aa-0001", "zz-0001"):
        ingest(lake, fixes(other, 1, 2, far_off=True) + fixes(other, 3))
    seen = []

    def noted(files: Any, table: str, path: str, *more: Any) -> Any:
        seen.append(path)
        return stored_rows(files, table, path, *more)

    monkeypatch.setattr("cloud_jobs.billing.lake_reader.stored_rows", noted)
    assert not_billed(billed(lake))[0] == ("eu-0001", 3, 0)
    assert len(seen) == 1


def test_a_line_of_erased_positions_says_that_they_are_and_stands(lake: Lake) -> None:
    lines = billed(lake).lines
    assert ("Records: 8 of 8" in opened(lake), "erased" in opened(lake)) == (True, False)
    maintain(lake, Erasure("acme", "eu-0001", ERASED_TO))
    assert billed(lake).lines == lines
    said = " ".join(opened(lake).split())
    assert "Records: 4 of 8; positions before 2026-03-06T00:00:00Z are erased" in said
    assert json.loads(opened(lake, "--json"))["positions_erased_before"] == "2026-03-06T00:00:00Z"


def test_a_bill_before_the_first_run_of_usage_names_the_command(tmp_path: Path, lake: Lake) -> None:
    empty = Lake(tmp_path / "empty")
    empty.create()
    with pytest.raises(UnknownAccount, match="collected by the next run of `cloud-jobs usage"):
        billed(empty)
    empty.append("reference", lake.rows("reference").to_pylist())
    with pytest.raises(NotMetered, match=r"never computed in the lake .*; run `cloud-jobs usage"):
        billed(empty)


def test_records_of_a_clock_far_off_that_are_erased_are_counted_no_more(lake: Lake) -> None:
    ingest(lake, [LakeFix("eu-0001", 30, datetime(1971, 1, 1, tzinfo=UTC), 53.0, 9.0, is_far_off=True)])
    assert not_billed(billed(lake))[0] == ("eu-0001", 4, 0)
    # of such a record the moment of receipt decides, which is long ago here
    maintain(lake, Erasure("acme", "eu-0001", datetime(2026, 1, 1, tzinfo=UTC)))
    assert not_billed(billed(lake))[0] == ("eu-0001", 3, 0)
