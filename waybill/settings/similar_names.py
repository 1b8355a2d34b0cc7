"""Names as a person reads them: two that look the same are one name and a slip, never two things.

Used for the ids of fences, devices, accounts and whatever else people write in files and programs compare by bytes.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from typing import Final

__all__ = ["as_read", "name_advice", "near_equal"]

_WHOLE: Final = re.compile(r"([+-]?[0-9]+)\.0+")
_HYPHENS: Final = dict.fromkeys(map(ord, "\u2010\u2011\u2212"), "-")
_UNSEEN: Final = re.compile("[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u3164\ufe00-\ufe0f\uffa0]")
"""Letters and marks that nobody sees, beside those of the category Cf (soft hyphen, joiners, tags)."""


def as_read(name: str) -> str:
    """What two names have in common that a person does not distinguish.

    Composed and decomposed letters are the same (NFC), and so are blanks of every kind and number; blanks at either
    end, what is not seen, and the nought of a whole number (`12.0`) do not count.
    """
    if not name.isascii():
        seen = "".join(sign for sign in _UNSEEN.sub("", name) if unicodedata.category(sign) != "Cf")
        name = unicodedata.normalize("NFC", seen).translate(_HYPHENS)
    text = " ".join(name.split())
    whole = _WHOLE.fullmatch(text)
    return whole[1] if whole else text


def near_equal(names: Iterable[str]) -> Iterator[tuple[str, ...]]:
    """The names of each group that reads the same, in their order; a name that comes again is one."""
    groups: dict[str, list[str]] = {}
    for name in dict.fromkeys(names):
        groups.setdefault(as_read(name), []).append(name)
    return (tuple(group) for group in groups.values() if len(group) > 1)


def name_advice(name: str, known: Iterable[str]) -> str:
    """What a message about an unknown name adds: the known one that reads the same, both spelled out, or one like it.

    "": none is.
    """
    others = [one for one in known if one != name]
    reading = as_read(name)
    if same := next((one for one in others if as_read(one) == reading), None):
        return f"; this is written {name!a}, and there is {same!a}, which reads the same"
    near = get_close_matches(name, others, 1)
    return f"; did you mean {near[0]!r}?" if near else ""
