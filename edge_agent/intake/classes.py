"""Which class a topic belongs to, and which topics new classes would move: exact for every topic that there may be."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

from paho.mqtt.client import topic_matches_sub

from edge_agent.config import ClassSettings

REMEMBERED_TOPICS = 1024
MAX_EXAMPLES = 1024
"""Topics that are looked at in one comparison; with more, every class is taken to have topics of every other."""
UNCOMPARED = "more topics than can be compared"

Moves = dict[tuple[int, int], tuple[str, ...]]
"""By the former and the new class of a topic, the filters of such topics."""


class Classifier:
    """Finds the first class that has a filter for a topic; topics that were seen lately are looked up."""

    def __init__(self, classes: Sequence[ClassSettings]) -> None:
        self._classes = classes
        self._known: dict[str, int] = {}

    def __call__(self, topic: str) -> int:
        """The index of the topic's class, which is also its priority: 0 comes first."""
        known = self._known.get(topic)
        if known is not None:
            return known
        if len(self._known) >= REMEMBERED_TOPICS:
            # Bounded: a publisher may make up topics without end.
            self._known.clear()
        index = self._known[topic] = self._search(topic)
        return index

    def _search(self, topic: str) -> int:
        for index, one in enumerate(self._classes):
            # A topic that begins with $ fits no wildcard (MQTT 5, 4.7.2), but a record must have a place.
            if any(pattern == "#" or topic_matches_sub(pattern, topic) for pattern in one.topics):
                return index
        raise AssertionError("the settings promise a class that takes everything")


class _Filter(NamedTuple):
    """A topic filter: its levels without the last `#`, and whether it had one."""

    levels: tuple[str, ...]
    is_open: bool

    @property
    def text(self) -> str:
        return "/".join((*self.levels, "#") if self.is_open else self.levels)


def topic_moves(former: Sequence[ClassSettings], new: Sequence[ClassSettings], subscription: str) -> Moves:
    """Where the topics go that `subscription` brings."""
    return _moves(tuple(one.topics for one in former), tuple(one.topics for one in new), subscription)


# A trial asks for the same comparison every half second.
@lru_cache(maxsize=2)
def _moves(former: tuple[tuple[str, ...], ...], new: tuple[tuple[str, ...], ...], subscription: str) -> Moves:
    old_class, new_class = _classifier(former), _classifier(new)
    moves: dict[tuple[int, int], dict[str, None]] = {}
    for number, (shared, topic) in enumerate(_examples(former, new, _parsed(subscription))):
        if number == MAX_EXAMPLES:
            return {(i, j): (UNCOMPARED,) for i in range(len(former)) for j in range(len(new))}
        moves.setdefault((old_class(topic), new_class(topic)), {})[shared.text] = None
    return {pair: tuple(names) for pair, names in moves.items()}


def _classifier(topics: Sequence[tuple[str, ...]]) -> Classifier:
    return Classifier([ClassSettings(name=f"c{index}", topics=one) for index, one in enumerate(topics)])


def _examples(
    former: Sequence[Sequence[str]], new: Sequence[Sequence[str]], subscription: _Filter
) -> Iterator[tuple[_Filter, str]]:
    """A topic of each length that a former, a new filter and the subscription have in common, with what they share.

    Its wildcards stand for a word that no filter has. So whatever other filter fits it fits every topic of that length
    that the three share: if any topic moves from one class to another, then one of these does.
    """
    old = dict.fromkeys(_shared(_parsed(one), subscription) for topics in former for one in topics)
    parsed = dict.fromkeys(_parsed(one) for topics in new for one in topics)
    known = {level for one in (*old, *parsed) if one for level in one.levels}
    word = next(word for word in ("x" * count for count in range(1, len(known) + 2)) if word not in known)
    longest = 1 + max(len(one.levels) for one in (*old, *parsed) if one)
    for shared in dict.fromkeys(_shared(one, other) for one in old if one for other in parsed):
        if shared is None:
            continue
        least = max(1, len(shared.levels))
        for length in range(least, 1 + (longest if shared.is_open else least)):
            levels = [word if level == "+" else level for level in shared.levels]
            yield shared, "/".join([*levels, *[word] * (length - len(levels))])


def _parsed(text: str) -> _Filter:
    levels = tuple(text.split("/"))
    return _Filter(levels[:-1], True) if levels[-1] == "#" else _Filter(levels, False)


def _shared(first: _Filter, second: _Filter) -> _Filter | None:
    """The filter of the topics that both fit; None if there are none."""
    short, long = sorted((first, second), key=lambda it: len(it.levels))
    if len(short.levels) < len(long.levels) and not short.is_open:
        return None
    levels = []
    for index, level in enumerate(long.levels):
        its = short.levels[index] if index < len(short.levels) else "+"
        if "+" not in (level, its) and level != its:
            return None
        levels.append(its if level == "+" else level)
    return _Filter(tuple(levels), first.is_open and second.is_open)
