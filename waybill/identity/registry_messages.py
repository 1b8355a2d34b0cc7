"""Entries of the device registry as messages of its topic: key, body and properties. Pure.

The key of a message is the name of its device, so that compaction keeps the last one of each. An entry is taken only
from a message that is one in every point: what is none is refused, counted and named, and changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Final, NamedTuple

from pydantic import ValidationError

from waybill.identity.errors import IdentityError, SignatureFault, SignatureRefused
from waybill.identity.precedence import Precedence, precedence
from waybill.identity.publication_id import MAX_AHEAD_MS, PROPERTY, drawn_at, is_far_ahead, is_publication_id
from waybill.identity.registry import DeviceEntry, first_fault
from waybill.identity.signatures import REASON, SIGNATURE, SIGNER
from waybill.record import InvalidJson, parse_json

__all__ = [
    "AHEAD",
    "ARGUABLE",
    "ENTRY_PROPERTIES",
    "KIND",
    "MAX_ENTRY_BYTES",
    "MAX_WARRANT_CHARACTERS",
    "NO_ENTRY",
    "NO_ROOM",
    "OTHER_TENANT",
    "WARRANT",
    "CheckSigned",
    "DevicePublication",
    "EntryRefused",
    "devices_topic",
    "entry_body",
    "read_entry",
    "tenant_of",
]

KIND: Final = "device"
"""What its signatures name it, and in which orders of publications it stands."""
# the longest names and reasons fit twice
MAX_ENTRY_BYTES: Final = 16 << 10
# an entry is a table of tables
_MAX_DEPTH: Final = 4
_MAX_VALUES: Final = 200
_SHOWN_CHARACTERS: Final = 100

WARRANT: Final = "warrant"
"""Under which property a message carries an operator's warrant."""
MAX_WARRANT_CHARACTERS: Final = 250

ENTRY_PROPERTIES: Final = frozenset({PROPERTY, REASON, SIGNATURE, SIGNER, WARRANT})
"""What a message of an entry carries beside its body; nobody signs any other."""

NO_ENTRY: Final = "no-entry"
"""The word for a message that is refused before anybody asks who signed it."""

AHEAD: Final = "ahead"
"""The word for what is dated more than five minutes ahead of whoever reads it: its publisher's clock is wrong."""

ARGUABLE: Final = frozenset({AHEAD, SignatureFault.UNKNOWN_KEY, SignatureFault.NOT_VALID_THEN, SignatureFault.NO_RIGHT})
"""The words for what another reader may take, which has other keys or another clock."""

NO_ROOM: Final = "no-room"
"""The word for an entry that is right, of a device that whoever reads it has no room for."""

OTHER_TENANT: Final = "other-tenant"
"""The word for an entry of a device in the topic of another tenant: who may write there has no say in it."""

CheckSigned = Callable[["DevicePublication", bytes, Mapping[str, str]], None]
"""Raises IdentityError for a publication, its body and its properties that are not signed by who may publish it."""


class EntryRefused(IdentityError):
    """A message of the registry that is no entry; `key` is what it calls itself.

    `reason`: `no-entry`, `ahead`, `no-room`, `other-tenant`, or the word of what is wrong with its signature
    (`SignatureFault`).
    """

    def __init__(self, key: str, why: str, reason: str = NO_ENTRY) -> None:
        shown = key if len(key) <= _SHOWN_CHARACTERS else f"{key[:_SHOWN_CHARACTERS]}..."
        is_not = "not taken" if reason == NO_ROOM else "no entry"
        super().__init__(f"the registry's message {shown!r} is {is_not}: {why}")
        self.key, self.reason = key, reason


class DevicePublication(NamedTuple):
    """An entry, and the id under which it was published.

    `signer`: the id of the key whose signature was found to be right; "" where none was looked at. Who *changed* the
    entry is what the entry says; `device sign` publishes it under another key as it is.
    `warrant`: the operator's word on which an access daemon enrols and renews the device, see `registry_signing`.
    """

    entry: DeviceEntry
    publication_id: str
    signer: str = ""
    warrant: str = ""

    @property
    def precedence(self) -> Precedence:
        """Its rank among the publications of its device."""
        return precedence(self.entry, self.publication_id)


def devices_topic(tenant: str) -> str:
    """The registry of one tenant's devices: a compacted topic in every cluster, to which no other tenant may write."""
    return f"persistent://{tenant}/registry/devices"


def tenant_of(name: str) -> str:
    """The tenant of `tenant/device`."""
    return name.partition("/")[0]


def entry_body(entry: DeviceEntry) -> bytes:
    """The body of the message that publishes an entry; its key is the entry's name."""
    body = entry.model_dump_json(exclude_none=True).encode()
    assert len(body) <= MAX_ENTRY_BYTES, entry.name
    return body


def read_entry(
    key: str | None,
    body: bytes,
    properties: Mapping[str, str],
    now_ms: float,
    check_signed: CheckSigned | None = None,
) -> DevicePublication:
    """What a message says, read at a moment (milliseconds since 1970). Raises EntryRefused, and nothing else."""
    key = key or ""
    # Before the body: what has no place in the order of publications is not worth reading.
    publication_id = properties.get(PROPERTY, "")
    if not is_publication_id(publication_id):
        raise EntryRefused(key, f"its property {PROPERTY} is to be a UUID of version 7")
    # By our own clock: that of the message is its publisher's, which is the one in doubt.
    if is_far_ahead(publication_id, now_ms):
        raise EntryRefused(key, f"it is dated {drawn_at(publication_id):%Y-%m-%d %H:%M} UTC", AHEAD)
    try:
        facts = parse_json(body, max_bytes=MAX_ENTRY_BYTES, max_depth=_MAX_DEPTH, max_values=_MAX_VALUES)
        entry = DeviceEntry.model_validate(facts)
    except InvalidJson as error:
        raise EntryRefused(key, str(error)) from error
    except ValidationError as error:
        raise EntryRefused(key, first_fault(error)) from error
    # Compaction goes by the key, everybody else by the body.
    if entry.name != key:
        raise EntryRefused(key, f"its body is of {entry.name}")
    if entry.changed_at > drawn_at(publication_id) + timedelta(milliseconds=MAX_AHEAD_MS):
        raise EntryRefused(key, "its change is later than its publication", AHEAD)
    # Last: a signature costs more than all the rest, and garbage needs none.
    signer = "" if check_signed is None else properties.get(SIGNER, "")
    found = DevicePublication(entry, publication_id, signer, properties.get(WARRANT, "")[:MAX_WARRANT_CHARACTERS])
    try:
        if check_signed is not None:
            check_signed(found, body, properties)
    except SignatureRefused as error:
        raise EntryRefused(key, str(error), error.fault) from error
    except IdentityError as error:
        raise EntryRefused(key, str(error)) from error
    return found
