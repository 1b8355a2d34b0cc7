"""What is said of a file has a line for each message, whatever the file holds."""

from __future__ import annotations

from pathlib import Path

import pytest

from cloud_jobs.measure import print_problems


def test_a_message_that_repeats_a_file_moves_no_cursor_and_starts_no_line(capsys: pytest.CaptureFixture[str]) -> None:
    print_problems(Path("a\x1b.csv"), ["\x1b[2J\nrow ok\r\x85\u2028\u202e\x9b", "é \ud800"])
    lines = capsys.readouterr().err.split("\n")
    assert lines == [r"a\x1b.csv: \x1b[2J\nrow ok\r\x85\u2028\u202e\x9b", r"a\x1b.csv: é \ud800", ""]
