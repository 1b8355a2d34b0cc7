"""Sparkplug B and GTFS-realtime: from Protocol Buffers to plain values. Needs the extra `edge-protobuf`.

The descriptors are made from tables of the fields that a mapping can use; all other fields are skipped. Metrics and
entities are bytes to the outer message, so that they are counted before they cost memory, and judged one by one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Final, NamedTuple, NoReturn

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from edge_agent.mapping.formats import (
    Decoder,
    NotForMappings,
    TopicDecoder,
    Undecodable,
    UndecodableMessage,
)
from edge_agent.mapping.settings import SPARKPLUG_NAMESPACE
from waybill.record import MAX_ELEMENTS

MAX_PROTOBUF_BYTES: Final = 1 << 18
MAX_METRICS: Final = 2_000
MAX_NAME_BYTES: Final = 256
MAX_BIRTHS: Final = 256
"""Edge nodes and devices whose metrics are known."""
MAX_KNOWN_METRICS: Final = 10_000
"""Metrics of all births together. The oldest birth is forgotten for a new one."""

_SPARKPLUG: Final = {
    "Payload": "timestamp=1:uint64 metrics=2:bytes* seq=3:uint64 uuid=4:bytes",
    "Metric": (
        "name=1:bytes alias=2:uint64 timestamp=3:uint64 datatype=4:uint32 is_null=7:bool int_value=10:uint32 "
        "long_value=11:uint64 float_value=12:float double_value=13:double boolean_value=14:bool string_value=15:bytes"
    ),
}
_GTFS: Final = {
    "FeedMessage": "header=1:FeedHeader entity=2:bytes*",
    "FeedHeader": "gtfs_realtime_version=1:bytes timestamp=3:uint64",
    "FeedEntity": "id=1:bytes is_deleted=2:bool vehicle=4:VehiclePosition",
    "VehiclePosition": (
        "trip=1:TripDescriptor position=2:Position current_stop_sequence=3:uint32 current_status=4:int32 "
        "timestamp=5:uint64 stop_id=7:bytes vehicle=8:VehicleDescriptor"
    ),
    "Position": "latitude=1:float longitude=2:float bearing=3:float odometer=4:double speed=5:float",
    "TripDescriptor": "trip_id=1:bytes start_time=2:bytes start_date=3:bytes route_id=5:bytes direction_id=6:uint32",
    "VehicleDescriptor": "id=1:bytes label=2:bytes license_plate=3:bytes",
}
_STOP_STATUS: Final = ("INCOMING_AT", "STOPPED_AT", "IN_TRANSIT_TO")


def _message_classes(package: str, tables: Mapping[str, str]) -> dict[str, Any]:
    """Classes of messages from tables: `name=number:type`, where `*` repeats, and a type may be a message.

    Texts are bytes: that they are UTF-8 is checked here, with one reason for all implementations of the runtime.
    """
    field_proto = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name=f"{package}.proto", package=package, syntax="proto2")
    for name, fields in tables.items():
        message = file.message_type.add(name=name)
        for field in fields.split():
            member, _, rest = field.partition("=")
            number, _, kind = rest.partition(":")
            is_repeated, kind = kind.endswith("*"), kind.removesuffix("*")
            made = message.field.add(name=member, number=int(number))
            made.label = field_proto.LABEL_REPEATED if is_repeated else field_proto.LABEL_OPTIONAL
            if kind in tables:
                made.type, made.type_name = field_proto.TYPE_MESSAGE, f".{package}.{kind}"
            else:
                made.type = getattr(field_proto, f"TYPE_{kind.upper()}")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}")) for name in tables}


def _message(kind: Any, payload: bytes) -> Any:
    try:
        return kind.FromString(payload)
    except DecodeError as error:
        raise UndecodableMessage("protobuf") from error


def _outer_message(kind: Any, payload: bytes) -> Any:
    if len(payload) > MAX_PROTOBUF_BYTES:
        raise UndecodableMessage("too-large", f"{len(payload)} bytes, {MAX_PROTOBUF_BYTES} are allowed")
    return _message(kind, payload)


def _text(value: bytes) -> str:
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UndecodableMessage("utf-8") from error


def _finite(number: float) -> float | None:
    """NaN and infinity mean *unknown*, as in JSON."""
    return number if math.isfinite(number) else None


# GTFS-realtime.


def gtfs_decoder() -> Decoder:
    """A decoder of feeds: each entity is an element with `id`, `vehicle` and the feed's `header`."""
    classes = _message_classes("waybill.gtfs_realtime", _GTFS)

    def decode(payload: bytes) -> list[Any]:
        feed = _outer_message(classes["FeedMessage"], payload)
        if not feed.header.gtfs_realtime_version:
            raise UndecodableMessage("header", "the feed has no version")
        if len(feed.entity) > MAX_ELEMENTS:
            raise UndecodableMessage("too-many-values", f"{len(feed.entity)} entities")
        if not feed.entity:
            raise NotForMappings
        header = _plain(feed.header)
        return [_entity(classes["FeedEntity"], data, header) for data in feed.entity]

    return decode


