"""What is read of Pulsar's own protocol: right where it is right, a ValueError where it is anything else."""

from contextlib import suppress
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloud_jobs.pulsar_source.entry_store import (
    EntryStream,
    decode,
    encode,
    entry_metadata,
    frame,
    numbers,
)
from tests.cloud_jobs.pulsar_source.raw import fields_of, message
from tests.fuzz.targets.broker_frames import CLUSTER, LAST, BrokerConnection

FIELDS = st.dictionaries(st.integers(1, 200), st.one_of(st.integers(0, 2**64 - 1), st.binary(max_size=300)))


@given(fields=FIELDS)
def test_fields_are_read_as_they_were_written_and_as_others_write_them(fields: dict[int, int | bytes]) -> None:
    assert decode(encode(fields)) == fields
    assert encode(fields) == message(list(fields.items()))
    assert fields_of(encode(fields)) == fields


@given(data=st.binary(max_size=200))
def test_any_bytes_are_fields_or_a_value_error(data: bytes) -> None:
    with suppress(ValueError):
        entry_metadata(data)
    with suppress(ValueError):
        numbers(decode(data), 1, 2)


@pytest.mark.parametrize("data", [b"\x08", b"\x0a\x05ab", b"\x80" * 11, b"\x0b", b"\x09abc"])
def test_what_breaks_off_or_is_no_protobuf_is_a_value_error(data: bytes) -> None:
    with pytest.raises(ValueError, match="at byte"):
        decode(data)


def test_an_entry_that_announces_more_metadata_than_a_message_may_have_is_refused_before_it_is_read() -> None:
    length = 100 << 20
    command = frame(9, {1: 1})[8:]
    start = (4 + len(command) + 4 + length).to_bytes(4) + len(command).to_bytes(4) + command + length.to_bytes(4)
    stream = EntryStream(cast("Any", BrokerConnection(start)), CLUSTER, "persistent://a/b/c")
    with pytest.raises(ValueError, match="bytes of metadata in an entry"):
        list(stream.receive_entries(LAST))
