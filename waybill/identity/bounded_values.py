"""The values that what is signed may have: each bounded where it is read, so that nothing behind it meets another one.

A moment that no calendar has in another zone, a number after which there is none and a text that moves the cursor of a
screen are refused here, whoever signed them.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Final

from pydantic import AfterValidator, BeforeValidator, Field, StringConstraints

__all__ = ["FIRST_MOMENT", "LAST_MOMENT", "MAX_LINE_CHARACTERS", "MAX_VERSION", "Line", "Moment", "Serial", "Version"]

FIRST_MOMENT: Final = datetime(2020, 1, 1, tzinfo=UTC)
LAST_MOMENT: Final = datetime(2200, 1, 1, tzinfo=UTC)
MAX_VERSION: Final = 1 << 40
"""A change each millisecond for a lifetime; a sum of two versions is far from what any reader of JSON can hold."""
MAX_LINE_CHARACTERS: Final = 500


def _in_utc(moment: datetime) -> datetime:
    if moment.tzinfo is None:
        raise ValueError("a moment needs its offset, for instance 2027-01-01T00:00:00Z")
    # Compared first: the first and the last days of the calendar are none in every zone.
    if not FIRST_MOMENT <= moment < LAST_MOMENT:
        raise ValueError(f"a moment is of the years {FIRST_MOMENT.year} to {LAST_MOMENT.year - 1}, in UTC")
    return moment.astimezone(UTC)


def _printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError("it is one line of characters that can be printed")
    return text


def _no_flag(number: object) -> object:
    if isinstance(number, bool):
        raise ValueError("it is a whole number")
    return number


Moment = Annotated[datetime, AfterValidator(_in_utc)]
"""In UTC; one without an offset is refused."""
Line = Annotated[str, StringConstraints(max_length=MAX_LINE_CHARACTERS), AfterValidator(_printable)]
"""Of characters that can be printed; empty too."""
Version = Annotated[int, BeforeValidator(_no_flag), Field(ge=1, le=MAX_VERSION)]
Serial = Annotated[str, StringConstraints(pattern=r"^(?:[1-9a-f][0-9a-f]{0,38}|[1-7][0-9a-f]{39})$")]
"""Of a certificate, in hexadecimal digits: what a revocation list can name, so positive and below 2**159."""
