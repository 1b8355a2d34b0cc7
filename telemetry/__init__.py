"""The record on the wire: its id, its kinds, batches and sets of record ids. Pure: no I/O, no clock, no numpy.

`telemetry.columns` decodes batches into numpy columns for a centre and is not imported here.
"""

from telemetry.ack import Ack, decode_ack, encode_ack, split_ack
from telemetry.bodies import MAX_RAW_BYTES, Body, Canary, Event, Kind, Position, Raw, Signal
from telemetry.content import CONTENT_FRAME_BYTES, content_bound
from telemetry.errors import (
    ChecksumMismatch,
    InconsistentRanges,
    InvalidJson,
    Malformed,
    NotABatch,
    TelemetryError,
    TooLarge,
    Truncated,
    UnknownVersion,
    WireError,
)
from telemetry.intervals import IntervalSet
from telemetry.layout import MAX_CONTENT_BYTES
from telemetry.record import (
    DEVICE_PATTERN,
    MAX_DEVICE_TIME_US,
    MAX_UNCERTAINTY_MS,
    Batch,
    Header,
    Record,
    Tombstone,
    new_epoch,
)
from telemetry.strict_json import parse_json
from telemetry.wire import MAX_RECORDS, decode, encode, read_header, validate

__all__ = [
    "CONTENT_FRAME_BYTES",
    "DEVICE_PATTERN",
    "MAX_CONTENT_BYTES",
    "MAX_DEVICE_TIME_US",
    "MAX_RAW_BYTES",
    "MAX_RECORDS",
    "MAX_UNCERTAINTY_MS",
    "Ack",
    "Batch",
    "Body",
    "Canary",
    "ChecksumMismatch",
    "Event",
    "Header",
    "InconsistentRanges",
    "IntervalSet",
    "InvalidJson",
    "Kind",
    "Malformed",
    "NotABatch",
    "Position",
    "Raw",
    "Record",
    "Signal",
    "TelemetryError",
    "Tombstone",
    "TooLarge",
    "Truncated",
    "UnknownVersion",
    "WireError",
    "content_bound",
    "decode",
    "decode_ack",
    "encode",
    "encode_ack",
    "new_epoch",
    "parse_json",
    "read_header",
    "split_ack",
    "validate",
]
