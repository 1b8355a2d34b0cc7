"""How late a process is with the batches of its partitions, and whether that is known. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

__all__ = ["Lag", "age_s", "lag_of"]

CLOCKS_APART_S: Final = 5.0
"""A batch from so far in the future was published by a clock of which ours knows nothing: its age is not known."""


class Lag(NamedTuple):
    """Of a process. `known_s`: the largest that is known, of `furthest`; None: none is. `unknown`: of which none is."""

    known_s: float | None
    furthest: str
    unknown: tuple[str, ...]

    def said_s(self, max_s: float) -> float | None:
        """What is said of it: None where it is not known, unless what is known is too much already."""
        if self.known_s is None or (self.unknown and self.known_s <= max_s):
            return None
        return round(self.known_s, 3)

    def problem(self, max_s: float) -> str:
        """That alerts are late; empty when that is not known."""
        if self.known_s is None or self.known_s <= max_s:
            return ""
        return f"{self.furthest}: batches are read {self.known_s:.0f} s after they were published: alerts are late"

    @property
    def doubt(self) -> str:
        """That it is not known whether alerts are late; empty when it is."""
        if not self.unknown:
            return ""
        return (
            f"{self.unknown[0]}: how late it is is not known: the subscription is not connected or gets nothing of "
            "what there is, or batches come from the future, by a clock that is not ours"
        )


def age_s(published_ms: int, now_s: float) -> float | None:
    """The age of a batch; None where the clock that published it and ours are too far apart to know."""
    found_s = now_s - published_ms / 1000
    return None if found_s < -CLOCKS_APART_S else max(found_s, 0.0)


def lag_of(partitions: Iterable[tuple[str, float | None]]) -> Lag:
    """Of the partitions of a process, each with its own; None: that is not known."""
    each: Mapping[str, float | None] = dict(partitions)
    known = {name: lag_s for name, lag_s in each.items() if lag_s is not None}
    furthest = max(known, key=lambda name: known[name], default="")
    return Lag(known.get(furthest), furthest, tuple(sorted(each.keys() - known.keys())))
