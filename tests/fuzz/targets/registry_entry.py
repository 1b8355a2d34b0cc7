"""Messages of the device registry: the key, a line end, and the body; their publication id is right."""

from __future__ import annotations

from collections.abc import Iterable

from tests.cloud_jobs.publications import AT, publication_id
from tests.fuzz.bounds import check_refusal
from waybill.identity.names import MAX_VERSION
from waybill.identity.publication_id import PROPERTY
from waybill.identity.registry import Claim, DeviceChange, DeviceEntry, expect, resume, revoke, suspend
from waybill.identity.registry_messages import EntryRefused, entry_body, read_entry

CHANGE = DeviceChange(AT, "anna", "why")
PROPERTIES = {PROPERTY: publication_id(5)}


def seeds() -> Iterable[bytes]:
    """Entries of several states, and such as are of another name, of other types, or deep."""
    claim = Claim(id="serial-1", until=AT)
    entry = expect("acme", "bus-1", region="eu", claim=claim, change=CHANGE)
    for one in (entry, suspend(entry, CHANGE), revoke(entry, CHANGE)):
        yield f"{one.name}\n".encode() + entry_body(one)
    yield b"acme/bus-2\n" + entry_body(entry)
    yield b"acme/bus-1\n" + b'{"certificates": [' + b"{}, " * 190 + b"{}]}"
    yield b"acme/bus-1\n" + b"[" * 9000
    yield b"acme/bus-1\n" + entry_body(entry).replace(b'"version":1', b'"version":9223372036854775807')
    yield b"acme/bus-1\n" + entry_body(entry).replace(AT.isoformat()[:4].encode(), b"0001")


def judge(data: bytes) -> None:
    """An entry is of the name of its key, and is written and read again as it was; or it is EntryRefused."""
    key, _, body = data.partition(b"\n")
    try:
        entry = read(key.decode("utf-8", "replace"), body)
    except EntryRefused as error:
        check_refusal(error)
        return
    assert read(entry.name, entry_body(entry)) == entry
    if entry.may_connect and entry.version < MAX_VERSION - 1:
        assert resume(suspend(entry, CHANGE), CHANGE).name == entry.name


def read(key: str, body: bytes) -> DeviceEntry:
    return read_entry(key, body, PROPERTIES, AT.timestamp() * 1000).entry
