"""What is recognised, its reader takes; and ordinary batches are recognised, or it would be of no use."""

from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.strategies import batches
from waybill.record import Batch, Canary, Event, Position, Raw, Record, Signal
from waybill.record.content import pack_records
from waybill.record.errors import WireError
from waybill.record.layout import read_content
from waybill.record.record import Body
from waybill.record.wire import is_surely_readable

ODD: list[Any] = [
    None,
    True,
    False,
    -1,
    0,
    1,
    2,
    5.0,
    1 << 62,
    -(1 << 63),
    "",
    "t",
    "\x00",
    b"",
    b"\0",
    [],
    {},
    [0, 0, b""],
]


def packed(content: Any) -> bytes:
    data: bytes = msgpack.packb(content)
    return data


def is_read(data: bytes, count: int) -> bool:
    try:
        read_content(data, count)
    except WireError:
        return False
    return True


def spoil(node: Any, draw: Any) -> Any:
    """The same tree with one odd value somewhere: put in, put instead, or taken out."""
    if isinstance(node, dict):
        members = [list(pair) for pair in node.items()]
        at = draw(st.integers(0, len(members) - 1))
        members[at][1] = spoil(members[at][1], draw)
        return dict(map(tuple, members))
    if isinstance(node, list) and node and draw(st.booleans()):
        at = draw(st.integers(0, len(node) - 1))
        return [*node[:at], spoil(node[at], draw), *node[at + 1 :]]
    if isinstance(node, list) and draw(st.booleans()):
        return node[:-1] if node and draw(st.booleans()) else [*node, draw(st.sampled_from(ODD))]
    if isinstance(node, int) and draw(st.booleans()):
        return node + draw(st.sampled_from([-1, 1, 1 << 20]))
    if isinstance(node, bytes) and draw(st.booleans()):
        return node[:-1] if draw(st.booleans()) else node + b"\x7f"
    return draw(st.sampled_from(ODD))


@given(batches(), st.data())
def test_what_is_recognised_is_read(batch: Batch, data: st.DataObject) -> None:
    count = len(batch.records)
    if not count:
        return
    content = spoil(pack_records(batch.records), data.draw)
    for number in (count, count + 1):
        if is_surely_readable(packed(content), number):
            assert is_read(packed(content), number)


def content_of(bodies: list[Body]) -> bytes:
    return packed(pack_records([Record(seq, seq * 1_000_003, body, boot="b") for seq, body in enumerate(bodies, 1)]))


POSITION = Position(latitude=53.5, longitude=10.0, altitude_m=12.5, speed_mps=None, heading_deg=10.0, accuracy_m=3.0)


@pytest.mark.parametrize(
    "bodies",
    [
        [POSITION, POSITION],
        [Signal(path="a", value=1.5), Signal(path="b", value=0.1 + 0.2), Signal(path="a", value="x")],
        [Event(name="a"), Event(name="b")],
        [Canary(id="a")],
        [Raw(topic="a", payload=b"1"), Raw(topic="b", payload=b"")],
        [POSITION, Signal(path="a", value=True), Event(name="a"), Canary(id="c"), Raw(topic="a", payload=b"1")],
    ],
)
def test_a_batch_of_each_kind_is_recognised_and_only_with_its_number_of_records(bodies: list[Body]) -> None:
    data = content_of(bodies)
    assert is_surely_readable(data, len(bodies))
    assert not is_surely_readable(data, len(bodies) + 1)
    assert not is_surely_readable(data + b"\0", len(bodies))
