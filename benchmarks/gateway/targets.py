"""What was asked of a gateway beside what was measured; a benchmark that misses any of it ends with exit status 1."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Target:
    """One figure. `asked` and `measured`: with their units, as they are shown."""

    what: str
    asked: str
    measured: str
    is_met: bool


def are_met(targets: list[Target]) -> bool:
    """Prints each, and says whether all are met."""
    for one in targets:
        word = "met" if one.is_met else "NOT MET"
        print(f"{one.what:58} {one.measured:>16}   asked {one.asked:16} {word}", flush=True)
    return all(one.is_met for one in targets)
