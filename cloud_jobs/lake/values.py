"""Values of columns: dictionary codes, content bytes, vehicle counters, and the digest of a usage row. Pure.

Vehicle counters are JSON: `dropped`, one number for each quarter of the hour, and `odometer_m`, the lowest and highest
reading of each quarter or null; "" if there is neither.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from cloud_jobs.lake.schemas import QUARTERS
from geo.reference.moments import stamp
from geo.spatial.ragged import Ints, distinct, run_starts
from waybill.record import RESERVED_PREFIX

# Dictionary encoding of a text column.


def encoded(column: pa.ChunkedArray) -> pa.DictionaryArray:
    """A column as one dictionary array; a text may be in it twice."""
    found = column.combine_chunks()
    found = found.chunk(0) if isinstance(found, pa.ChunkedArray) else found
    return found if pa.types.is_dictionary(found.type) else found.dictionary_encode()


# Metered content of a record: customer events and bytes.

RECORD_BYTES: Final = 16
"""The bytes that every record counts at least."""
NUMBER_BYTES: Final = 8
NUMBERS: Final = ("latitude", "longitude", "altitude_m", "speed_mps", "heading_deg", "accuracy_m", "number")
TEXTS: Final = ("name", "text", "payload")
"""The columns of the records table that count, by type."""


def content_bytes(columns: Mapping[str, pa.Array | pa.ChunkedArray]) -> pa.Array:
    """The billed bytes (int32) of each record; a null counts nothing."""
    found = np.full(len(columns[NUMBERS[0]]), RECORD_BYTES, np.int32)
    for name in NUMBERS:
        column = columns[name]
        if column.null_count == 0:
            found += NUMBER_BYTES
        elif column.null_count < len(column):
            found += NUMBER_BYTES * np.asarray(pc.is_valid(column).cast(pa.int8())).astype(np.int32)
    for name in TEXTS:
        column = columns[name]
        if column.null_count < len(column):
            found += np.asarray(pc.fill_null(pc.binary_length(column), 0)).astype(np.int32)
    is_raw = _is_of(columns, "raw")
    if is_raw.any():
        reasons = pc.fill_null(pc.binary_length(columns["text"]), 0)
        found[is_raw] -= np.asarray(reasons).astype(np.int32)[is_raw]
    found[_is_of(columns, "event") & _is_reserved(columns)] = 0
    return pa.array(found)


def is_customer_event(columns: Mapping[str, pa.Array | pa.ChunkedArray] | pa.Table) -> NDArray[np.bool_]:
    """Which records count as events, by the columns `kind` and `name`."""
    found: NDArray[np.bool_] = _is_of(columns, "event") & ~_is_reserved(columns)
    return found


def _is_of(columns: Mapping[str, pa.Array | pa.ChunkedArray] | pa.Table, kind: str) -> NDArray[np.bool_]:
    return np.asarray(pc.equal(columns["kind"].cast(pa.string()), kind), np.bool_)


def _is_reserved(columns: Mapping[str, pa.Array | pa.ChunkedArray] | pa.Table) -> NDArray[np.bool_]:
    return np.asarray(pc.fill_null(pc.starts_with(columns["name"], RESERVED_PREFIX), False), np.bool_)


ODOMETER: Final = "Vehicle.TraveledDistance"
"""The signal of the total distance of a vehicle, in kilometres."""
NO_READING: Final = 0
"""Vehicles send 0 while the reading is unknown."""
_KILOMETRES: Final = re.compile(r"\s*([0-9]{1,9}(?:\.[0-9]{0,9})?)\s*(?:km)?\s*")
_MOST_KM: Final = 1e7  # no vehicle drives so far; the mark of J1939 for *not available* is beyond
_MOST_DROPPED: Final = 10**12
_MM_IN_KM: Final = 1_000_000


def odometer_m(number: float | None, text: str | None) -> int:
    """An odometer reading in metres, from a number or a text such as `"48211.7 km"`."""
    found = _KILOMETRES.fullmatch(text or "") if number is None else None
    km = float(found[1]) if found else number
    return round(km * 1000) if km is not None and 0 < km < _MOST_KM else NO_READING


def dropped_messages(attributes: str | None) -> int:
    """The number of messages in an agent's event that the vehicle's broker dropped; 0 if unreadable."""
    try:
        count = json.loads(attributes or "")["messages"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return 0
    return count if type(count) is int and 0 < count < _MOST_DROPPED else 0


def counters_texts(
    before: Sequence[str], slot: NDArray[np.int64], is_odometer: NDArray[np.bool_], value: NDArray[np.int64]
) -> list[str]:
    """The counters of rows with new values added. `slot`: row and quarter of each value."""
    texts, there = [*before], np.flatnonzero(value != 0)
    slot, is_odometer, value = slot[there], is_odometer[there], value[there]
    if not len(there):
        return texts
    order = np.lexsort((value, is_odometer, slot))
    slots, kinds, values = slot[order], is_odometer[order], value[order]
    first = np.flatnonzero(np.r_[True, (slots[1:] != slots[:-1]) | (kinds[1:] != kinds[:-1])])
    last = np.append(first[1:], len(values)) - 1
    columns = slots[first], kinds[first], values[first], values[last], np.add.reduceat(values, first)
    found: dict[int, dict[str, Any]] = {}
    for at, is_reading, low, high, count in zip(*(one.tolist() for one in columns), strict=True):
        row, quarter = divmod(at, QUARTERS)
        of = found.setdefault(row, json.loads(texts[row] or "{}"))
        if is_reading:
            of.setdefault("odometer_m", [None] * QUARTERS)
            known = of["odometer_m"][quarter] or (low, high)
            of["odometer_m"][quarter] = [min(low, known[0]), max(high, known[1])]
        else:
            of.setdefault("dropped", [0] * QUARTERS)[quarter] += count
    for row, of in found.items():
        texts[row] = json.dumps(of, sort_keys=True, separators=(",", ":"))
    return texts


class OdometerWay(NamedTuple):
    """The distance by the odometer from the first to the last reading, and what was metered in the same time.

    `least_mm`: in the quarters between those of the two readings; `most_mm`: including them. `start`, `end`: of these
    quarters.
    """

    start: datetime
    end: datetime
    driven_m: int
    least_mm: int
    most_mm: int

    @property
    def percent(self) -> tuple[float, float] | None:
        """By how much the metered distance exceeds the driven one, at least and at most; None: it did not drive."""
        if not self.driven_m:
            return None
        least, most = (round(mm / (10 * self.driven_m) - 100, 2) for mm in (self.least_mm, self.most_mm))
        return least, most

    def document(self) -> dict[str, Any]:
        return {**self._asdict(), "start": stamp(self.start), "end": stamp(self.end), "percent": self.percent}

    def __str__(self) -> str:
        least, most = (f"{mm / _MM_IN_KM:,.1f}" for mm in (self.least_mm, self.most_mm))
        share = f", {self.percent[0]:+.1f} % to {self.percent[1]:+.1f} %" if self.percent else ""
        return f"{least} km to {most} km are metered of {self.driven_m / 1000:,.1f} km by its odometer{share}"


HOUR_S: Final = 3600


NO_RECORDS: Final = "{}"
"""The seq ranges of a row of zeros."""


def row_digest(
    names: tuple[str, str],
    hour: int,
    zone: str,
    quantities: Iterable[Sequence[int]],
    rests_on: tuple[str, str, int],
    *,
    observed: Iterable[Sequence[int] | None] = (),
    unreadable: str | None = None,
    counters: str | None = None,
) -> str:
    """The digest of a usage row. `names`: tenant and device; `hour`: since 1970.

    `quantities`: the quarters of each in the order of QUANTITIES; `rests_on`: seq ranges, fence version and engine
    version; `observed`: the quarters of OBSERVED.
    """
    amounts = "\n".join(",".join(map(str, quarters)) for quarters in quantities)
    lines = [*names, str(hour * HOUR_S), zone, amounts, *map(str, rests_on)]
    found = [quarters or () for quarters in observed]
    if unreadable or any(map(any, found)):
        lines += [*(",".join(map(str, quarters)) for quarters in found), unreadable or ""]
    if counters:
        lines.append(counters)
    return hex_digest("\n".join(lines) + "\n")


def unreadable_text(counts: Mapping[str, Sequence[int]]) -> str:
    """The number of raw records of each reason in each quarter, as JSON."""
    return json.dumps({name: [*counts[name]] for name in sorted(counts)}, separators=(",", ":")) if counts else ""


def seq_range_texts(row: Ints, record: Ints, epochs: Ints, seqs: Ints, rows: int) -> list[str]:
    """The seq ranges of each of `rows` rows as text, from pairs of a row and a record it was computed from.

    `epochs`, `seqs`: of the records, sorted by (epoch, seq) for each device.
    """
    count = np.int64(max(len(epochs), 1))
    pairs = row * count + record
    if not (pairs[1:] > pairs[:-1]).all():
        pairs = distinct(pairs)
    row, record = pairs // count, pairs % count
    epoch, seq = epochs[record], seqs[record]
    starts = run_starts(row, epoch)
    starts[1:] |= np.diff(seq) != 1
    first = np.flatnonzero(starts)
    last = np.append(first[1:], len(seq)) - 1
    texts = [NO_RECORDS] * rows
    columns = (column.tolist() for column in (row[first], epoch[first], seq[first], seq[last[: len(first)]]))
    held: dict[int, list[str]] = {}
    at = -1
    for of, named, low, high in zip(*columns, strict=True):
        if of != at:
            if held:
                texts[at] = _ranges(held)
            at, held = of, {}
        held.setdefault(named, []).append(f"[{low},{high}]")
    if held:
        texts[at] = _ranges(held)
    return texts


def _ranges(held: dict[int, list[str]]) -> str:
    return "{" + ",".join(f'"{epoch}":[{",".join(ranges)}]' for epoch, ranges in held.items()) + "}"


DIGEST_CHARS: Final = 16
"""Hexadecimal digits of a SHA-256; two different rows share a digest with a chance of 2⁻⁶⁴."""


def hex_digest(text: str) -> str:
    """The first DIGEST_CHARS hex digits of the SHA-256 of a text."""
    return hashlib.sha256(text.encode()).hexdigest()[:DIGEST_CHARS]