def _entity(kind: Any, data: bytes, header: dict[str, Any]) -> Any:
    try:
        entity = _plain(_message(kind, data))
    except UndecodableMessage as error:
        return Undecodable(error.why, data, error.detail)
    vehicle = entity.get("vehicle", {})
    status = vehicle.get("current_status")
    if status is not None and 0 <= status < len(_STOP_STATUS):
        vehicle["current_status"] = _STOP_STATUS[status]
    return {**entity, "header": header}


def _plain(message: Any) -> dict[str, Any]:
    """The members that are in the message. Its depth is the depth of the tables."""
    members: dict[str, Any] = {}
    for field, value in message.ListFields():
        if isinstance(value, bytes):
            members[field.name] = _text(value)
        elif isinstance(value, float):
            members[field.name] = _finite(value)
        elif isinstance(value, int):
            members[field.name] = value
        else:
            members[field.name] = _plain(value)
    return members


# Sparkplug B.


class _Integer(NamedTuple):
    bits: int
    is_signed: bool


class _Other(NamedTuple):
    fields: tuple[str, ...]


_INTEGER_FIELDS: Final = ("int_value", "long_value")
_FLOATS: Final = _Other(("float_value", "double_value"))
_TEXTS: Final = _Other(("string_value",))
_DATATYPES: Final[dict[int, _Integer | _Other]] = {
    **{1 + place: _Integer(bits, is_signed=True) for place, bits in enumerate((8, 16, 32, 64))},
    **{5 + place: _Integer(bits, is_signed=False) for place, bits in enumerate((8, 16, 32, 64))},
    9: _FLOATS,
    10: _FLOATS,
    11: _Other(("boolean_value",)),
    12: _TEXTS,
    13: _Integer(64, is_signed=False),  # DateTime, in milliseconds
    14: _TEXTS,
    15: _TEXTS,
}
"""The data types that have a plain value; data sets, templates, files and arrays have none here."""
_VALUE_FIELDS: Final = (*_INTEGER_FIELDS, "float_value", "double_value", "boolean_value", "string_value")
_NO_VALUE: Final = object()
_LEVELS: Final = {"NBIRTH": 3, "NDATA": 3, "DBIRTH": 4, "DDATA": 4}
_COMPRESSED: Final = b"SPBV1.0_COMPRESSED"


class _Birth(NamedTuple):
    """What a birth says about the later messages of a node or device, which may leave it out."""

    names: dict[int, str]
    datatypes: dict[str, int]


_UNBORN: Final = _Birth({}, {})
Scope = tuple[str, ...]
"""What is before the namespace in the topic, the group, the edge node, and the device, if it is one's."""


def sparkplug_decoder() -> TopicDecoder:
    """A decoder of births and data. Metrics with the same time are an element: `timestamp`, `metrics` and `payload`.

    Names and data types that data messages leave out come from the last birth on the topic of the same node or device.
    """
    return TopicDecoder(SparkplugDecoder().at)


