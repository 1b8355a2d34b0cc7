"""What a command writes is whole or is not there; what a shell opened is written to and never replaced."""

from __future__ import annotations

import csv
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cloud_jobs.terminal import write_csv
from tests.cloud_jobs.test_file_commands import GOOD_FENCES, GOOD_FIXES

PROGRAM = [sys.executable, "-m", "cloud_jobs", "measure"]


def failing(error: BaseException) -> Iterator[tuple[str, int]]:
    yield "a", 1
    raise error


@pytest.mark.parametrize("error", [ValueError("no"), OSError(5, "no"), KeyboardInterrupt(), MemoryError()])
@pytest.mark.parametrize("before", [None, "old\n"])
def test_an_error_among_the_rows_leaves_the_old_file_and_no_other(
    tmp_path: Path, error: BaseException, before: str | None
) -> None:
    out = tmp_path / "out.csv"
    if before is not None:
        out.write_text(before)
    with pytest.raises(type(error)):
        write_csv(out, ("name", "count"), failing(error))
    assert [(one.name, one.read_text()) for one in tmp_path.iterdir()] == (
        [] if before is None else [("out.csv", before)]
    )


@pytest.mark.parametrize("sign", ["=", "+", "-", "@", "\t", "\n", "＝"])
def test_no_spreadsheet_computes_a_name_and_a_number_stays_a_number(tmp_path: Path, sign: str) -> None:
    name = f"{sign}HYPERLINK(1)"
    write_csv(tmp_path / "out.csv", ("name", "metres", "count"), [(name, "0.125", -3)])
    with (tmp_path / "out.csv").open(newline="") as file:
        assert [*csv.reader(file)][1] == [f"'{name}", "0.125", "-3"]


@pytest.mark.parametrize("name", ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1", "linked"])
def test_what_a_shell_sent_to_a_file_is_added_to_it(tmp_path: Path, name: str) -> None:
    (tmp_path / "fixes.csv").write_bytes(GOOD_FIXES)
    (tmp_path / "fences.geojson").write_bytes(GOOD_FENCES)
    (tmp_path / "linked").symlink_to("/dev/stdout")
    everything = tmp_path / "all.csv"
    everything.write_text("old\n")
    before = everything.stat().st_ino
    options = ["--fixes", "fixes.csv", "--fences", "fences.geojson", "--out", name]
    with everything.open("a") as file:
        done = subprocess.run(
            [*PROGRAM, *options], cwd=tmp_path, stdout=file, stderr=subprocess.PIPE, timeout=60, check=False
        )
    assert done.returncode == 0, done.stderr
    lines = everything.read_text().splitlines()
    assert (lines[:2], len(lines)) == (["old", "device_id,fence_id,km,seconds,entries"], 4)
    assert everything.stat().st_ino == before
