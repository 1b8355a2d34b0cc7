"""One batch from several stored ones."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from telemetry import Batch, Tombstone, decode, encode


def merged(encoded: Sequence[bytes], head: int) -> bytes:
    """One encoded batch with the records and tombstones of all: of one device and epoch, without overlap.

    `head`: the highest number that the epoch has committed now. A single batch stays as it is. Raises WireError.
    """
    if len(encoded) == 1:
        return encoded[0]
    batches = sorted((decode(data) for data in encoded), key=lambda batch: batch.header.seqs.first or 0)
    first = batches[0]
    assert all((one.device, one.epoch) == (first.device, first.epoch) for one in batches)
    records = tuple(record for batch in batches for record in batch.records)
    tombstones = joined(tombstone for batch in batches for tombstone in batch.tombstones)
    head = max(head, *(batch.head for batch in batches))
    return encode(Batch(first.device, first.epoch, head, records, tombstones))


def joined(tombstones: Iterable[Tombstone]) -> tuple[Tombstone, ...]:
    """Tombstones in ascending order; neighbours with the same reason become one."""
    together: list[Tombstone] = []
    for tombstone in sorted(tombstones):
        before = together[-1] if together else None
        if before and before.reason == tombstone.reason and before.last + 1 == tombstone.first:
            together[-1] = before._replace(last=tombstone.last)
        else:
            together.append(tombstone)
    return tuple(together)
