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
from cloud_jobs.billing.device_records import line_records
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


def priced_lake(folder: Path) -> Lake:
    made = Lake(folder / "lake")
    made.create()
    published = [("account", "acme", ACCOUNT), ("tariff", "standard-eur", TARIFF)]
    made.append("reference", [row_of(*one) | {"collected_at": DAY} for one in published])  # type: ignore[arg-type]
    return made


def noted_files(monkeypatch: pytest.MonkeyPatch, module: str) -> list[str]:
    """The files of records that a module of the bill opens from here on."""
    seen: list[str] = []

    def noted(files: Any, table: str, path: str, *more: Any) -> Any:
        seen.append(path)
        return stored_rows(files, table, path, *more)

    monkeypatch.setattr(f"cloud_jobs.billing.{module}.stored_rows", noted)
    return seen


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """One device with four fixes of one day, four of the next but one, and three of a clock far ahead."""
    made = priced_lake(tmp_path)
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
    assert [cell.strip() for cell in row.strip("│").split("│")] == [
        "eu-0001",
        "complete",
        "11",
        "0",
        "0",
        "0",
        "3",
        "4",
    ]


def test_a_bill_as_of_a_moment_counts_what_was_received_and_erased_by_then_also_after_a_merge(lake: Lake) -> None:
    then = datetime.now(UTC)
    before = to_json(bill_document(billed(lake, then)))
    ingest(lake, fixes("eu-0001", 20, 21, far_off=True))
    maintain(lake, Erasure("acme", "eu-0001", ERASED_TO))
    assert to_json(bill_document(billed(lake, then))) == before
    assert not_billed(billed(lake))[0] == ("eu-0001", 5, 4)


@pytest.mark.parametrize(
    ("before_s", "erased"), [(-90, 0), (-30, 0), (-29, 1), (0, 1), (30, 1), (31, 2), (91, 3), (86_400, 3)]
)
def test_as_many_records_are_erased_as_opening_the_line_does_not_find(
    tmp_path: Path, before_s: int, erased: int
) -> None:
    """Fixes half a minute before midnight and after it, so that the first of them begins a segment of the next hour."""
    lake, moment = priced_lake(tmp_path), ERASED_TO + timedelta(seconds=before_s)
    at = [
        LakeFix("eu-0001", seq, ERASED_TO + timedelta(seconds=60 * seq - 90), 53.0 + seq / 1000, 9.0)
        for seq in (1, 2, 3)
    ]
    ingest(lake, at)
    compute_usage(SESSION, lake, TrackSettings())
    lines = billed(lake).lines
    maintain(lake, Erasure("acme", "eu-0001", moment))
    made = billed(lake)
    assert (made.lines, not_billed(made)[0]) == (lines, ("eu-0001", 0, erased))
    assert f"Records: {3 - erased} of 3; positions before" in " ".join(opened(lake).split())


def test_an_erased_fix_before_the_period_whose_segment_the_period_has_is_counted_and_said(tmp_path: Path) -> None:
    lake, first = priced_lake(tmp_path), datetime(2026, 3, 1, tzinfo=UTC)
    times = [(1, first - timedelta(seconds=30)), (2, first + timedelta(seconds=30))]
    ingest(lake, [LakeFix("eu-0001", seq, time, 53.0 + seq / 1000, 9.0) for seq, time in times])
    compute_usage(SESSION, lake, TrackSettings())
    maintain(lake, Erasure("acme", "eu-0001", first))
    assert not_billed(billed(lake))[0] == ("eu-0001", 0, 1)
    assert "Records: 1 of 2; positions before 2026-03-01T00:00:00Z are erased" in " ".join(opened(lake).split())


def test_a_line_opens_only_files_of_its_days_and_devices(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    # on each day the seqs of other devices stand around those of the line
    seqs = {"aa-0001": 1, "eu-0001": 1_000, "zz-0001": 5_000_000}
    days = range(-20, 20)
    ingest(
        lake,
        [LakeFix(name, first + day, DAY + timedelta(day), 53.0, 9.0) for name, first in seqs.items() for day in days],
    )
    (line,) = bill_from_lake(lake, "acme", Period.parse("2026-03-07"), datetime.now(UTC)).lines
    seen = noted_files(monkeypatch, "device_records")
    assert [row["seq"] for row in line_records(lake, line)] == [8, 9, 10, 11]
    # that of the day before may hold the fix from which the first segment leads
    assert {path.partition("/")[0] for path in seen} <= {"device_date=2026-03-06", "device_date=2026-03-07"}


def test_only_files_of_clocks_far_off_that_can_hold_the_device_are_opened(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    for other in ("aa-0001", "zz-0001"):
        ingest(lake, fixes(other, 1, 2, far_off=True) + fixes(other, 3))
    seen = noted_files(monkeypatch, "lake_reader")
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


def test_a_bill_is_final_only_when_usage_covers_the_positions_of_its_period(lake: Lake) -> None:
    then = datetime.now(UTC)
    ingest(lake, [*fixes("eu-0001", 12, 13, 14, day=2), *fixes("zz-0001", 1), *fixes("eu-0001", 15, day=40)])
    made = billed(lake)
    assert (made.status.value, [one.not_metered for one in made.certificates]) == ("provisional", [3, 0])
    assert made.lines == billed(lake, then).lines
    assert billed(lake, then).status.value == "final"
    asked = ["--lake", str(lake.location), "--account", "acme", "--period", "2026-03"]
    assert "open or not metered" in " ".join(CliRunner().invoke(app, ["issue", *asked, "--out", "none"]).output.split())
    assert bill_document(made)["completeness"][0]["records_not_metered"] == 3
    fifth = bill_from_lake(lake, "acme", Period.parse("2026-03-05"), datetime.now(UTC))
    assert fifth.status.value == "final", "what is not metered is of other days"
    compute_usage(SESSION, lake, TrackSettings())
    made = billed(lake)
    assert (made.status.value, [one.not_metered for one in made.certificates]) == ("final", [0, 0])


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
