"""From when a version of reference data is in force. Versions with one beginning are one, however it is written."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

UNKNOWN_BEGINNING = "unknown"


def beginning(kind: str, body: str) -> str:
    """From when a version is in force, as the bill and the fences take it: however its instant is written.

    "": always, as an account; UNKNOWN_BEGINNING: the body does not say.
    """
    if kind == "account":
        return ""  # the one published last holds
    try:
        facts = json.loads(body)
        facts = facts["properties"] if kind == "fence" else facts
        return instant_text(facts.get("effective_from"))
    except (AttributeError, KeyError, ValueError, TypeError, RecursionError):
        return UNKNOWN_BEGINNING  # the same for all such bodies of that thing: then more is kept than is needed


def instant_text(begin: Any) -> str:
    """An instant in one form, however it is written; "": none, UNKNOWN_BEGINNING: not a moment."""
    if begin is None or begin == "":
        return ""
    try:
        time = datetime.fromisoformat(begin)
        # without an offset it is no instant, and no reader takes it
        return str(time) if time.utcoffset() is None else f"{time.astimezone(UTC).replace(tzinfo=None).isoformat()}Z"
    except (ValueError, TypeError, OverflowError):
        return UNKNOWN_BEGINNING
