"""Tracks cut into pieces that each lie in one slice of time, and the cells that a piece may matter in. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from geo.spatial.clip import Segments
from geo.spatial.nearby import Corners, bulge_m, earth_centred, flattest, turns
from geo.spatial.ragged import Floats, Ints, blocks, distinct_pairs, expand

MINUTE_MS: Final = 60_000
SLICE_MINUTES: Final = 15
SLICE_MS: Final = SLICE_MINUTES * MINUTE_MS
"""A slice of time: 15 minutes, so that slices do not span days."""

_EARTH_M: Final = 6_378_137.0
_STEPS_AT_ONCE: Final = 1 << 16
_MIXERS: Final = np.array([73_856_093, 19_349_663, 83_492_791], dtype=np.int64)


def cut(segments: Segments, span_ms: int = SLICE_MS) -> tuple[Segments, Ints, Ints]:
    """Pieces of segments, each in one span of time: (pieces, the segment of each, the number of its span).

    A piece is a function of its segment and its span alone.
    """
    first = np.floor(segments.start_ms / span_ms).astype(np.int64)
    # a segment that ends where a span begins has no piece in that span
    last = np.ceil(segments.end_ms / span_ms).astype(np.int64) - 1
    owner, number = expand(first, last - first + 1)
    start = np.maximum(segments.start_ms[owner], number * span_ms)
    end = np.minimum(segments.end_ms[owner], (number + 1) * span_ms)
    begin_ms, length = segments.start_ms[owner], (segments.end_ms - segments.start_ms)[owner]
    px, py = segments.at(owner, (start - begin_ms) / length)
    qx, qy = segments.at(owner, (end - begin_ms) / length)
    # over the antimeridian a segment goes on beyond 180 degrees; each piece begins within them
    turns = np.floor((px + 180.0) / 360.0) * 360.0
    return Segments(px - turns, py, qx - turns, qy, start, end), owner, number


def length_m(segments: Segments) -> Floats:
    """At least the lengths of segments, also where lines that are straight in degrees bend."""
    east, north = turns(segments)
    return np.asarray(1.01 * _EARTH_M * (np.cos(np.radians(flattest(segments))) * east + north))


def cells(pieces: Segments, distance_m: float, cell_m: float) -> Iterator[tuple[Ints, Ints]]:
    """Pairs (piece, cell): all cells that a piece comes within half the distance of; each piece whole in one block.

    Two pieces that come within the distance share a cell. A cell is a number that hardly any two places share, and
    no harm is done if they do. A long piece is looked at in steps of a cell, so that its cells grow with its length;
    with `cell_m` at least `distance_m` no step reaches more than 125.
    """
    steps = np.maximum(np.ceil(length_m(pieces) / cell_m), 1.0).astype(np.int64)
    for block in blocks(steps, _STEPS_AT_ONCE):
        piece, step = expand(np.zeros(block.stop - block.start, dtype=np.int64), steps[block])
        piece += block.start
        low, high = _boxes(pieces, piece, step, steps[piece], distance_m)
        # A step is no longer than a cell and bends by 0.8 of one at most: with half the distance, five cells each way.
        lowest = np.floor(low / cell_m).astype(np.int64)
        span = np.floor(high / cell_m).astype(np.int64) - lowest + 1
        row, rest = expand(np.zeros(span.shape[1], dtype=np.int64), span.prod(axis=0))
        x = rest % span[0, row]
        rest //= span[0, row]
        place = lowest[:, row] + np.stack([x, rest % span[1, row], rest // span[1, row]])
        yield distinct_pairs(piece[row], (place * _MIXERS[:, None]).sum(axis=0))


def _boxes(pieces: Segments, piece: Ints, step: Ints, of: Ints, distance_m: float) -> tuple[Corners, Corners]:
    """Boxes of steps of pieces, in earth-centred metres, wide enough for half the distance and for their own bulge."""
    one, other = (earth_centred(*pieces.at(piece, limit / of)) for limit in (step, step + 1))
    margin = distance_m / 2 + bulge_m(pieces, piece, 1.0 / of) + 1.0
    return np.minimum(one, other) - margin, np.maximum(one, other) + margin
