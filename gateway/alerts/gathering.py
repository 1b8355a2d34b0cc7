"""How long batches gather before they are evaluated together. Pure.

An evaluation of ten batches costs nearly as much as one of a hundred. So while few come, evaluations keep a distance
that follows from what they cost: they take a third of a thread, and the rest of the machine is left to others, as far
as no alert waits long for that.
"""

from __future__ import annotations

from typing import Final

__all__ = ["MAX_PAUSE_S", "pause_s"]

MAX_PAUSE_S: Final = 0.02
"""An alert waits no longer for this."""
_TIMES: Final = 2.0


def pause_s(took_s: float, messages: int, many: int) -> float:
    """The pause after an evaluation of so many messages that took so long; none where `many` or more wait."""
    return 0.0 if messages >= many else min(_TIMES * took_s, MAX_PAUSE_S)
