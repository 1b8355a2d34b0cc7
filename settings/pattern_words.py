"""What a pattern of an address asks for, in words: who writes settings reads no regular expressions."""

from __future__ import annotations

from typing import Final

__all__ = ["pattern_words"]

_WORDS: Final = {
    r"^pulsar(\+ssl)?://": "begin with pulsar:// or pulsar+ssl://, and go on with HOST:PORT",
    r"^https?://": "begin with http:// or https://, and go on with HOST:PORT",
}
"""By what patterns begin with."""


def pattern_words(pattern: str) -> str | None:
    """What a value has to be to fit a pattern; None: no words are known for it."""
    return next((words for begin, words in _WORDS.items() if pattern.startswith(begin)), None)
