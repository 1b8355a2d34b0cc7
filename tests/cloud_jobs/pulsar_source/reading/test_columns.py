from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pulsar
from hypothesis import given
from hypothesis import strategies as st

from cloud_jobs.pulsar_source.messages import LAST_MS, MessageColumns, arrow_schema
from cloud_jobs.pulsar_source.options import ALL_COLUMNS

TOPIC = "persistent://t/n/x-partition-2"


def varint(number: int) -> bytes:
    head, rest = number & 0x7F, number >> 7
    return bytes([head | 0x80]) + varint(rest) if rest else bytes([head])


def native_id(ledger: int, entry: int, batch: int = -1, size: int = 1) -> Any:
    data = b"\x08" + varint(ledger) + b"\x10" + varint(entry)
    if batch >= 0:
        data += b"\x20" + varint(batch) + b"\x30" + varint(size)
    return pulsar.MessageId.deserialize(data)


def decoded(text: str | bytes) -> str:
    """As the native client gives a text that the producer sent as these bytes."""
    return text.decode() if isinstance(text, bytes) else text


@dataclass
class FakeMessage:
    """What the columns ask of a native message; a native one can only be made by a broker."""

    id: Any
    body: bytes = b"x"
    key: str | bytes = ""
    props: Mapping[Any, str | bytes] = field(default_factory=dict)
    published: int = 1_767_603_422_000
    happened: int = 0
    producer: str | bytes = "eu-0-1"
    encrypted: bool = False

    def message_id(self) -> Any:
        return self.id

    def data(self) -> bytes:
        return self.body

    def partition_key(self) -> str:
        return decoded(self.key)

    def properties(self) -> dict[str, str]:
        return {decoded(name): decoded(text) for name, text in self.props.items()}

    def publish_timestamp(self) -> int:
        return self.published

    def event_timestamp(self) -> int:
        return self.happened

    def producer_name(self) -> str:
        return decoded(self.producer)

    def encryption_context(self) -> object | None:
        return object() if self.encrypted else None

    def has_null_value(self) -> bool:
        return not self.body


texts = st.text(st.characters(codec="utf-8"), max_size=4)


@st.composite
def streams(draw: st.DrawFn) -> list[FakeMessage]:
    """Entries of one message or of a batch, of which compaction may have left out some."""
    messages = []
    for entry in range(draw(st.integers(0, 5))):
        size = draw(st.integers(0, 4))
        ids = [native_id(7, entry, batch, size) for batch in range(size) if draw(st.booleans())] or [
            native_id(7, entry)
        ]
        shared: dict[str, Any] = {
            "published": draw(st.integers(1, 10**12)),
            "producer": draw(st.sampled_from(["eu-0-1", "gateway"])),
        }
        for each in ids:
            props = draw(st.dictionaries(texts, texts, max_size=3))
            body, key = draw(st.binary(max_size=3)), draw(texts)
            messages.append(FakeMessage(each, body, key, props, happened=draw(st.integers(0, 10**12)), **shared))
    return messages


def columns(names: tuple[str, ...] = ALL_COLUMNS) -> MessageColumns:
    return MessageColumns(TOPIC, "hq", frozenset({"eu", "hq"}), names)


@given(streams(), st.integers(0, 20))
def test_every_row_is_its_message_however_they_arrive(messages: list[FakeMessage], cut: int) -> None:
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
        assert row["cluster"] == ("eu" if message.producer == "eu-0-1" else "hq")
        assert row["malformed"] is None
    assert len(collected) == collected.bytes == 0


def is_text(data: str | bytes) -> bool:
    try:
        decoded(data)
    except UnicodeDecodeError:
        return False
    return True


any_time = st.sampled_from([0, 1, LAST_MS, LAST_MS + 1, 1_767_603_422_000_000_000, 2**63 - 1, 2**63, 2**64 - 1])
any_bytes = st.binary(max_size=3)


@st.composite
def any_streams(draw: st.DrawFn) -> list[FakeMessage]:
    return [
        FakeMessage(
            native_id(7, entry),
            draw(any_bytes),
            draw(any_bytes),
            draw(st.dictionaries(any_bytes, any_bytes, max_size=2)),
            draw(any_time),
            draw(any_time),
            draw(any_bytes),
            draw(st.booleans()),
        )
        for entry in range(draw(st.integers(0, 5)))
    ]


@given(any_streams(), st.integers(0, 5))
def test_whatever_a_producer_sets_becomes_a_row_that_says_what_its_columns_cannot_hold(
    messages: list[FakeMessage], cut: int
) -> None:
    collected = columns()
    for part in (messages[:cut], messages[cut:]):
        if part:
            collected.extend(part)
    for row, message in zip(collected.take().to_pylist(), messages, strict=True):
        held = {
            "key": is_text(message.key),
            "properties": all(is_text(text) for pair in message.props.items() for text in pair),
            "publish_time": 0 < message.published <= LAST_MS,
            "event_time": message.happened <= LAST_MS,
            "value": not message.encrypted,
        }
        said = row["malformed"] or ""
        assert {name for name in held if name in said} == {name for name, good in held.items() if not good}
        assert (row["malformed"] is None) == all(held.values())
        assert all(row[name] is None for name in ("key", "properties", "publish_time", "event_time") if not held[name])
        assert row["value"] == (message.body or None)
        assert (row["message_id"], row["cluster"]) == (f"7:{message.id.entry_id()}:2", "hq")
