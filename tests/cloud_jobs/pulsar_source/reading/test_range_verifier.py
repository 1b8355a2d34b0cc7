"""What was planned is read, or the range fails: each way to leave an entry out, on the model of a cluster."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from cloud_jobs.pulsar_source.entries import PlannedRange, stream_range
from cloud_jobs.pulsar_source.messages import EntryRuns
from cloud_jobs.pulsar_source.options import PulsarOptions, ReadIncomplete, ReadStalled
from cloud_jobs.pulsar_source.position import LedgerPosition, PartitionRange
from cloud_jobs.pulsar_source.range_reader import DeliveredEntries
from tests.cloud_jobs.pulsar_source.model import ModelWorld
from tests.cloud_jobs.pulsar_source.model_topic import Broken, ChunkPart, Entry, ModelTopic

TOPIC = "persistent://public/default/t"
KNOWN = {"clusters": "hq=pulsar://h:1|http://h:2", "topics": TOPIC, "subscription": "s", "columns": "value"}
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
        cluster = options.all_clusters()[0]
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

    def read(self) -> list[int]:
        batches = self.world.read(self.options, self.planned)
        return [int(value) for batch in batches for value in batch.column("value").to_pylist()]


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


def test_what_every_client_drops_is_no_message_and_hides_no_last_chunk_before_it():
    case = RangeCase(ChunkPart.of(0, 0, 2), (1,), ChunkPart.of(0, 1, 2), Broken(), (2,))
    case.planned = replace(case.planned, start=case.place(1))
    case.topic.acknowledge(case.place(1))
    assert case.read() == [2, 0]


@BOTH
@pytest.mark.parametrize("held_from", [0, 1, 2])
def test_an_open_transaction_is_waited_for_and_then_all_is_read(held_from: int, options: PulsarOptions) -> None:
    case = RangeCase((0,), (1,), (2,), (), options=options)
    case.topic.held_from = case.place(held_from)

    def ended() -> None:
        case.topic.held_from = None

    case.after(5, ended)
    assert case.read() == [0, 1, 2]


@pytest.mark.parametrize("held_from", [0, 1, 2])
def test_a_transaction_that_stays_open_stalls_the_range_and_takes_nothing_away(held_from: int) -> None:
    case = RangeCase((0,), (1,), (2,), ())
    case.topic.held_from = case.place(held_from)
    with pytest.raises(ReadStalled):
        case.read()


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
    planned = PlannedRange(OPTIONS.all_clusters()[0], TOPIC, start, end, True, 1, frozenset(), ((7, 2),))
    at_once, one_by_one = DeliveredEntries(planned), DeliveredEntries(planned)
    at_once.add(runs_of(*runs))
    for number in range(len(runs)):
        one_by_one.add(runs_of(*runs[: number + 1]), number)
    for track in (at_once, one_by_one):
        found = track.partial_entry()
        assert (found.entry if found else None) == partly


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
