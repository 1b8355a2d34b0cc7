"""Which versions of a fence had a say in an hour, as rows of usage state it. Pure."""

from __future__ import annotations

import hashlib
import json
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

from geo.spatial.activity import effective_ms

if TYPE_CHECKING:
    from geo.spatial import Fence, Gate

DIGEST_CHARS: Final = 16
"""So many hexadecimal digits of a SHA-256: a row that is another keeps its digest once in 2⁶⁴."""
NO_FENCE: Final = ""
"""The fence version of a row that no fence has a say in: outside of all, and of the device as a whole."""
_HOUR_MS: Final = 3_600_000


class FenceVersions:
    """Which versions of a fence had a say in an hour: those that stood for its id in it, or within a gap before it.

    A segment belongs to the hour of the fix that ends it, and begins at most a gap earlier. `made`: each feature, as
    text, and what it is. Whether a weekly window was open plays no part: it is in the body of its version.
    """

    def __init__(self, made: Iterable[tuple[str, Fence | Gate]], gap_ms: int) -> None:
        self._gap_ms = gap_ms
        self._of_id: dict[str, list[list[tuple[int, str]]]] = {}
        # one id may stand for a fence and for a gate, if they were published one by one
        kinds: dict[tuple[str, type], list[tuple[int, str]]] = {}
        for body, place in made:
            text = json.dumps(json.loads(body), sort_keys=True)
            kinds.setdefault((place.id, type(place)), []).append((effective_ms(place), text))
        for (name, _), versions in sorted(kinds.items(), key=lambda item: (item[0][0], item[0][1].__name__)):
            self._of_id.setdefault(name, []).append(sorted(versions))
        self._known: dict[tuple[str, ...], str] = {}

    def of(self, zone: str, hour: int) -> str:
        """The fence version of a zone in an hour since 1970: 16 hex digits of the SHA-256 of the bodies, each in one
        line with sorted keys, in the order of their beginnings; NO_FENCE for what is no fence's id."""
        kinds = self._of_id.get(zone)
        if kinds is None:
            return NO_FENCE
        if len(kinds) == 1 and len(kinds[0]) == 1:
            bodies: tuple[str, ...] = (kinds[0][0][1],)
        else:
            bodies = tuple(body for versions in kinds for body in self._standing(versions, hour))
        if bodies not in self._known:
            self._known[bodies] = hex_digest("".join(f"{body}\n" for body in bodies))
        return self._known[bodies]

    def _standing(self, versions: Sequence[tuple[int, str]], hour: int) -> list[str]:
        begins = [begin for begin, _ in versions]
        first = max(bisect_right(begins, hour * _HOUR_MS - self._gap_ms) - 1, 0)
        end = bisect_left(begins, (hour + 1) * _HOUR_MS)
        return [body for _, body in versions[first:end]]


def hex_digest(text: str) -> str:
    """The first DIGEST_CHARS of the SHA-256 of a text, in hex."""
    return hashlib.sha256(text.encode()).hexdigest()[:DIGEST_CHARS]
