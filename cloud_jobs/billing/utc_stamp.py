"""How moments are written."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import lru_cache


# the hours of a month are few, and the charges that name them are many
@lru_cache(maxsize=4096)
def stamp(moment: datetime) -> str:
    """A moment in UTC as ISO 8601 text that ends in Z, with fractions only if there are any."""
    text = moment.astimezone(UTC).isoformat(timespec="microseconds" if moment.microsecond else "seconds")
    return text.removesuffix("+00:00") + "Z"
