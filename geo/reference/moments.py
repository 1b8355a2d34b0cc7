"""Moments of what was agreed: on a quarter of an hour, in UTC, and written in one form."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import lru_cache
from typing import Annotated, Any

from pydantic import PlainSerializer, PlainValidator

from geo.reference.beginning import agreed_moment

__all__ = ["Moment", "stamp"]

_WRITE = "write a date, a time and an offset, for instance 2026-03-01T00:00:00+01:00"


# the hours of a month are few, and the charges that name them are many
@lru_cache(maxsize=4096)
def stamp(moment: datetime) -> str:
    """A moment in UTC as ISO 8601 text that ends in Z, with fractions only if there are any."""
    text = moment.astimezone(UTC).isoformat(timespec="microseconds" if moment.microsecond else "seconds")
    return text.removesuffix("+00:00") + "Z"


def _moment(given: Any) -> datetime:
    """A moment in UTC, of an ISO 8601 text or of TOML's date and time. Numbers are no moments. Raises ValueError."""
    if isinstance(given, str):
        return _moment_of_text(given)
    if not isinstance(given, datetime):
        raise ValueError(_WRITE)
    return agreed_moment(given)


# vehicles of one account mostly begin together
@lru_cache(maxsize=4096)
def _moment_of_text(text: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(_WRITE) from None
    return _moment(moment)


Moment = Annotated[datetime, PlainValidator(_moment), PlainSerializer(stamp, return_type=str, when_used="json")]
"""On a quarter of an hour, in UTC: usage is kept by the quarter, so whatever holds begins on one."""
