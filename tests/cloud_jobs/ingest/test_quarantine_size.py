"""What is looked up in the quarantine does not grow with what is in it."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cloud_jobs.ingest.micro_batch import run_here
from cloud_jobs.ingest.parts import commit_quarantine, write_quarantine
from tests.cloud_jobs.ingest.centre import new_lake

NOW = datetime(2026, 1, 5, 12, tzinfo=UTC)


def rows(first: int, last: int) -> list[dict[str, Any]]:
    """Rows of malformed messages, each with a digest as its fingerprint."""
    made = (hashlib.sha256(str(number).encode()).hexdigest() for number in range(first, last))
    return [{"cause": "malformed", "fingerprint": one, "detail": "x", "quarantined_at": NOW} for one in made]


def test_each_message_opens_one_row_group_at_most_of_a_large_quarantine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = new_lake(tmp_path)
    files = lake.files("quarantine")
    commit_quarantine(lake, write_quarantine(files, rows(0, 50_000), 1, NOW), run_here, 1, NOW)
    again = [*rows(10, 12), *rows(60_000, 60_001)]
    written = write_quarantine(files, again, 2, NOW)
    read = list[int]()
    whole = pq.ParquetFile.read_row_group

    def counted(file: pq.ParquetFile, number: int, **options: Any) -> pa.Table:
        found = whole(file, number, **options)
        read.append(found.num_rows)
        return found

    with monkeypatch.context() as patched:
        patched.setattr(pq.ParquetFile, "read_row_group", counted)
        commit_quarantine(lake, written, run_here, 2, NOW)
    assert 0 < len(read) <= len(again)
    assert sum(read) < 30_000
    assert lake.rows("quarantine", ["fingerprint"]).num_rows == 50_001
