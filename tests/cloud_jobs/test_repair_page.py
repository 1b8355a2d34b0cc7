"""What the page of the centre gives to be typed for a repair does what it says there."""

import re
import shutil
from pathlib import Path

import pytest

from cloud_jobs.derived.incremental import commit_written, next_increment
from cloud_jobs.errors import Fenced, OtherRecords
from cloud_jobs.lake.tables import Lake
from cloud_jobs.pulsar_source.options import PulsarOptions
from tests.cloud_jobs.ingest.centre import batch, new_ingest, seqs_in_table, take_in
from tests.cloud_jobs.maintenance.upkeep import parquet_files, run
from tests.cloud_jobs.status.watched import wrong
from tests.new_lakes import new_lake

PAGE = (Path(__file__).parents[2] / "docs/centre.md").read_text(encoding="utf-8")
REPAIR = PAGE.partition("\n## Repair\n")[2].partition("\n## ")[0]
TYPED = re.findall(r"^\$ python3 -c '(.*)'$", REPAIR, re.MULTILINE)


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lake:
    monkeypatch.chdir(tmp_path)
    made = new_lake(tmp_path / "lake")
    writer = new_ingest(made)
    for seq in (1, 2, 3):
        take_in(made, writer, [batch(seq), batch(seq, word="y")] if seq == 1 else [batch(seq)])
    take_in(made, writer, [b"x"])
    run(made)
    return made


def typed(word: str) -> None:
    """Does the one command in Python that has a word, in this folder."""
    (code,) = [one for one in TYPED if word in one]
    exec(code, {})  # noqa: S102 - the page's own words


def test_each_piece_of_python_on_the_page_is_run_here() -> None:
    assert len(TYPED) == len([word for word in ("repair()", "quarantine") for one in TYPED if word in one])
    assert "```python" not in REPAIR


@pytest.mark.parametrize(
    "error",
    [OtherRecords("usage", covered_number=4, found_number=3), Fenced(expected_number=3, found_number=4)],
    ids=lambda error: type(error).__name__,
)
def test_what_a_command_says_stands_on_the_page_as_it_says_it(error: Exception) -> None:
    assert f"cloud-jobs: {error}\n" in REPAIR


def test_each_option_and_setting_of_the_page_s_repairs_is_one() -> None:
    assert 'failOnDataLoss = "false"' in REPAIR
    given = {"clusters": "hq=pulsar://h:1|http://h:2", "topics": "persistent://a/b/c", "failOnDataLoss": "false"}
    assert PulsarOptions.parse(given) != PulsarOptions.parse(given | {"failOnDataLoss": "true"})


@pytest.mark.parametrize("left", [None, b"PAR1"])
def test_a_data_file_that_is_gone_or_damaged_is_taken_out_of_the_log(
    lake: Lake, capsys: pytest.CaptureFixture[str], left: bytes | None
) -> None:
    take_in(lake, new_ingest(lake), [batch(4)])
    file = max(parquet_files(lake), key=lambda path: path.stat().st_mtime)
    file.unlink()
    if left is not None:
        file.write_bytes(left)
    assert wrong(lake) == ("1 of the files of records are missing, or have another size than its log says",)
    file.unlink(missing_ok=True)
    typed("repair()")
    assert file.name in capsys.readouterr().out
    assert wrong(lake) == ("1 records that were received are not in the table",)
    take_in(lake, new_ingest(lake), [batch(4, 5)])
    assert seqs_in_table(lake) == [1, 2, 3, 5]


def test_what_is_in_quarantine_is_shown(lake: Lake, capsys: pytest.CaptureFixture[str]) -> None:
    typed("quarantine")
    shown = capsys.readouterr().out
    assert "'cause': 'malformed'" in shown
    assert "'cause': 'conflict'" in shown


def test_a_derived_table_whose_folder_is_removed_is_made_again_and_computed_from_all_records(lake: Lake) -> None:
    (removed,) = re.findall(r"\(`rm -r (lake/usage)`\)", REPAIR)
    commit_written(next_increment(lake, "usage"), [])
    assert next_increment(lake, "usage").commits == 0
    shutil.rmtree(removed)
    lake.create()
    assert next_increment(lake, "usage").commits == 4
