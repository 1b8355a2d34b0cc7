"""Fewer records of the same drive: what is left out is declared."""

from __future__ import annotations

from collections import Counter

from edge_agent.drain.merge import joined
from telemetry import Batch, Body, IntervalSet, Position, Raw, Signal, Tombstone


def downsampled(batch: Batch, keep_one_in: int, run: int = 1, reason: str = "downsampled") -> Batch:
    """The batch with one in `keep_one_in` of the records of each series; the others become tombstones.

    A series is what is measured again and again: positions, one signal, one raw topic. Events and canaries stay. The
    first record of a series stays, so that what came seldom is still there. Records are kept and left out in runs of
    `run` and its multiples: a tombstone costs some 20 bytes, more than a record, so short runs may save nothing.
    """
    seen: Counter[tuple[type[Body], str]] = Counter()
    kept, left_out = [], []
    for record in batch.records:
        series = _series(record.body)
        if series is None or seen[series] // run % keep_one_in == 0:
            kept.append(record)
        else:
            left_out.append(record.seq)
        if series is not None:
            seen[series] += 1
    lost = [Tombstone(first, last, reason) for first, last in IntervalSet.of(left_out).ranges]
    return Batch(batch.device, batch.epoch, batch.head, tuple(kept), joined([*batch.tombstones, *lost]))


def _series(body: Body) -> tuple[type[Body], str] | None:
    if isinstance(body, Position):
        return Position, ""
    if isinstance(body, Signal):
        return Signal, body.path
    if isinstance(body, Raw):
        return Raw, body.topic
    return None
