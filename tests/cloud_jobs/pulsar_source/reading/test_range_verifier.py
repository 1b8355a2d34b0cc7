"""What was planned is read, or the range fails: each way to leave an entry out, on the model of a cluster."""

from collections.abc import Callable
from typing import Any

import pytest

from cloud_jobs.pulsar_source.entries import PlannedRange, stream_range
from cloud_jobs.pulsar_source.messages import EntryRuns
from cloud_jobs.pulsar_source.options import PulsarOptions, ReadIncomplete
from cloud_jobs.pulsar_source.position import LedgerPosition, PartitionRange
from cloud_jobs.pulsar_source.range_reader import DeliveredEntries
from tests.cloud_jobs.pulsar_source.model import ModelWorld
from tests.cloud_jobs.pulsar_source.model_topic import Broken, ChunkEnd, Entry, ModelTopic

TOPIC = "persistent://public/default/t"
KNOWN = {"clusters": "hq=pulsar://h:1|http://h:2", "topics": TOPIC, "subscription": "s", "columns": "value,malformed"}
OPTIONS = PulsarOptions.parse(KNOWN)
COMPACTED = PulsarOptions.parse(KNOWN | {"readCompacted": "true"})


class RangeCase:
    """A topic with these entries, and a batch planned over all of it."""

    def __init__(self, *entries: Entry, options: PulsarOptions = OPTIONS, compacted: int = -1) -> None:
        self.world, self.options = ModelWorld(), options
        self.topic: ModelTopic = self.world.clusters["hq"].create(TOPIC)
        self.topic.subscribe()
        (ledger,) = self.topic.ledgers
        self.topic.ledgers[ledger] += entries
        self.topic.compacted = LedgerPosition(ledger, compacted)
        state = self.topic.state()
        start = LedgerPosition(ledger, -1)
        whole = PartitionRange(TOPIC, start, state.last)
        cluster = options.clusters[0]
        self.planned: PlannedRange = stream_range(whole, state, cluster, options, frozenset())

    def place(self, entry: int) -> LedgerPosition:
        return LedgerPosition(min(self.topic.ledgers), entry)

    def after(self, receives: int, happens: Callable[[], None]) -> None:
        left = receives

        def meanwhile() -> None:
            nonlocal left
            left -= 1
            if left == 0:
                happens()

        self.world.meanwhile = meanwhile

    def rows(self) -> list[dict[str, Any]]:
        return [row for batch in self.world.read(self.options, self.planned) for row in batch.to_pylist()]

    def read(self) -> list[int]:
        return [int(row["value"]) for row in self.rows()]


def test_markers_are_left_out_and_nobody_is_to_blame():
    assert RangeCase((), (0,), (), (), (1,), ()).read() == [0, 1]


@pytest.mark.parametrize("receives", [1, 2, 3])
def test_a_cursor_that_moves_within_the_read_fails_it(receives: int) -> None:
    case = RangeCase((0,), (1,), (2,), (3,), (4,), (5,))
    case.after(receives, lambda: case.topic.skip(5))
    with pytest.raises(ReadIncomplete, match="somebody"):
        case.read()
    case.planned = case.planned.isolated_copy()
    assert case.read() == list(range(6))


@pytest.mark.parametrize("entries", [[1], [2], [3], [1, 2], [3, 4], [4]])
def test_entries_that_another_consumer_acknowledged_fail_it(entries: list[int]) -> None:
    case = RangeCase((0,), (1,), (2,), (3,), (4,))
    for entry in entries:
        case.topic.acknowledge_one(case.place(entry))
    with pytest.raises(ReadIncomplete, match="somebody acknowledged it"):
        case.read()


BOTH = pytest.mark.parametrize("options", [OPTIONS, COMPACTED], ids=["plain", "compacted"])


def test_what_every_client_drops_is_no_message_and_the_end_of_a_message_in_chunks_is_a_row_that_says_so():
    case = RangeCase((0,), Broken(), ChunkEnd(), (1,), Broken())
    value, other, row = case.rows()
    assert (value["value"], other["value"], row["value"]) == (b"0", b"1", None)
    assert "was sent in chunks" in row["malformed"]


@BOTH
@pytest.mark.parametrize("held_from", [0, 1, 2])
def test_a_range_with_an_open_transaction_fails_until_that_has_ended(held_from: int, options: PulsarOptions) -> None:
    case = RangeCase((0,), (1,), (2,), (), options=options)
    case.topic.held_from = case.place(held_from)
    with pytest.raises(ReadIncomplete, match="open transaction"):
        case.read()
    case.topic.held_from = None
    assert case.read() == [0, 1, 2]


def runs_of(*runs: tuple[int, int, int, int]) -> EntryRuns:
    """(entry, first index, length, size of the batch) of ledger 7."""
    found = EntryRuns()
    for entry, index, length, size in runs:
        found.ledgers.append(7)
        found.entries.append(entry)
        found.first_batch_indexes.append(index)
        found.lengths.append(length)
        found.batch_sizes.append(size)
    return found


@pytest.mark.parametrize(
    ("start", "end", "runs", "partly"),
    [
        (LedgerPosition(7, -1), LedgerPosition(7, 1), [(0, 0, 5, 5), (1, -1, 1, 1)], None),
        (LedgerPosition(7, -1), LedgerPosition(7, 1), [(0, 0, 2, 5), (0, 2, 3, 5), (1, 0, 4, 4)], None),
        (LedgerPosition(7, -1), LedgerPosition(7, 1), [(0, 0, 2, 5), (0, 3, 2, 5), (1, 0, 4, 4)], 0),
        (LedgerPosition(7, -1), LedgerPosition(7, 1), [(0, 0, 4, 5), (1, 0, 4, 4)], 0),
        (LedgerPosition(7, -1), LedgerPosition(7, 1), [(0, 0, 5, 5), (1, 1, 3, 4)], 1),
        (LedgerPosition(7, -1), LedgerPosition(7, 1), [(0, 0, 5, 5), (1, 0, 3, 4)], 1),
        (LedgerPosition(7, -1), LedgerPosition(7, 1, 2), [(0, 0, 5, 5), (1, 0, 3, 4)], None),
        (LedgerPosition(7, -1), LedgerPosition(7, 1, 2), [(0, 0, 5, 5), (1, 0, 2, 4)], 1),
        (LedgerPosition(7, 0, 1), LedgerPosition(7, 1), [(0, 2, 3, 5), (1, 0, 4, 4)], None),
        (LedgerPosition(7, 0, 1), LedgerPosition(7, 1), [(0, 3, 2, 5), (1, 0, 4, 4)], 0),
        (LedgerPosition(7, 0, 1), LedgerPosition(7, 1), [(1, 0, 4, 4)], 0),
        (LedgerPosition(7, 0, 1), LedgerPosition(7, 0, 3), [(0, 2, 2, 5)], None),
        (LedgerPosition(7, 0), LedgerPosition(7, 1), [(1, 0, 4, 4)], None),
    ],
)
def test_a_batch_of_which_messages_are_left_out_is_found(
    start: LedgerPosition, end: LedgerPosition, runs: list[tuple[int, int, int, int]], partly: int | None
) -> None:
    planned = PlannedRange(OPTIONS.clusters[0], TOPIC, start, end, True, 1, frozenset(), ((7, 2),))
    at_once, one_by_one = DeliveredEntries(planned), DeliveredEntries(planned)
    at_once.add(runs_of(*runs))
    for number in range(len(runs)):
        one_by_one.add(runs_of(*runs[: number + 1]), number)
    for track in (at_once, one_by_one):
        found = track.partial_entry()
        assert (found.entry if found else None) == partly
