"""What somebody else wrote, as a log and a screen may show it."""

from __future__ import annotations

__all__ = ["one_line"]


def one_line(text: str, most: int = 300) -> str:
    """At most so many characters, in one line that moves no cursor: what is not printable is escaped, as `\\x1b`."""
    return "".join(sign if sign.isprintable() else _escaped(sign) for sign in text[:most].strip())[:most]


def _escaped(sign: str) -> str:
    return sign.encode("unicode_escape").decode("ascii")
