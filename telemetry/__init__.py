"""The record on the wire: ids, kinds, batches, sets of record ids, MQTT topics. Pure: no I/O, no clock, no numpy.

`telemetry.columns` decodes batches into numpy columns for a centre and is not imported here.
"""

from telemetry.ack import Ack, decode_ack, encode_ack, split_ack
from telemetry.bodies import MAX_RAW_BYTES, Body, Canary, Event, Kind, Position, Raw, Signal
from telemetry.errors import (
    ChecksumMismatch,
    InconsistentRanges,
    InvalidJson,
    Malformed,
    NotABatch,
    RefusalReason,
    TelemetryError,
    TooLarge,
    Truncated,
    UnknownVersion,
    WireError,
)
from telemetry.intervals import IntervalSet
from telemetry.layout import MAX_CONTENT_BYTES
from telemetry.mqtt_topics import (
    VEHICLE_CANARY,
    VEHICLE_EVENT,
    VEHICLE_FILTER,
    VEHICLE_POSITION,
    VEHICLE_SIGNAL,
    DeviceChannel,
    DeviceTopic,
    device_filter,
    device_topic,
    parse_device_topic,
    shared_filter,
    vehicle_topic,
)
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
from telemetry.wire import MAX_RECORDS, decode, encode, read_header, validate, with_statement

__all__ = [
    "DEVICE_PATTERN",
    "MAX_CONTENT_BYTES",
    "MAX_DEVICE_TIME_US",
    "MAX_RAW_BYTES",
    "MAX_RECORDS",
    "MAX_UNCERTAINTY_MS",
    "VEHICLE_CANARY",
    "VEHICLE_EVENT",
    "VEHICLE_FILTER",
    "VEHICLE_POSITION",
    "VEHICLE_SIGNAL",
    "Ack",
    "Batch",
    "Body",
    "Canary",
    "ChecksumMismatch",
    "DeviceChannel",
    "DeviceTopic",
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
    "RefusalReason",
    "Signal",
    "TelemetryError",
    "Tombstone",
    "TooLarge",
    "Truncated",
    "UnknownVersion",
    "WireError",
    "decode",
    "decode_ack",
    "device_filter",
    "device_topic",
    "encode",
    "encode_ack",
    "new_epoch",
    "parse_device_topic",
    "parse_json",
    "read_header",
    "shared_filter",
    "split_ack",
    "validate",
    "vehicle_topic",
    "with_statement",
]
