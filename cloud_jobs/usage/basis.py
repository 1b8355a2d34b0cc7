"""What a row of usage rests on: the records, and a digest of all that it says. Pure.

The digest is SHA-256 over lines of UTF-8, each with a line feed after it: tenant, device, hour (seconds since 1970),
zone, each quantity in the order of QUANTITIES with commas between its quarters, `seq_ranges`, `fence_version`,
`engine_version`; and where any of it is something, OBSERVED, each as a quantity, and `unreadable`; then `counters`, if
there are any. No name holds a line feed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import numpy as np

from cloud_jobs.fence_versions import hex_digest
from geo.spatial.ragged import Ints, distinct, run_starts

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
    """The digest of a row. `names`: tenant and device; `hour`: since 1970; `quantities`: the quarters of each, in the
    order of QUANTITIES; `rests_on`: seq ranges, fence version and engine version; `observed`: as `quantities`, of
    OBSERVED."""
    amounts = "\n".join(",".join(map(str, quarters)) for quarters in quantities)
    lines = [*names, str(hour * HOUR_S), zone, amounts, *map(str, rests_on)]
    found = [quarters or () for quarters in observed]
    if unreadable or any(map(any, found)):
        lines += [*(",".join(map(str, quarters)) for quarters in found), unreadable or ""]
    if counters:
        lines.append(counters)
    return hex_digest("\n".join(lines) + "\n")


def unreadable_text(counts: Mapping[str, Sequence[int]]) -> str:
    """Of the reasons of raw records how many there were in each quarter, as rows have it."""
    return json.dumps({name: [*counts[name]] for name in sorted(counts)}, separators=(",", ":")) if counts else ""


def seq_range_texts(row: Ints, record: Ints, epochs: Ints, seqs: Ints, rows: int) -> list[str]:
    """The seq ranges of each of `rows` rows as text, from pairs of a row and a record that it rests on, in any order.

    `epochs`, `seqs`: of the records, those of a device in the order of (epoch, seq).
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
