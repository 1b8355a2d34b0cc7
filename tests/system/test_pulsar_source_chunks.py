"""Messages in chunks that lie in two batches: each one is delivered once, or the table says that it was not."""

import zlib

import pytest

from tests.cloud_jobs.pulsar_source.by_hand import QueryByHand
from tests.cloud_jobs.pulsar_source.raw import RawProducer, metadata, raw_producer
from tests.cloud_jobs.pulsar_source.world import LiveCluster

pytestmark = [pytest.mark.system, pytest.mark.nightly]


def send(producer: RawProducer, step: str, *, compressed: bool = False) -> None:
    """`a0/3`: chunk 0 of the 3 of message a. Any other word is a message of its own."""
    name, _, of = step.partition("/")
    if not of:
        producer.send(metadata(), step.encode())
        return
    message, number = name[0], int(name[1:])
    value = f"whole {message}".encode()
    content = zlib.compress(value) if compressed else value
    size = -(-len(content) // int(of))
    more = {"compression": 2, "uncompressed_size": len(value)} if compressed else {}
    head = metadata(
        uuid=message.encode(), num_chunks_from_msg=int(of), total_chunk_msg_size=len(content), chunk_id=number, **more
    )
    producer.send(head, content[number * size : (number + 1) * size])


def batches_of(hq: LiveCluster, query: QueryByHand, steps: str, *, compressed: bool = False) -> list[list[str]]:
    """The values, or what is malformed, of each batch. `|`: a batch ends here. Each is read twice."""
    found: list[list[str]] = []
    with raw_producer(hq, query.topic) as producer:
        for batch in steps.split("|"):
            for step in batch.split():
                send(producer, step, compressed=compressed)
            end, tasks = query.plan()
            rows = [row["malformed"] or row["value"].decode() for row in query.rows(tasks)]
            again = [
                row["malformed"] or row["value"].decode() for row in query.rows([t.isolated_copy() for t in tasks])
            ]
            assert sorted(again) == sorted(rows)
            query.done(end)
            found.append(rows)
    return found


TWO_PRODUCERS = "a0/3 b0/2 1 a1/3 | 2 a2/3 b1/2 | 3"
OF_TWO_PRODUCERS = [["1"], ["2", "whole a", "whole b"], ["3"]]


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ("0 a0/3 1 | a1/3 2 | a2/3 3", [["0", "1"], ["2"], ["3", "whole a"]]),
        (TWO_PRODUCERS, OF_TWO_PRODUCERS),
        ("a0/2 0 | b0/2 b1/2 a1/2 1", [["0"], ["whole b", "1", "whole a"]]),
    ],
)
def test_a_message_belongs_to_the_batch_of_its_last_chunk(
    hq: LiveCluster, steps: str, expected: list[list[str]]
) -> None:
    query = QueryByHand(hq)
    assert batches_of(hq, query, steps) == expected
    query.close()


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ("a0/3 a1/3 a0/3 | a1/3 a2/3 0", ["0", "whole a"]),
        ("a0/3 a1/3 a2/3 | a1/3 a2/3 0", ["whole a", "0"]),
        (
            "a0/3 a1/3 a1/3 | a2/3 0",
            ["0", "message 'a' of 3 chunks cannot be put together: its chunks are not in order"],
        ),
        ("0 | a2/3 1", ["0", "1", "message 'a' of 3 chunks cannot be put together: its first chunk is not stored any"]),
    ],
)
def test_chunks_that_are_sent_again_are_a_message_or_a_row_that_says_so(
    hq: LiveCluster, steps: str, expected: list[str]
) -> None:
    query = QueryByHand(hq)
    rows = [row for batch in batches_of(hq, query, steps) for row in batch]
    assert len(rows) == len(expected)
    assert all(row.startswith(text) for row, text in zip(rows, expected, strict=True)), rows
    query.close()
