"""What the answer of a webhook means: taken, to be tried again, or refused for good. Pure."""

from __future__ import annotations

import email.utils
from datetime import UTC
from typing import Final, NamedTuple

__all__ = ["MAX_RETRY_AFTER_S", "RESULTS", "HttpOutcome", "outcome_of_status", "retry_after_s"]

MAX_RETRY_AFTER_S: Final = 3600.0
"""A server that wants to be left alone for longer is asked again after an hour."""
_AGAIN: Final = frozenset({408, 425, 429})


RESULTS: Final = ("delivered", "refused", "redirected", "failed", "timeout", "unreachable", "forbidden")
"""What can become of an attempt."""


class HttpOutcome(NamedTuple):
    """One attempt. `is_final`: taken, or refused for good; else it is tried again, `pause_s` from now at the earliest.

    `reason`: one of RESULTS; `detail`: in words.
    """

    is_final: bool
    reason: str
    detail: str
    pause_s: float | None = None

    @property
    def is_delivered(self) -> bool:
        """Whether the server took it."""
        return self.reason == "delivered"


def outcome_of_status(status: int, phrase: str, retry_after: str | None, now_s: float) -> HttpOutcome:
    """What a status means; `now_s`: seconds since 1970, for a `Retry-After` that is a date."""
    said = f"{status} {phrase}".strip()
    if 200 <= status < 300:
        return HttpOutcome(True, "delivered", said)
    # whoever answers for the address could otherwise send what is signed to any other
    if 300 <= status < 400:
        return HttpOutcome(True, "redirected", f"{said}: redirects are not followed; change the url")
    # the same message would get the same answer
    if 400 <= status < 500 and status not in _AGAIN:
        return HttpOutcome(True, "refused", said)
    return HttpOutcome(False, "failed", said, None if retry_after is None else retry_after_s(retry_after, now_s))


def retry_after_s(text: str, now_s: float) -> float | None:
    """The seconds of a `Retry-After` (RFC 9110: a number, or a date), within bounds; None for what is neither."""
    text = text.strip()
    if text.isascii() and text.isdigit():
        # more digits than that are not read: Python would refuse, and they are beyond the bound
        return min(float(text[:10]), MAX_RETRY_AFTER_S)
    try:
        moment = email.utils.parsedate_to_datetime(text)
        at_s = moment.replace(tzinfo=moment.tzinfo or UTC).timestamp()
    except (ValueError, TypeError, OverflowError, IndexError):
        return None
    return min(max(at_s - now_s, 0.0), MAX_RETRY_AFTER_S)
