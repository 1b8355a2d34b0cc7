from pathlib import Path

from cloud_jobs.pulsar_source.failover import FailoverFile, Standing
from cloud_jobs.pulsar_source.position import Offset, Position

ON_HQ = Offset("hq", {"t": Position(7, 3)})
ON_DR = Offset("dr", {"t": Position(2, 1)})


def test_reading_goes_on_from_the_offset_in_the_same_cluster_and_from_the_cursor_in_another():
    assert not Standing("hq").from_cursor(ON_HQ)
    assert Standing("hq").moved("dr").from_cursor(ON_HQ)
    assert not Standing("hq").moved("dr").from_cursor(ON_DR)


def test_after_a_batch_that_was_closed_unread_reading_begins_at_the_cursor_even_where_it_was_planned():
    #   planned on hq ... hq dies, closed unread ... hq is back and ordered again
    standing = Standing("hq").abandoning(ON_HQ).moved("dr").moved("hq")
    assert standing.from_cursor(ON_HQ)
    assert not standing.from_cursor(Offset("hq", {"t": Position(8, 0)}))


def test_the_standing_outlives_the_process(tmp_path: Path):
    kept = FailoverFile(tmp_path / "deep" / "failover.json")
    assert kept.load("hq") == Standing("hq")
    standing = Standing("hq").abandoning(ON_HQ).moved("dr")
    kept.save(standing)
    assert FailoverFile(tmp_path / "deep" / "failover.json").load("hq") == standing


def test_the_operators_word_is_read_and_then_done_with(tmp_path: Path):
    kept = FailoverFile(tmp_path / "failover.json")
    assert kept.order() is None
    (tmp_path / "failover.json.order").write_text(" dr\n")
    assert kept.order() == "dr"
    kept.obeyed()
    assert kept.order() is None


def test_what_is_kept_is_bounded():
    standing = Standing("hq")
    for number in range(100):
        standing = standing.abandoning(Offset("hq", {"t": Position(number, 0)}))
    assert len(standing.abandoned) == 16
    assert standing.abandoned_at(Offset("hq", {"t": Position(99, 0)}))


def test_when_the_cluster_was_heard_last_is_kept_for_the_next_process(tmp_path: Path):
    kept = FailoverFile(tmp_path / "failover.json")
    assert kept.heard_at() is None
    kept.heard(Standing("dr"), 1_767_603_422.5)
    assert kept.heard_at() == 1_767_603_422.5
    assert kept.load("hq") == Standing("dr")
