import json
import os
from pathlib import Path

import pytest

from cloud_jobs.pulsar_source.driver.failover import FailoverFile, FailoverState, QueryIdentity
from cloud_jobs.pulsar_source.errors import FailoverFileError
from cloud_jobs.pulsar_source.position import LedgerPosition, Offset

ON_HQ = Offset("hq", {"t": LedgerPosition(7, 3)})
MINE = QueryIdentity("4f", "ingest", "t")
ON_DR = Offset("dr", {"t": LedgerPosition(2, 1)})


def test_reading_goes_on_from_the_offset_in_the_same_cluster_and_from_the_cursor_in_another():
    assert not FailoverState("hq").restarts_at_cursor(ON_HQ)
    assert FailoverState("hq").with_active("dr").restarts_at_cursor(ON_HQ)
    assert not FailoverState("hq").with_active("dr").restarts_at_cursor(ON_DR)


def test_after_a_batch_that_was_closed_unread_reading_begins_at_the_cursor_even_where_it_was_planned():
    #   planned on hq ... hq dies, closed unread ... hq is back and ordered again
    standing = FailoverState("hq").with_abandoned(ON_HQ).with_active("dr").with_active("hq")
    assert standing.restarts_at_cursor(ON_HQ)
    assert not standing.restarts_at_cursor(Offset("hq", {"t": LedgerPosition(8, 0)}))


def test_the_standing_outlives_the_process(tmp_path: Path) -> None:
    kept = FailoverFile(tmp_path / "deep" / "failover.json")
    assert kept.load() is None
    standing = FailoverState("hq").with_abandoned(ON_HQ).with_active("dr").creating("dr", ["t"]).creating("dr", ["u"])
    kept.save(MINE, standing)
    assert FailoverFile(tmp_path / "deep" / "failover.json").load() == (MINE, standing)
    assert [file.name for file in (tmp_path / "deep").iterdir()] == ["failover.json"]


GOOD = json.loads('{"version": 2, "query": "q", "subscription": "s", "topics": "t", "active": "hq", "abandoned": []}')


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"active": "hq", "abandoned": []}',
        *(json.dumps({key: value for key, value in GOOD.items() if key != left_out}).encode() for left_out in GOOD),
        *(json.dumps(GOOD | {key: wrong}).encode() for key in GOOD for wrong in (None, 3, "", ["x", 1])),
        *(json.dumps(GOOD | {"created": wrong}).encode() for wrong in (None, 3, ["t"], {"dr": "t"}, {"dr": [1]})),
    ],
)
def test_other_content_is_refused_in_words_that_say_what_to_do(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "failover.json").write_bytes(content)
    with pytest.raises(FailoverFileError, match="remove this one"):
        FailoverFile(tmp_path / "failover.json").load()


@pytest.mark.parametrize("size", range(0, len(json.dumps(GOOD)), 7))
def test_a_truncated_file_is_refused(tmp_path: Path, size: int) -> None:
    (tmp_path / "failover.json").write_text(json.dumps(GOOD)[:size])
    with pytest.raises(FailoverFileError):
        FailoverFile(tmp_path / "failover.json").load()


def test_a_full_disk_is_an_error_of_ours_and_leaves_what_was_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = FailoverFile(tmp_path / "failover.json")
    kept.save(MINE, FailoverState("hq"))

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(FailoverFileError, match="No space left"):
            kept.save(MINE, FailoverState("dr"))
    assert kept.load() == (MINE, FailoverState("hq"))


def test_a_folder_in_the_place_of_the_file_or_of_the_order_is_an_error_of_ours(tmp_path: Path) -> None:
    kept = FailoverFile(tmp_path / "failover.json")
    (tmp_path / "failover.json").mkdir()
    (tmp_path / "failover.json.switchover").mkdir()
    with pytest.raises(FailoverFileError):
        kept.load()
    with pytest.raises(FailoverFileError):
        kept.switchover_request()


def test_the_operators_word_is_read_and_then_done_with(tmp_path: Path) -> None:
    kept = FailoverFile(tmp_path / "failover.json")
    assert kept.switchover_request() is None
    (tmp_path / "failover.json.switchover").write_text(" dr\n")
    assert kept.switchover_request() == "dr"
    kept.clear_switchover_request()
    assert kept.switchover_request() is None


def test_what_is_kept_is_bounded():
    standing = FailoverState("hq")
    for number in range(100):
        standing = standing.with_abandoned(Offset("hq", {"t": LedgerPosition(number, 0)}))
    assert len(standing.abandoned) == 16
    assert standing.is_abandoned(Offset("hq", {"t": LedgerPosition(99, 0)}))


def test_when_the_cluster_was_heard_last_is_kept_for_the_next_process(tmp_path: Path) -> None:
    kept = FailoverFile(tmp_path / "failover.json")
    assert kept.last_answer_s() is None
    assert not kept.record_answer(1_767_603_422.5)
    kept.save(MINE, FailoverState("dr"))
    assert kept.record_answer(1_767_603_422.5)
    assert kept.last_answer_s() == 1_767_603_422.5
    assert kept.load() == (MINE, FailoverState("dr"))
