"""What was sent is on disk before it is sent: whoever starts again knows which quarters of an hour are known."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deploy.canary.errors import StateFileDamaged
from deploy.canary.probes import SentProbes

PER_QUARTER = 4


@given(st.lists(st.sampled_from(["whole", "cut", "killed", "stopped"]), max_size=20))
def test_after_any_history_a_quarter_is_known_exactly_if_nothing_in_it_was_cut_or_followed_a_cut(
    what: list[str],
) -> None:
    with TemporaryDirectory() as folder:
        file = Path(folder, "sent.json")
        sent, unknown, whole = SentProbes(file, has_sent_before=False), set[int](), dict[int, list[int]]()
        after_cut = False
        for number, end in enumerate(what):
            quarter = number // PER_QUARTER
            if end == "stopped":  # between two probes: nothing is lost by it
                sent = SentProbes(file, has_sent_before=True) if file.exists() else sent
                continue
            if after_cut:
                unknown.add(quarter)
            sent.begin(number, quarter)
            after_cut = end != "whole"
            if end == "whole":
                sent.end()
                whole.setdefault(quarter, []).append(number)
                continue
            unknown.add(quarter)
            if end == "cut":
                sent.cut()
            else:
                sent = SentProbes(file, has_sent_before=True)
        quarters = range(len(what) // PER_QUARTER + 1)
        assert {quarter for quarter in quarters if sent.is_unknown(quarter)} == unknown
        assert {quarter: sent.whole(quarter) for quarter in quarters if sent.whole(quarter)} == whole


def test_a_file_that_was_lost_is_a_gap_and_a_new_vehicle_is_none(tmp_path: Path) -> None:
    for has_sent_before in (True, False):
        sent = SentProbes(tmp_path / f"{has_sent_before}.json", has_sent_before=has_sent_before)
        sent.begin(1, 0)
        assert sent.is_unknown(0) == has_sent_before


def test_a_damaged_file_is_named_with_what_to_do(tmp_path: Path) -> None:
    file = tmp_path / "sent.json"
    file.write_text('{"whole": 3}')
    with pytest.raises(StateFileDamaged, match=r"sent\.json cannot be read .* remove it"):
        SentProbes(file, has_sent_before=True)


def test_probes_drive_to_and_fro(tmp_path: Path) -> None:
    sent = SentProbes(tmp_path / "sent.json", has_sent_before=False)
    assert sent.may_follow(6)
    sent.begin(6, 0)
    sent.end()
    assert [number for number in range(7, 12) if sent.may_follow(number)] == [7, 9, 11]