class SparkplugDecoder:
    """Keeps the last births; used by one thread."""

    def __init__(self) -> None:
        classes = _message_classes("waybill.sparkplug_b", _SPARKPLUG)
        self._payload, self._metric = classes["Payload"], classes["Metric"]
        self._births: dict[Scope, _Birth] = {}

    def at(self, topic: str) -> Decoder:
        """The decoder of messages of a topic: `…/spBv1.0/group/kind/node[/device]`."""
        prefix, _, rest = f"/{topic}".partition(f"/{SPARKPLUG_NAMESPACE}/")
        levels = rest.split("/")
        kind = levels[1] if len(levels) > 1 else ""
        # A command is no measurement, and a death has none.
        if len(levels) != _LEVELS.get(kind):
            return _skip
        decode: Callable[[Scope, bytes], Any] = self._birth if kind.endswith("BIRTH") else self._data
        return partial(decode, (prefix, levels[0], *levels[2:]))

    def _birth(self, scope: Scope, payload: bytes) -> Any:
        # Also of a birth that cannot be read: the aliases of the last one are no longer those of the device.
        self._forget(scope)
        outer = self._outer(payload)
        birth = _Birth({}, {})
        read = []
        for data in outer.metrics:
            metric = _message(self._metric, data)
            name = _name(metric.name)
            if metric.HasField("alias") and birth.names.setdefault(metric.alias, name) != name:
                raise UndecodableMessage("ambiguous", f"two metrics have the alias {metric.alias}", field="alias")
            if metric.datatype:
                birth.datatypes[name] = metric.datatype
            read.append((name, metric))
        elements = _elements(
            outer, ((name, metric, _value(metric, birth.datatypes.get(name))) for name, metric in read)
        )
        self._learn(scope, birth)
        return elements

    def _data(self, scope: Scope, payload: bytes) -> Any:
        outer = self._outer(payload)
        birth = self._births.get(scope, _UNBORN)

        def metrics() -> Iterator[tuple[str, Any, Any]]:
            for data in outer.metrics:
                metric = _message(self._metric, data)
                if metric.name:
                    name = _name(metric.name)
                elif (known := birth.names.get(metric.alias)) is not None and metric.HasField("alias"):
                    name = known
                else:
                    raise UndecodableMessage("unknown", f"no birth names the alias {metric.alias}", field="alias")
                yield name, metric, _value(metric, metric.datatype or birth.datatypes.get(name))

        return _elements(outer, metrics())

    def _outer(self, payload: bytes) -> Any:
        outer = _outer_message(self._payload, payload)
        if outer.uuid == _COMPRESSED:
            raise UndecodableMessage("compressed")
        if not outer.metrics and not outer.timestamp:
            raise UndecodableMessage("empty", "neither metrics nor a time")
        if len(outer.metrics) > MAX_METRICS:
            raise UndecodableMessage("too-many-values", f"{len(outer.metrics)} metrics, {MAX_METRICS} are allowed")
        return outer

    def _forget(self, scope: Scope) -> None:
        # A node that is born again has new aliases, also for its devices, whose births follow.
        for other in [one for one in self._births if one[: len(scope)] == scope]:
            del self._births[other]

    def _learn(self, scope: Scope, birth: _Birth) -> None:
        self._births[scope] = birth
        known = sum(len(one.names) + len(one.datatypes) for one in self._births.values())
        while len(self._births) > MAX_BIRTHS or known > 2 * MAX_KNOWN_METRICS:
            oldest = self._births.pop(next(iter(self._births)))
            known -= len(oldest.names) + len(oldest.datatypes)


def _skip(_payload: bytes) -> NoReturn:
    raise NotForMappings


def _name(name: bytes) -> str:
    if not name or len(name) > MAX_NAME_BYTES:
        raise UndecodableMessage("name", f"a metric's name has 1 to {MAX_NAME_BYTES} bytes")
    return _text(name)


def _elements(outer: Any, metrics: Iterator[tuple[str, Any, Any]]) -> Any:
    """One element for each time; a second value of a metric at the same time is in an element of its own."""
    sent = {name: getattr(outer, name) for name in ("timestamp", "seq") if outer.HasField(name)}
    elements: dict[tuple[int | None, int], dict[str, Any]] = {}
    seen: dict[tuple[int | None, str], int] = {}
    for name, metric, value in metrics:
        time = metric.timestamp if metric.HasField("timestamp") else None
        number = seen[time, name] = seen.get((time, name), -1) + 1
        element = elements.get((time, number))
        if element is None:
            head = {} if time is None else {"timestamp": time}
            element = elements[time, number] = {**head, "metrics": {}, "payload": sent}
        if value is not _NO_VALUE:
            element["metrics"][name] = value
    if len(elements) == 1:
        return next(iter(elements.values()))
    return list(elements.values()) or {"metrics": {}, "payload": sent}


def _value(metric: Any, datatype: int | None) -> Any:
    """The plain value of a metric; _NO_VALUE for a type that has none. Raises UndecodableMessage."""
    if metric.is_null:
        return None
    fields = [name for name in _VALUE_FIELDS if metric.HasField(name)]
    if not fields:
        return _NO_VALUE
    if len(fields) > 1:
        raise UndecodableMessage("value", f"a metric has {' and '.join(fields)}")
    (field,) = fields
    value = getattr(metric, field)
    if not datatype:
        if field in _INTEGER_FIELDS:
            # 4294967295 is also -1: only the data type tells.
            raise UndecodableMessage("unknown", "an integer without a data type", field="datatype")
    elif (kind := _DATATYPES.get(datatype)) is None:
        return _NO_VALUE
    elif field not in (_INTEGER_FIELDS if isinstance(kind, _Integer) else kind.fields):
        raise UndecodableMessage("value", f"data type {datatype} in {field}")
    elif isinstance(kind, _Integer):
        return _integer(value, kind)
    if isinstance(value, bytes):
        return _text(value)
    return _finite(value) if isinstance(value, float) else value


def _integer(number: int, kind: _Integer) -> int:
    """Senders write a negative number in two's complement of its own width, or of 32 or 64 bits."""
    bits, is_signed = kind
    if number < 1 << (bits - is_signed):
        return number
    if is_signed:
        for width in (bits, 32, 64):
            if number < 1 << width:
                if number >= (1 << width) - (1 << (bits - 1)):
                    return number - (1 << width)
                break
    raise UndecodableMessage("value", f"{number} has more than {bits} bits")
