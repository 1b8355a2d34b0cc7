"""Versions of one fence or gate: each ends where the next one begins."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, TypeVar

from geo.spatial.activity import Activity, begin_ms

if TYPE_CHECKING:
    from geo.spatial.fences import Fence
    from geo.spatial.gates import Gate

V = TypeVar("V", "Fence", "Gate")


def effective_ms(version: Fence | Gate) -> int:
    """From when a version stands for its id: what was declared, which weekly windows do not move."""
    return begin_ms(version.active) if version.effective_from_ms is None else version.effective_from_ms


def superseded(versions: Iterable[V]) -> list[V]:
    """Each version of an id ends where the next one begins; equal beginnings: the last given wins."""
    by_id: dict[str, list[V]] = {}
    for version in versions:
        by_id.setdefault(version.id, []).append(version)
    kept: list[V] = []
    for same in by_id.values():
        same.sort(key=effective_ms)
        for version, following in pairwise(same):
            limited = version.active & Activity([(None, effective_ms(following))])
            if len(limited.switches):
                kept.append(replace(version, active=limited))
        kept.append(same[-1])
    return kept
