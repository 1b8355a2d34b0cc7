"""Fences with the same shape share it: it is indexed, and looked up, once."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Final

import numpy as np
import shapely

from geo.spatial.ragged import Ints, expand, offsets
from geo.spatial.rings import Shape


class SharedShapes:
    """`shapes`: the distinct ones, in order of appearance, `counts`: fences of each; `of_fence[f]`: the shape of f."""

    def __init__(self, shapes: Sequence[Shape]) -> None:
        number: dict[bytes, int] = {}
        distinct: list[Shape] = []
        of_fence = np.empty(len(shapes), dtype=np.int64)
        for fence, shape in enumerate(shapes):
            digest = hashlib.blake2b(shapely.to_wkb(shape), digest_size=16).digest()
            of_fence[fence] = at = number.setdefault(digest, len(distinct))
            if at == len(distinct):
                distinct.append(shape)
        self.shapes: Final = tuple(distinct)
        self.of_fence: Ints = of_fence
        self._fences = np.argsort(of_fence, kind="stable")
        self.counts: Ints = np.bincount(of_fence, minlength=len(distinct))
        self._first = offsets(self.counts)

    def fences(self, row: Ints, shape: Ints) -> tuple[Ints, Ints]:
        """Pairs (row, fence) from pairs (row, shape): each fence of the shape."""
        if len(self.shapes) == len(self.of_fence):
            return row, shape
        item, at = expand(self._first[shape], np.diff(self._first)[shape])
        return row[item], self._fences[at]
