import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloud_jobs.pulsar_source.position import BEGINNING, LedgerPosition, Offset, ranges

positions = st.builds(LedgerPosition, st.integers(0, 9), st.integers(-1, 9)) | st.builds(
    LedgerPosition, st.integers(0, 9), st.integers(0, 9), st.integers(0, 5)
)
topics = st.sampled_from([f"persistent://t/n/topic-partition-{number}" for number in range(4)])
by_topic = st.dictionaries(topics, positions)


@given(positions)
def test_a_position_comes_back_from_its_text(position: LedgerPosition) -> None:
    assert LedgerPosition.parse(str(position)) == position


@given(by_topic, by_topic)
def test_neighbouring_ranges_meet_without_a_gap(
    start: dict[str, LedgerPosition], end: dict[str, LedgerPosition]
) -> None:
    pieces = {piece.topic: piece for piece in ranges(Offset("hq", start), Offset("hq", end))}
    for topic, last in end.items():
        first = start.get(topic, BEGINNING)
        if last > first:
            assert (pieces[topic].start, pieces[topic].end) == (first, last)
        else:
            assert topic not in pieces


def test_after_a_change_of_cluster_a_range_begins_at_the_origin_and_never_at_the_other_clusters_position():
    start = Offset("hq", {"t": LedgerPosition(900, 5)})
    end = Offset("dr", {"t": LedgerPosition(3, 9)}, {"t": LedgerPosition(3, 1)})
    assert [(piece.start, piece.end) for piece in ranges(start, end)] == [(LedgerPosition(3, 1), LedgerPosition(3, 9))]


def test_an_offset_of_another_version_is_refused_with_a_way_to_go_on():
    with pytest.raises(ValueError, match="new checkpoint"):
        Offset.from_json({"cluster": "hq", "positions": {}})
