"""What somebody else wrote, as a log and a screen may show it."""

from __future__ import annotations

__all__ = ["one_line"]


def one_line(text: str, most: int = 300) -> str:
    """At most so many characters, in one line that moves no cursor: what is not printable becomes a space."""
    return "".join(sign if sign.isprintable() else " " for sign in text[:most]).strip()
