"""Records that are there twice are written again with each once, by what the page says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.cloud_jobs.ingest.centre import batch, new_ingest, new_lake, seqs_in_table, take_in
from tests.cloud_jobs.maintenance.upkeep import run
from tests.cloud_jobs.status.watched import note_maintenance, wrong

PAGE = Path(__file__).parents[3] / "docs/centre.md"


def test_rows_that_are_there_twice_are_there_once_after_what_the_page_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = new_lake(tmp_path / "lake")
    run(lake)
    writer = new_ingest(lake)
    for seq in (1, 2, 3):
        take_in(lake, writer, [batch(seq), batch(seq, day=-1, device="e")])
    stale = lake.open("records")
    run(lake)
    stale.optimize.compact()
    note_maintenance(lake)
    assert wrong(lake) == ("6 rows of records are more than were received: some are there twice",)
    code = re.search(r"```python\n(from pathlib.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert code is not None
    monkeypatch.chdir(tmp_path)
    exec(code[1], {})  # noqa: S102 - the page's own words
    assert wrong(lake) == ()
    assert (seqs_in_table(lake), seqs_in_table(lake, "e")) == ([1, 2, 3], [1, 2, 3])
    take_in(lake, writer, [batch(3, 4)])
    assert seqs_in_table(lake) == [1, 2, 3, 4]
