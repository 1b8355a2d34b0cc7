"""What a row of usage rests on: the records, the versions of its fence, and a digest of all that it says. Pure.

The digest is SHA-256 over lines of UTF-8, each with a line feed after it: tenant, device, hour (seconds since 1970),
zone, each quantity in the order of QUANTITIES with commas between its quarters, `seq_ranges`, `fence_version`,
`engine_version`. No name holds a line feed.
"""

from __future__ import annotations

import hashlib
import json
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np

from cloud_jobs.usage.touched_hours import HOUR_MS
from geo.spatial import Fence, Gate
from geo.spatial.ragged import Ints, distinct, run_starts
from geo.spatial.versions import effective_ms

DIGEST_CHARS: Final = 16
"""So many hexadecimal digits of a SHA-256: a row that is another keeps its digest once in 2⁶⁴."""
HOUR_S: Final = 3600
NO_FENCE: Final = ""
"""The fence version of a row that no fence has a say in: outside of all, and of the device as a whole."""
NO_RECORDS: Final = "{}"
"""The seq ranges of a row of zeros."""


class FenceVersions:
    """Which versions of a fence had a say in an hour: those that stood for its id in it, or within a gap before it.

    A segment belongs to the hour of the fix that ends it, and begins at most a gap earlier. `made`: each feature, as
    text, and what it is. Whether a weekly window was open plays no part: it is in the body of its version.
    """

    def __init__(self, made: Iterable[tuple[str, Fence | Gate]], gap_ms: int) -> None:
        self._gap_ms = gap_ms
        self._of_id: dict[str, list[list[tuple[int, str]]]] = {}
        # one id may stand for a fence and for a gate, if they were published one by one
        kinds: dict[tuple[str, type], list[tuple[int, str]]] = {}
        for body, place in made:
            text = json.dumps(json.loads(body), sort_keys=True)
            kinds.setdefault((place.id, type(place)), []).append((effective_ms(place), text))
        for (name, _), versions in sorted(kinds.items(), key=lambda item: (item[0][0], item[0][1].__name__)):
            self._of_id.setdefault(name, []).append(sorted(versions))
        self._known: dict[tuple[str, ...], str] = {}

    def of(self, zone: str, hour: int) -> str:
        """The fence version of a zone in an hour since 1970: 16 hex digits of the SHA-256 of the bodies, each in one
        line with sorted keys, in the order of their beginnings; NO_FENCE for what is no fence's id."""
        kinds = self._of_id.get(zone)
        if kinds is None:
            return NO_FENCE
        if len(kinds) == 1 and len(kinds[0]) == 1:
            bodies: tuple[str, ...] = (kinds[0][0][1],)
        else:
            bodies = tuple(body for versions in kinds for body in self._standing(versions, hour))
        if bodies not in self._known:
            self._known[bodies] = _hex("".join(f"{body}\n" for body in bodies))
        return self._known[bodies]

    def _standing(self, versions: Sequence[tuple[int, str]], hour: int) -> list[str]:
        begins = [begin for begin, _ in versions]
        first = max(bisect_right(begins, hour * HOUR_MS - self._gap_ms) - 1, 0)
        end = bisect_left(begins, (hour + 1) * HOUR_MS)
        return [body for _, body in versions[first:end]]


def row_digest(
    names: tuple[str, str], hour: int, zone: str, quantities: Iterable[Sequence[int]], rests_on: tuple[str, str, int]
) -> str:
    """The digest of a row. `names`: tenant and device; `hour`: since 1970; `quantities`: the quarters of each, in the
    order of QUANTITIES; `rests_on`: seq ranges, fence version and engine version."""
    amounts = "\n".join(",".join(map(str, quarters)) for quarters in quantities)
    lines = (*names, str(hour * HOUR_S), zone, amounts, *map(str, rests_on))
    return _hex("\n".join(lines) + "\n")


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


def _hex(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:DIGEST_CHARS]
