"""What is read of Pulsar's own protocol: right where it is right, a ValueError where it is anything else."""

from contextlib import suppress
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloud_jobs.pulsar_source.entry_store import (
    EntryStream,
    decode,
    entry_metadata,
    frame,
    numbers,
)
from tests.fuzz.targets.pulsar import CLUSTER, LAST, BrokerConnection


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
