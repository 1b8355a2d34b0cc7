"""Batches that the other side will not take: each is tried again by itself, ever more seldom, and then set aside.

    on its way ──refused, or unanswered while later ones are acknowledged──▶ resting ──its pause is over──▶ on its way
                                                                               │
                                                                               │ refused too often
                                                                               ├─ several records ─▶ two halves, resting
                                                                               └─ one record ──────▶ set aside

Nothing is set aside on the word of a region that takes nothing: only if it acknowledged something else meanwhile. Pure:
handed the time.
"""

from __future__ import annotations

from dataclasses import dataclass

from edge_agent.store.block import Block

LONGEST_PAUSE_S = 3600.0
MOST_RESTING = 4096
"""Beyond so many refused blocks nothing new is sent, whatever else is acknowledged."""


@dataclass(slots=True)
class Resting:
    """A block that was refused `times`, first when sent at `first_s`. `due_s`: its next try; None while it is tried."""

    block: Block
    reason: str
    first_s: float
    times: int = 0
    due_s: float | None = None


class Refusals:
    """The blocks that were refused and are not set aside. `few`: so many at once may all be bad."""

    def __init__(self, most: int, pause_s: float, few: int) -> None:
        self._most = most
        self._pause_s = pause_s
        self._few = few
        self._known: dict[int, Resting] = {}
        self._acknowledged_s = float("-inf")

    def __len__(self) -> int:
        return len(self._known)

    def __contains__(self, identity: int) -> bool:
        return identity in self._known

    @property
    def is_all(self) -> bool:
        """Whether so much is refused, and nothing else taken, that it lies with the region and not with the batches."""
        if len(self._known) < self._few:
            return False
        first = next(iter(self._known.values()))
        return len(self._known) >= MOST_RESTING or self._acknowledged_s < first.first_s

    def refused(self, now_s: float, block: Block, reason: str, sent_s: float) -> bool:
        """A block was refused once more; True when it was refused often enough to be set aside."""
        one = self._known.setdefault(block.id, Resting(block, reason, sent_s))
        one.times += 1
        one.reason = reason
        one.due_s = now_s + min(LONGEST_PAUSE_S, self._pause_s * (1 << min(one.times - 1, 30)))
        return one.times >= self._most and self._acknowledged_s >= one.first_s

    def halved(self, now_s: float, block: Block, reason: str, first_s: float) -> None:
        """A half of a block that was refused too often: it has one try."""
        self._known[block.id] = Resting(block, reason, first_s, self._most - 1, now_s + self._pause_s)

    def first_s(self, identity: int) -> float:
        """When a block was sent that was then refused for the first time."""
        return self._known[identity].first_s

    def returned(self, identity: int) -> None:
        """A block on its way was neither taken nor refused: it is due at once."""
        self._known[identity].due_s = 0.0

    def acknowledged(self, sent_s: float) -> None:
        """The region took something that was sent at this time."""
        self._acknowledged_s = max(sent_s, self._acknowledged_s)

    def is_passed_over(self, sent_s: float) -> bool:
        """Whether something was taken that was sent later."""
        return self._acknowledged_s > sent_s

    def forget(self, identity: int) -> None:
        """A block is safe, set aside or gone."""
        self._known.pop(identity, None)

    def clear(self) -> list[Block]:
        """Forgets all of them; which there were."""
        blocks = [one.block for one in self._known.values()]
        self._known.clear()
        return blocks

    def due(self, now_s: float, allowed: frozenset[int] | None) -> Block | None:
        """The block whose pause is over for the longest time. `allowed`: only these classes."""
        over = [
            (one.due_s, one.block)
            for one in self._known.values()
            if one.due_s is not None and one.due_s <= now_s and (allowed is None or one.block.class_index in allowed)
        ]
        return min(over, key=lambda entry: entry[0])[1] if over else None

    def sent(self, identity: int) -> None:
        """A block is on its way again."""
        if identity in self._known:
            self._known[identity].due_s = None

    def next_due_in(self, now_s: float) -> float | None:
        """Seconds until the next pause is over."""
        times = [one.due_s - now_s for one in self._known.values() if one.due_s is not None]
        return max(0.0, min(times)) if times else None
