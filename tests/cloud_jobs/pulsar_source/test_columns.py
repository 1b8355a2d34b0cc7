from dataclasses import dataclass, field
from typing import Any

import pulsar
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from cloud_jobs.pulsar_source.columns import ALL, Columns, arrow_schema
from cloud_jobs.pulsar_source.message_ids import batch_size_of

TOPIC = "persistent://t/n/x-partition-2"


def varint(number: int) -> bytes:
    head, rest = number & 0x7F, number >> 7
    return bytes([head | 0x80]) + varint(rest) if rest else bytes([head])


def native_id(ledger: int, entry: int, batch: int = -1, size: int = 1) -> Any:
    """The client's own id, from its serialised form."""
    data = b"\x08" + varint(ledger) + b"\x10" + varint(entry)
    if batch >= 0:
        data += b"\x20" + varint(batch) + b"\x30" + varint(size)
    return pulsar.MessageId.deserialize(data)


@dataclass
class Message:
    """What the columns ask of a native message; a native one can only be made by a broker."""

    id: Any
    body: bytes = b"x"
    key: str = ""
    props: dict[str, str] = field(default_factory=dict)
    published: int = 1_767_603_422_000
    happened: int = 0
    producer: str = "eu-0-1"

    def message_id(self) -> Any:
        return self.id

    def data(self) -> bytes:
        return self.body

    def partition_key(self) -> str:
        return self.key

    def properties(self) -> dict[str, str]:
        return self.props

    def publish_timestamp(self) -> int:
        return self.published

    def event_timestamp(self) -> int:
        return self.happened

    def producer_name(self) -> str:
        return self.producer

    def has_null_value(self) -> bool:
        return not self.body


texts = st.text(st.characters(codec="utf-8"), max_size=4)


@st.composite
def streams(draw: st.DrawFn) -> list[Message]:
    """Entries of one message or of a batch, of which compaction may have left out some."""
    messages = []
    for entry in range(draw(st.integers(0, 5))):
        size = draw(st.integers(0, 4))
        ids = [native_id(7, entry, batch, size) for batch in range(size) if draw(st.booleans())] or [
            native_id(7, entry)
        ]
        shared = {"published": draw(st.integers(1, 10**12)), "producer": draw(st.sampled_from(["eu-0-1", "gateway"]))}
        for each in ids:
            props = draw(st.dictionaries(texts, texts, max_size=3))
            body, key = draw(st.binary(max_size=3)), draw(texts)
            messages.append(Message(each, body, key, props, happened=draw(st.integers(0, 10**12)), **shared))
    return messages


def columns(names: tuple[str, ...] = ALL) -> Columns:
    return Columns(TOPIC, "hq", frozenset({"eu", "hq"}), names)


@given(streams(), st.integers(0, 20))
def test_every_row_is_its_message_however_they_arrive(messages: list[Message], cut: int):
    collected = columns()
    parts = [part for part in (messages[:cut], messages[cut:]) if part]
    for part in parts:
        collected.extend(part)
    batch = collected.take()
    assert batch.schema == arrow_schema()
    for row, message in zip(batch.to_pylist(), messages, strict=True):
        ledger, entry, index = message.id.ledger_id(), message.id.entry_id(), message.id.batch_index()
        assert row["value"] == (message.body or None)
        assert row["key"] == (message.key or None)
        assert dict(row["properties"]) == message.props
        assert round(row["publish_time"].timestamp() * 1000) == message.published
        assert (row["event_time"] is None) == (message.happened == 0)
        assert row["message_id"] == f"{ledger}:{entry}:2" + (f":{index}" if index >= 0 else "")
        assert row["topic"] == "persistent://t/n/x"
        assert row["cluster"] == ("eu" if message.producer.startswith("eu") else "hq")
    assert len(collected) == collected.bytes == 0


def test_only_the_columns_that_are_wanted_are_built():
    collected = columns(("value", "message_id"))
    collected.extend([Message(native_id(1, 2))])
    assert collected.take() == pa.RecordBatch.from_pydict({"value": [b"x"], "message_id": ["1:2:2"]})


def test_an_id_knows_how_many_messages_its_entry_holds():
    assert batch_size_of(native_id(3, 0, 5, 655)) == 655
    assert batch_size_of(native_id(3, 300)) == 1
