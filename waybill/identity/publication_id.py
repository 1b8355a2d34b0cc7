"""Ids of publications, which put them into one order.

An id is a UUID of version 7 (RFC 9562), as text: 48 bits of time in milliseconds, a counter of 12 bits, 62 random bits.
Its text sorts in the order of the ids. The time is the publisher's, unless a known publication is later: then the id
follows that one, so that a correction always comes after what it corrects. Readers refuse an id that is more than five
minutes ahead of their clock.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final
from uuid import UUID

PROPERTY: Final = "publication_id"
"""The property of a message that has its id."""
RANDOM_BITS: Final = 62
MAX_AHEAD_MS: Final = 300_000
"""An id that is further ahead comes from a wrong clock, and is refused."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_LAST_MS: Final = 253_402_300_799_000
_COUNTER_BITS: Final = 12
_ORDER_BITS: Final = 60
_VERSION: Final = 7
_VARIANT: Final = 0b10


def next_publication_id(previous: str | None, now_ms: int, random_bits: int) -> str:
    """An id after `previous` (None: the first one). Raises ValueError for an invalid `previous`, or if none comes after
    it.
    """
    order = now_ms << _COUNTER_BITS
    if previous is not None:
        if not is_publication_id(previous):
            raise ValueError(f"{previous!r} is not a publication id")
        order = max(order, _order_of(UUID(previous)) + 1)
    if not 0 <= order < 1 << _ORDER_BITS:
        raise ValueError(f"no publication id comes after {previous} at {now_ms} ms")
    time, counter = order >> _COUNTER_BITS, order & ((1 << _COUNTER_BITS) - 1)
    assert 0 <= random_bits < 1 << RANDOM_BITS
    return str(UUID(int=time << 80 | _VERSION << 76 | counter << 64 | _VARIANT << RANDOM_BITS | random_bits))


def is_publication_id(text: str | None) -> bool:
    """Whether a text is an id in the form that sorts."""
    try:
        made = UUID(text)
    except (ValueError, TypeError, AttributeError):
        return False
    return str(made) == text and made.version == _VERSION


def is_far_ahead(publication_id: str, now_ms: float) -> bool:
    """Whether the time of an id is more than five minutes after `now_ms`."""
    return drawn_ms(publication_id) > now_ms + MAX_AHEAD_MS


def drawn_ms(publication_id: str) -> int:
    """The time of an id, in milliseconds since 1970."""
    return UUID(publication_id).int >> 80


def drawn_at(publication_id: str) -> datetime:
    """The time of an id, at most the end of the year 9999."""
    return _EPOCH + timedelta(milliseconds=min(drawn_ms(publication_id), _LAST_MS))


def _order_of(made: UUID) -> int:
    return (made.int >> 80) << _COUNTER_BITS | made.int >> 64 & ((1 << _COUNTER_BITS) - 1)
