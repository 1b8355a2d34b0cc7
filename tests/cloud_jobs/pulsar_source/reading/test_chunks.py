"""Messages in chunks that a range cuts, on the model of a cluster."""

import pytest

from cloud_jobs.pulsar_source.entries import stream_range
from cloud_jobs.pulsar_source.options import PulsarOptions
from cloud_jobs.pulsar_source.position import LedgerPosition, PartitionRange
from tests.cloud_jobs.pulsar_source.model import ModelWorld
from tests.cloud_jobs.pulsar_source.model_topic import ChunkPart, Entry

TOPIC = "persistent://public/default/t"
FIRST, MIDDLE, LAST = (ChunkPart.of(7, number, 3) for number in range(3))
OTHER, END_OF_OTHER = ChunkPart.of(8, 0, 2), ChunkPart.of(8, 1, 2)


class ChunkedTopic:
    """A topic with these entries, acknowledged up to `read` of them."""

    def __init__(self, *entries: Entry) -> None:
        self.world = ModelWorld()
        self.options = PulsarOptions.parse(
            {
                "clusters": "hq=pulsar://h:1|http://h:2",
                "topics": TOPIC,
                "subscription": "s",
                "columns": "value,malformed",
            }
        )
        self.model = self.world.clusters["hq"].create(TOPIC)
        self.model.subscribe()
        self.ledger = min(self.model.ledgers)
        self.model.ledgers[self.ledger] += entries

    def rows(self, after: int, *, isolated: bool = False, ledger: int | None = None) -> list[str]:
        """Of the range that begins behind so many entries: a value, or why there is none."""
        start, state = LedgerPosition(ledger or self.ledger, after - 1), self.model.state()
        part = PartitionRange(TOPIC, start, state.last)
        planned = stream_range(part, state, self.options.all_clusters()[0], self.options, frozenset())
        if not isolated:
            self.model.acknowledge(start)
        read = self.world.read(self.options, planned.isolated_copy() if isolated else planned)
        return [row["malformed"] or row["value"].decode() for batch in read for row in batch.to_pylist()]


@pytest.mark.parametrize("isolated", [False, True])
@pytest.mark.parametrize("after", range(1, 5))
def test_a_message_is_in_the_range_of_its_last_chunk_wherever_the_range_begins(after: int, isolated: bool) -> None:
    rows = ChunkedTopic((0,), FIRST, MIDDLE, (1,), LAST, (2,)).rows(after, isolated=isolated)
    assert sorted(rows) == ["1", "2", "7"][after == 4 :]


@pytest.mark.parametrize("after", range(5))
def test_messages_between_each_other_come_once_each(after: int) -> None:
    rows = ChunkedTopic((0,), FIRST, OTHER, MIDDLE, (1,), END_OF_OTHER, LAST).rows(after)
    assert sorted(rows) == ["0", "1", "7", "8"][after > 0 :]


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        ([FIRST, MIDDLE, FIRST, MIDDLE, LAST], ["7"]),
        ([FIRST, MIDDLE, MIDDLE, LAST], ["cannot"]),
        ([FIRST, MIDDLE, LAST, MIDDLE, LAST], ["7"]),
        ([FIRST, MIDDLE, LAST, LAST], ["7"]),
        ([LAST], ["cannot"]),
        ([FIRST, MIDDLE], []),
        ([FIRST, MIDDLE, MIDDLE, LAST, FIRST, MIDDLE, LAST], ["7", "cannot"]),
    ],
)
def test_chunks_that_are_sent_again_are_a_message_or_a_row_that_says_so(
    entries: list[Entry], expected: list[str]
) -> None:
    rows = ChunkedTopic(*entries, (1,)).rows(0)
    assert ["cannot" if "cannot be put together" in row else row for row in rows if row != "1"] == expected
    assert "1" in rows


def test_a_first_chunk_that_is_not_stored_any_more_is_a_row_that_says_so_and_stops_nothing():
    topic = ChunkedTopic((0,), FIRST, MIDDLE)
    topic.model.acknowledge(topic.model.last)
    topic.world.clusters["hq"].open_again(TOPIC)
    topic.model.ledgers[max(topic.model.ledgers)] += [LAST, (1,)]
    topic.model.trim()
    value, row = topic.rows(3)
    assert value == "1"
    assert "its first chunk is not stored any more: it was read before, or is lost" in row
