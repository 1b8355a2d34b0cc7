"""From the bytes of a message to plain values: JSON, CSV, text and NMEA 0183.

A decoder takes a payload and returns a value as JSON has it: dict, list, str, int, float, bool or None. A list at the
top gives several elements, each judged alone; an element that cannot be read is an `Undecodable` in that list. A
decoder raises UndecodableMessage if nothing can be read. It must be bounded and must not raise anything else.
"""

from __future__ import annotations

import csv
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from waybill.record import MAX_RAW_BYTES, InvalidJson, parse_json

if TYPE_CHECKING:
    from edge_agent.mapping.settings import MappingSettings

MAX_DEPTH: Final = 32
MAX_VALUES: Final = 10_000
MAX_ELEMENTS: Final = 1_000
"""Limits of a message; a larger one is carried raw as a whole."""
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
_PADDING: Final = b"\0 \t\r\n"

Decoder = Callable[[bytes], Any]


class Undecodable(NamedTuple):
    """A part of a message that cannot be read. `why`: the last part of the reason `mapping:format:why`."""

    why: str
    payload: bytes
    detail: str = ""


class UndecodableMessage(Exception):
    """A message that cannot be read. `why`: the last part of the reason `mapping:format:why`."""

    def __init__(self, why: str, detail: str = "") -> None:
        super().__init__(why)
        self.why, self.detail = why, detail


def decoder_of(settings: MappingSettings) -> Decoder:
    """The decoder of a mapping."""
    match settings.format:
        case "json":
            return decode_json
        case "csv":
            return csv_decoder(settings.csv.columns, settings.csv.delimiter)
        case "text":
            return decode_text
        case "nmea":
            from edge_agent.mapping.nmea import decode_nmea  # noqa: PLC0415 - few receivers speak it

            return decode_nmea


def decode_json(payload: bytes) -> Any:
    """Strict JSON with the same tolerance as the vehicle's contract: NaN is null, padding and byte order mark go."""
    text = payload.removeprefix(_BYTE_ORDER_MARK).rstrip(_PADDING)
    try:
        return parse_json(text, max_bytes=MAX_RAW_BYTES, max_depth=MAX_DEPTH, max_values=MAX_VALUES, nan_is_null=True)
    except InvalidJson as error:
        raise UndecodableMessage("json" if error.reason in {"not-json", "not-utf-8"} else error.reason) from error


def decode_text(payload: bytes) -> str:
    """The text of a message without padding."""
    try:
        return payload.removeprefix(_BYTE_ORDER_MARK).strip(_PADDING).decode("utf-8")
    except UnicodeDecodeError as error:
        raise UndecodableMessage("utf-8") from error


def csv_decoder(columns: tuple[str, ...], delimiter: str) -> Decoder:
    """A decoder of lines: each becomes an object with a member for each column, or an array without `columns`.

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
    if not columns:
        return fields
    if len(fields) != len(columns):
        about = f"{len(fields)} fields, {len(columns)} columns"
        return Undecodable("columns", delimiter.join(row).encode(), about)
    return dict(zip(columns, fields, strict=True))
