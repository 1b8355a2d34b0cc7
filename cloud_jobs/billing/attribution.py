"""Who did something that is kept for ever, and why: the rule for both texts. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

MAX_NAME: Final = 200
MAX_REASON: Final = 2000
LEAST_REASON: Final = 3


def attribution_faults(by: str, reason: str | None) -> Iterator[str]:
    """What is wrong with the name of who asks and with the reason (None: none is needed): each is a line of text, and
    none is empty."""
    if not 0 < len(by.strip()) <= MAX_NAME:
        yield f"it needs the name of who decides, at most {MAX_NAME} characters"
    if reason is not None and not LEAST_REASON <= len(reason.strip()) <= MAX_REASON:
        yield f"it needs a reason, {LEAST_REASON} to {MAX_REASON} characters"
    if any(not text.isprintable() for text in (by, reason or "")):
        yield "name and reason are one line of text each"
