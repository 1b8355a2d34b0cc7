"""Which characters names, addresses and references of contracts may have: those that every form of a document shows."""

from __future__ import annotations

import re
from typing import Final

_PRINTED: Final = (
    "\x20-\x7e\xa0-\xac\xae-\u0377\u037a-\u037f\u0384-\u038a\u038c\u038e-\u03a1\u03a3-\u03e1\u03f0-\u052f"
    "\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4"
    "\u1fb6-\u1fc4\u1fc6-\u1fd3\u1fd6-\u1fdb\u1fdd-\u1fef\u1ff2-\u1ff4\u1ff6-\u1ffe"
    "\u2010-\u2027\u202f-\u205e\u20a0-\u20c0\u2100-\u215f\u2212"
)
"""Latin, Greek and Cyrillic, punctuation, currencies and signs that stand for letters, as far as the PDF's font goes.

Nothing in it is invisible or turns the direction of a line, and none needs its neighbours to be drawn."""
_NOT_PRINTED: Final = re.compile(f"[^{_PRINTED}]")


def unprintable(text: str) -> str | None:
    """The first character of a text that no document prints; None: it can be printed."""
    found = _NOT_PRINTED.search(text)
    return None if found is None else found.group()
