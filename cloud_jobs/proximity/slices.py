"""Tracks cut into pieces that each lie in one slice of time, and the cells that a piece may matter in. Pure."""

from __future__ import annotations

from typing import Final

import numpy as np

from geo.spatial.clip import Segments
from geo.spatial.nearby import Corners, earth_centred
from geo.spatial.ragged import Floats, Ints, expand, run_starts

MINUTE_MS: Final = 60_000
SLICE_MINUTES: Final = 15
SLICE_MS: Final = SLICE_MINUTES * MINUTE_MS
"""A slice of time: 15 minutes, so that slices do not span days."""

EARTH_M: Final = 6_378_137.0
_MIXERS: Final = np.array([73_856_093, 19_349_663, 83_492_791], dtype=np.int64)


def cut(segments: Segments, span_ms: int = SLICE_MS) -> tuple[Segments, Ints, Ints]:
    """Pieces of segments, each in one span of time: (pieces, the segment of each, the number of its span).

    A piece is a function of its segment and its span alone.
    """
    first = np.floor(segments.start_ms / span_ms).astype(np.int64)
    last = np.ceil(segments.end_ms / span_ms).astype(np.int64) - 1
    owner, number = expand(first, last - first + 1)
    start = np.maximum(segments.start_ms[owner], number * span_ms)
    end = np.minimum(segments.end_ms[owner], (number + 1) * span_ms)
    begin_ms, length = segments.start_ms[owner], (segments.end_ms - segments.start_ms)[owner]
    px, py = segments.at(owner, (start - begin_ms) / length)
    qx, qy = segments.at(owner, (end - begin_ms) / length)
    turns = np.floor((px + 180.0) / 360.0) * 360.0
    return Segments(px - turns, py, qx - turns, qy, start, end), owner, number


def cells(pieces: Segments, distance_m: float, cell_m: float) -> tuple[Ints, Ints]:
    """Pairs (piece, cell): all cells that a piece comes within half the distance of.

    Two pieces that come within the distance share a cell. A cell is a number that hardly any two places share, and
    no harm is done if they do. A long piece is looked at in steps of a cell, so that its cells grow with its length.
    """
    every = np.arange(len(pieces))
    ends = [earth_centred(*pieces.at(every, np.full(len(pieces), part))) for part in (0.0, 1.0)]
    steps = np.maximum(np.ceil(np.linalg.norm(ends[1] - ends[0], axis=0) / cell_m), 1.0).astype(np.int64)
    piece, step = expand(np.zeros(len(pieces), dtype=np.int64), steps)
    low, high = _boxes(pieces, piece, step / steps[piece], (step + 1) / steps[piece], distance_m)
    lowest = np.floor(low / cell_m).astype(np.int64)
    span = np.floor(high / cell_m).astype(np.int64) - lowest + 1
    row, rest = expand(np.zeros(span.shape[1], dtype=np.int64), span.prod(axis=0))
    x = rest % span[0, row]
    rest //= span[0, row]
    place = lowest[:, row] + np.stack([x, rest % span[1, row], rest // span[1, row]])
    cell = (place * _MIXERS[:, None]).sum(axis=0)
    owner = piece[row]
    order = np.lexsort((cell, owner))
    fresh = order[run_starts(owner[order], cell[order])] if len(order) else order
    return owner[fresh], cell[fresh]


def _boxes(pieces: Segments, piece: Ints, start: Floats, end: Floats, distance_m: float) -> tuple[Corners, Corners]:
    """Boxes of parts of pieces, in earth-centred metres, wide enough for half the distance and for their own bulge."""
    one, other = earth_centred(*pieces.at(piece, start)), earth_centred(*pieces.at(piece, end))
    turn = np.radians(np.abs(pieces.qx - pieces.px) + np.abs(pieces.qy - pieces.py))[piece] * (end - start)
    margin = distance_m / 2 + EARTH_M * (1.0 - np.cos(np.minimum(turn, np.pi))) + 1.0
    return np.minimum(one, other) - margin, np.maximum(one, other) + margin
