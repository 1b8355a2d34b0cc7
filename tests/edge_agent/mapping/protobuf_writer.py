"""Writes messages of Protocol Buffers from the published field numbers, without the library that reads them."""

import struct
from collections.abc import Iterator
from typing import Any

Fields = dict[str, tuple[int, Any]]
"""The number of each member, and its kind: varint, float, double, text, or the fields of a message."""

SPARKPLUG: Fields = {
    "timestamp": (1, "varint"),
    "metrics": (
        2,
        {
            "name": (1, "text"),
            "alias": (2, "varint"),
            "timestamp": (3, "varint"),
            "datatype": (4, "varint"),
            "is_historical": (5, "varint"),
            "is_null": (7, "varint"),
            "int_value": (10, "varint"),
            "long_value": (11, "varint"),
            "float_value": (12, "float"),
            "double_value": (13, "double"),
            "boolean_value": (14, "varint"),
            "string_value": (15, "text"),
            "bytes_value": (16, "text"),
        },
    ),
    "seq": (3, "varint"),
    "uuid": (4, "text"),
}
GTFS: Fields = {
    "header": (1, {"gtfs_realtime_version": (1, "text"), "incrementality": (2, "varint"), "timestamp": (3, "varint")}),
    "entity": (
        2,
        {
            "id": (1, "text"),
            "is_deleted": (2, "varint"),
            "trip_update": (3, {"trip": (1, {"trip_id": (1, "text")})}),
            "vehicle": (
                4,
                {
                    "trip": (1, {"trip_id": (1, "text"), "start_date": (3, "text"), "route_id": (5, "text")}),
                    "position": (
                        2,
                        {
                            "latitude": (1, "float"),
                            "longitude": (2, "float"),
                            "bearing": (3, "float"),
                            "odometer": (4, "double"),
                            "speed": (5, "float"),
                        },
                    ),
                    "current_status": (4, "varint"),
                    "timestamp": (5, "varint"),
                    "stop_id": (7, "text"),
                    "vehicle": (8, {"id": (1, "text"), "label": (2, "text")}),
                    "occupancy_status": (9, "varint"),
                },
            ),
        },
    ),
}
FORMATS = {"sparkplug-b": SPARKPLUG, "gtfs-realtime": GTFS}


def encode(message: dict[str, Any], fields: Fields) -> bytes:
    return b"".join(_members(message, fields))


def _members(message: dict[str, Any], fields: Fields) -> Iterator[bytes]:
    for name, values in message.items():
        number, kind = fields[name]
        for value in values if isinstance(values, list) else [values]:
            if kind == "varint":
                yield _varint(number << 3) + _varint(int(value))
            elif kind == "float":
                yield _varint(number << 3 | 5) + struct.pack("<f", value)
            elif kind == "double":
                yield _varint(number << 3 | 1) + struct.pack("<d", value)
            else:
                data = encode(value, kind) if isinstance(value, dict) else str(value).encode()
                yield _varint(number << 3 | 2) + _varint(len(data)) + data


def _varint(number: int) -> bytes:
    data = bytearray()
    while number > 127:
        data.append(number & 127 | 128)
        number >>= 7
    return bytes([*data, number])
