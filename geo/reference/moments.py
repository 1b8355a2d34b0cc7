"""Moments of agreements: on a quarter of an hour, in UTC, and written in one form."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, time, timedelta
from functools import lru_cache
from typing import Annotated, Any, Final

from pydantic import PlainSerializer, PlainValidator, ValidationInfo

# The start of a version; versions with equal start are the same version.

UNKNOWN_BEGINNING = "unknown"
QUARTER: Final = timedelta(minutes=15)
"""Agreements begin on a quarter of an hour of UTC, because usage is kept by the quarter."""
FIRST_YEAR: Final = 1970
LAST_YEAR: Final = 2999
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def beginning(kind: str, body: str) -> str:
    """From when a version is in force, in one form however it is written.

    "": always, as for an account without a beginning. UNKNOWN_BEGINNING: the body gives none, or a moment at which
    nothing of its kind can begin; such a version could never be corrected.
    """
    try:
        text = instant_text(_facts(kind, body).get("effective_from"))
        if kind != "fence" and text:
            agreed_moment(datetime.fromisoformat(text))
    except (AttributeError, KeyError, ValueError, TypeError, RecursionError):
        return UNKNOWN_BEGINNING  # one value for all such bodies of an id, so more is kept than necessary
    return text


def _facts(kind: str, body: str) -> Any:
    facts = json.loads(body)
    return facts["properties"] if kind == "fence" else facts


def ending(kind: str, body: str) -> datetime | None:
    """Until when a version is in force, by its own text; None if it gives no instant."""
    try:
        moment = datetime.fromisoformat(_facts(kind, body)["effective_until"])
    except (AttributeError, KeyError, ValueError, TypeError, RecursionError):
        return None
    return None if moment.utcoffset() is None else moment


def agreed_moment(moment: datetime) -> datetime:
    """The moment in UTC, if an agreement can begin at it. Raises ValueError, which says what to write."""
    if moment.utcoffset() is None:
        day = f", or write the local day in TOML without quotes: {moment.date()}" if moment.time() == time() else ""
        raise ValueError(f"{moment.isoformat()} has no offset from UTC; end it with Z, or with one like +01:00{day}")
    # within the years both by the local clock and in UTC
    if not FIRST_YEAR < moment.year <= LAST_YEAR or not FIRST_YEAR < moment.astimezone(UTC).year <= LAST_YEAR:
        raise ValueError(f"{moment.isoformat()} is not within the years {FIRST_YEAR + 1} to {LAST_YEAR}")
    if (moment - _EPOCH) % QUARTER:
        raise ValueError(f"{moment.isoformat()} is not on a quarter of an hour, the unit of usage")
    return moment.astimezone(UTC)


def instant_text(begin: Any) -> str:
    """An instant in one form, however it is written; "" for none, UNKNOWN_BEGINNING for no moment."""
    if begin is None or begin == "":
        return ""
    try:
        time = datetime.fromisoformat(begin)
        # without an offset it is no instant, and readers refuse it
        return str(time) if time.utcoffset() is None else f"{time.astimezone(UTC).replace(tzinfo=None).isoformat()}Z"
    except (ValueError, TypeError, OverflowError):
        return UNKNOWN_BEGINNING


_WRITE = "write a local day, 2026-03-01, or a date, a time and an offset, 2026-03-01T00:00:00+01:00"


# few hours, named by many charges
@lru_cache(maxsize=4096)
def stamp(moment: datetime) -> str:
    """A moment in UTC as ISO 8601 text that ends in Z, with fractions only if there are any."""
    text = moment.astimezone(UTC).isoformat(timespec="microseconds" if moment.microsecond else "seconds")
    return text.removesuffix("+00:00") + "Z"


def _moment(given: Any, info: ValidationInfo) -> datetime:
    """A moment in UTC, from an ISO 8601 text or TOML's date and time. Numbers are no moments. Raises ValueError.

    A local day of TOML is its first moment in the time zone of the context, if there is one.
    """
    if isinstance(given, str):
        return _moment_of_text(given)
    if isinstance(given, date) and not isinstance(given, datetime):
        if info.context is None:
            raise ValueError(f'{given} is a local day; write time_zone = "Europe/Berlin" as the first line of the file')
        given = datetime(given.year, given.month, given.day, tzinfo=info.context)
    if not isinstance(given, datetime):
        raise ValueError(_WRITE)
    return agreed_moment(given)


# vehicles of an account mostly begin together
@lru_cache(maxsize=4096)
def _moment_of_text(text: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(_WRITE) from None
    return agreed_moment(moment)


Moment = Annotated[datetime, PlainValidator(_moment), PlainSerializer(stamp, return_type=str, when_used="json")]
"""A moment on a quarter of an hour, in UTC, because usage is kept by the quarter."""
