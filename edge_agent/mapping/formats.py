"""From the bytes of a message to plain values: JSON, CSV and text here, other formats in modules of their own.

A decoder takes a payload and returns a value as JSON has it: dict, list, str, int, float, bool or None. A list at the
top gives several elements, each judged alone; an element that cannot be read is an `Undecodable` in that list. A
decoder raises UndecodableMessage if nothing can be read. It must be bounded and must not raise anything else.
"""

from __future__ import annotations

import csv
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from edge_agent.mapping.paths import parse_path
from waybill.record import MAX_ELEMENTS, InvalidJson, message_text, parse_message_json

if TYPE_CHECKING:
    from edge_agent.mapping.settings import MappingSettings

Decoder = Callable[[bytes], Any]


class TopicDecoder(NamedTuple):
    """A form whose messages cannot be read without their topic: `at` gives the decoder of a topic."""

    at: Callable[[str], Decoder]


class Undecodable(NamedTuple):
    """A part of a message that cannot be read. `why`: the last part of the reason `mapping:format:why`."""

    why: str
    payload: bytes
    detail: str = ""


class UndecodableMessage(Exception):
    """A message that cannot be read. `field`, `why`: the parts of the reason `mapping:field:why`."""

    def __init__(self, why: str, detail: str = "", field: str = "format") -> None:
        super().__init__(why)
        self.why, self.detail, self.field = why, detail, field


class NotForMappings(UndecodableMessage):
    """A message of a kind that no mapping reads, which is no fault."""

    def __init__(self) -> None:
        super().__init__("no-match", field="when")


def decoder_of(*mappings: MappingSettings) -> Decoder | TopicDecoder:
    """The decoder of mappings that have the same form. Raises ValueError if a file that it needs is missing."""
    settings = mappings[0]
    match settings.format:
        case "json":
            return decode_json
        case "csv":
            assert settings.csv is not None
            return csv_decoder(settings.csv.columns, settings.csv.delimiter)
        case "text":
            return decode_text
        case "nmea":
            from edge_agent.mapping.nmea import decode_nmea  # noqa: PLC0415 - few receivers speak it

            return decode_nmea
        case "sparkplug-b" | "gtfs-realtime":
            from edge_agent.mapping.protobuf_formats import gtfs_decoder, sparkplug_decoder  # noqa: PLC0415 - an extra

            return sparkplug_decoder() if settings.format == "sparkplug-b" else gtfs_decoder()
        case "can":
            assert settings.can is not None
            steps = (parse_path(at.path).steps for one in mappings for _, at in one.readers() if at.path is not None)
            return settings.can.database.decoder({str(step[0]) for step in steps} - {"frame"})


def decode_json(payload: bytes) -> Any:
    """Strict JSON with the same tolerance as the vehicle's contract: NaN is null, padding and byte order mark go."""
    try:
        return parse_message_json(payload)
    except InvalidJson as error:
        raise UndecodableMessage("json" if error.reason in {"not-json", "not-utf-8"} else error.reason) from error


def decode_text(payload: bytes) -> str:
    """The text of a message without padding."""
    try:
        return message_text(payload).decode("utf-8")
    except UnicodeDecodeError as error:
        raise UndecodableMessage("utf-8") from error


def csv_decoder(columns: tuple[str, ...], delimiter: str) -> Decoder:
    """A decoder of lines: each becomes an object with a member for each column.

    An empty field is null. A line with another number of fields than columns is Undecodable.
    """

    def decode(payload: bytes) -> list[Any]:
        lines = decode_text(payload).splitlines()
        if len(lines) > MAX_ELEMENTS:
            raise UndecodableMessage("too-many-values")
        try:
            rows = [row for row in csv.reader(lines, delimiter=delimiter) if row]
        except csv.Error as error:
            raise UndecodableMessage("csv", str(error)) from error
        return [_named(row, columns, delimiter) for row in rows]

    return decode


def _named(row: list[str], columns: tuple[str, ...], delimiter: str) -> Any:
    fields = [field.strip() or None for field in row]
    if len(fields) != len(columns):
        about = f"{len(fields)} fields, {len(columns)} columns"
        return Undecodable("columns", delimiter.join(row).encode(), about)
    return dict(zip(columns, fields, strict=True))
