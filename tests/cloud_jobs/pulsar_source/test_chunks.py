"""Messages in chunks that a range cuts, on the model of a cluster."""

import pytest

from cloud_jobs.pulsar_source.chunks import MOST_BACK
from cloud_jobs.pulsar_source.errors import DataLoss
from cloud_jobs.pulsar_source.options import PulsarOptions
from cloud_jobs.pulsar_source.planning import planned_range
from cloud_jobs.pulsar_source.position import Position, Range
from tests.cloud_jobs.pulsar_source.model import Entry, Part, World

TOPIC = "persistent://public/default/t"
FIRST, MIDDLE, LAST = (Part.of(7, number, 3) for number in range(3))
OTHER, END_OF_OTHER = Part.of(8, 0, 2), Part.of(8, 1, 2)


class Topic:
    """A topic with these entries, acknowledged up to `read` of them."""

    def __init__(self, *entries: Entry, strict: bool = True) -> None:
        self.world = World()
        self.options = PulsarOptions.parse(
            {
                "clusters": "hq=pulsar://h:1|http://h:2",
                "topics": TOPIC,
                "subscription": "s",
                "columns": "value,malformed",
            }
            | {"failOnDataLoss": str(strict).lower()}
        )
        self.model = self.world.clusters["hq"].create(TOPIC)
        self.model.subscribe()
        self.ledger = min(self.model.ledgers)
        self.model.ledgers[self.ledger] += entries

    def rows(self, after: int, *, careful: bool = False, ledger: int | None = None) -> list[str]:
        """Of the range that begins behind so many entries: a value, or why there is none."""
        start, state = Position(ledger or self.ledger, after - 1), self.model.state()
        piece = Range(TOPIC, start, state.last)
        planned = planned_range(piece, state, self.options.all_clusters()[0], self.options, frozenset())
        if not careful:
            self.model.acknowledge(start)
        read = self.world.read(self.options, planned.carefully() if careful else planned)
        return [row["malformed"] or row["value"].decode() for batch in read for row in batch.to_pylist()]


@pytest.mark.parametrize("careful", [False, True])
@pytest.mark.parametrize("after", range(1, 5))
def test_a_message_is_in_the_range_of_its_last_chunk_wherever_the_range_begins(after: int, careful: bool):
    rows = Topic((0,), FIRST, MIDDLE, (1,), LAST, (2,)).rows(after, careful=careful)
    assert sorted(rows) == ["1", "2", "7"][after == 4 :]


def test_a_range_that_ends_within_a_message_is_read_without_it():
    assert Topic((0,), FIRST, (1,), MIDDLE).rows(0) == ["0", "1"]


@pytest.mark.parametrize("after", range(5))
def test_messages_between_each_other_come_once_each(after: int):
    rows = Topic((0,), FIRST, OTHER, MIDDLE, (1,), END_OF_OTHER, LAST).rows(after)
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
def test_chunks_that_are_sent_again_are_a_message_or_a_row_that_says_so(entries: list[Entry], expected: list[str]):
    rows = Topic(*entries, (1,)).rows(0)
    assert ["cannot" if "cannot be put together" in row else row for row in rows if row != "1"] == expected
    assert "1" in rows


def test_a_first_chunk_is_not_looked_for_without_end():
    (row,) = Topic((0,), FIRST, *[(1,)] * MOST_BACK, MIDDLE, LAST).rows(2 + MOST_BACK)
    assert f"more than {MOST_BACK} entries before the last" in row


def test_a_first_chunk_that_was_removed_is_a_loss():
    for strict in (True, False):
        topic = Topic((0,), FIRST, MIDDLE, strict=strict)
        topic.model.acknowledge(topic.model.last)
        topic.world.clusters["hq"].open_again(TOPIC)
        topic.model.ledgers[max(topic.model.ledgers)] += [LAST, (1,)]
        topic.model.trim()
        if strict:
            with pytest.raises(DataLoss, match="began in ledger"):
                topic.rows(3)
        else:
            assert len(topic.rows(3)) == 2
