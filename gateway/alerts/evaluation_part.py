"""What is evaluated together, and what is said of what was found in it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple, cast

from gateway.alerts.evaluation import FoundEvent
from geo.alerts import Alert
from geo.spatial import Kind
from waybill.record.columns import RecordColumns

__all__ = ["MAX_CONTENT", "MAX_MESSAGES", "MAX_RECORDS", "EvaluationPart", "ReadBatch", "alert_of", "parts_of"]

# an evaluation stays short enough that the alerts of its first message are not late
MAX_MESSAGES: Final = 2000
MAX_RECORDS: Final = 50_000
MAX_CONTENT: Final = 32 << 20
"""So many, and so many bytes of them, are held at once, however much a batch unpacks to."""
ReadBatch = tuple[str, RecordColumns, int]
"""A batch with its tenant, and when the region's cluster had it (ms since 1970)."""


class EvaluationPart(NamedTuple):
    """Messages that are evaluated together, and the batches with records in them."""

    messages: list[Any]
    batches: list[ReadBatch]


def parts_of(read: Iterable[tuple[Any, ReadBatch | None]]) -> Iterator[EvaluationPart]:
    """Messages in groups of at most about MAX_RECORDS records and MAX_CONTENT bytes of them."""
    part, records, size = EvaluationPart([], []), 0, 0
    for message, batch in read:
        part.messages.append(message)
        if batch is not None and len(batch[1].seq):
            part.batches.append(batch)
            records += len(batch[1].seq)
            size += batch[1].size
        if records >= MAX_RECORDS or size >= MAX_CONTENT or len(part.messages) >= MAX_MESSAGES:
            yield part
            part, records, size = EvaluationPart([], []), 0, 0
    if part.messages:
        yield part


def alert_of(found: FoundEvent, region: str, now_ms: int) -> Alert:
    """What a region says of an event that was found; `now_ms`: when it says so."""
    event = found.event
    return Alert(
        id=found.id,
        tenant=found.tenant,
        device=found.device,
        region=region,
        epoch=event.epoch,
        seq=event.seq,
        kind=cast("Kind", event.kind),
        place=event.place,
        t_ms=event.t_ms,
        value=event.value,
        received_ms=found.received_ms,
        raised_ms=now_ms,
        seen_until=found.seen_until,
    )
