"""Where a value stands: a path inside a message, and a level of its topic.

A path is names with points between, `a.b`; a name with other signs stands in double quotes, `"a.b".c`; `[0]` is an
element of an array, and `[name=text]` is its first object whose member `name` is that text; `.` is the whole element.
It starts at the element that `each` gives: `../a` starts one object above, `/a` at the whole message.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple

MAX_PATH_CHARACTERS: Final = 256
MAX_TOPIC_LEVELS: Final = 32
_STEP = re.compile(
    r'\[([0-9]{1,6})\]|\[([^\s."\[\]/\\=]+)=([^\[\]"]{1,128})\]|"((?:[^"\\]|\\.){1,256})"|([^\s."\[\]/\\]+)'
)
_LEVEL_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,31}")
ROOT: Final = -1
"""`up` of a path that starts at the whole message."""


class Mark:
    """A result that is no value."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return self._name


MISSING: Final = Mark("MISSING")
"""What a path gives where the message has nothing; null is a value."""


class Selector(NamedTuple):
    """The first object of an array whose member `name` is `text`."""

    name: str
    text: str


Step = str | int | Selector


class MessagePath(NamedTuple):
    """`up`: how many objects above the element it starts, or ROOT. `steps`: names of members and places in arrays."""

    up: int
    steps: tuple[Step, ...]


def parse_path(text: str) -> MessagePath:
    """Raises ValueError."""
    rest, up = text, 0
    if not text or len(text) > MAX_PATH_CHARACTERS:
        raise ValueError(f"a path has 1 to {MAX_PATH_CHARACTERS} characters; the whole element is '.'")
    if rest.startswith("/"):
        rest, up = rest[1:], ROOT
    while rest.startswith("../"):
        rest, up = rest[3:], up + 1
    if rest == ".":
        return MessagePath(up, ())
    steps: list[Step] = []
    at = 0
    while at < len(rest):
        if steps and rest[at] == ".":
            at += 1
        elif steps and rest[at] != "[":
            break
        match = _STEP.match(rest, at)
        if match is None:
            break
        steps.append(_step(match))
        at = match.end()
    if at < len(rest) or not steps or rest.endswith("."):
        raise ValueError(
            f'{text!r} is not a path, see character {len(text) - len(rest) + at + 1}: write a.b, "a b".c or a[0]'
        )
    return MessagePath(up, tuple(steps))


def _step(match: re.Match[str]) -> Step:
    index, selected, text, quoted, bare = match.groups()
    if index is not None:
        return int(index)
    if selected is not None:
        return Selector(selected, text)
    return bare if quoted is None else re.sub(r"\\(.)", r"\1", quoted)


def follow(value: Any, steps: Sequence[Step]) -> Any:
    """The value at the end of the steps, or MISSING."""
    for step in steps:
        if isinstance(step, str):
            if type(value) is not dict:
                return MISSING
            value = value.get(step, MISSING)
        elif isinstance(step, Selector):
            value = _selected(value, step)
        elif type(value) is list and step < len(value):
            value = value[step]
        else:
            return MISSING
    return value


def _selected(value: Any, selector: Selector) -> Any:
    if type(value) is not list:
        return MISSING
    name, text = selector
    return next((one for one in value if type(one) is dict and one.get(name) == text), MISSING)


Enclosing = tuple[Any, ...]
"""The objects around an element, the nearest first. The last one is the whole message, or its part of an array."""
Reader = Callable[[Any, Enclosing, Mapping[str, str]], Any]
"""From an element, the objects around it, and the levels of the topic, to a value or MISSING."""


def path_reader(path: MessagePath) -> Reader:
    """A function that reads the value at a path."""
    up, steps = path
    if up == 0:
        if len(steps) == 1 and isinstance(steps[0], str):
            (name,) = steps
            return lambda element, _around, _levels: element.get(name, MISSING) if type(element) is dict else MISSING
        return lambda element, _around, _levels: follow(element, steps)
    if up == ROOT:
        return lambda element, around, _levels: follow(around[-1] if around else element, steps)
    place = up - 1
    return lambda _element, around, _levels: follow(around[place], steps) if place < len(around) else MISSING


def level_reader(name: str) -> Reader:
    """A function that reads a named level."""
    return lambda _element, _around, levels: levels[name]


def constant_reader(value: Any) -> Reader:
    """A function that gives always the same value."""
    return lambda _element, _around, _levels: value


EVERY: Final = "*"
"""A step of `each`: all members of an object."""


def elements_of(value: Any, steps: Sequence[Step]) -> list[tuple[Any, Enclosing]]:
    """The elements at a path that passes through arrays, each with the objects around it."""
    reached = _spread([(value, ())])
    for step in steps:
        inner: list[tuple[Any, Enclosing]] = []
        for element, around in reached:
            if step == EVERY:
                below = list(element.values()) if type(element) is dict else []
            else:
                below = [follow(element, (step,))]
            inner += [(one, (element, *around)) for one in below if one is not MISSING and one is not None]
        reached = _spread(inner)
    return reached


def _spread(reached: list[tuple[Any, Enclosing]]) -> list[tuple[Any, Enclosing]]:
    if not any(type(one) is list for one, _ in reached):
        return reached
    flat: list[tuple[Any, Enclosing]] = []
    for one, around in reached:
        flat += [(inner, around) for inner in one] if type(one) is list else [(one, around)]
    return flat


class TopicPattern:
    """A topic with named levels: `{name}` is a level that gets a name, `+` another one, a last `#` all that follow.

    `fixed`: by name, levels that have to be this text.
    """

    def __init__(self, text: str, fixed: Mapping[str, str] = MappingProxyType({})) -> None:
        """Raises ValueError."""
        levels = text.split("/")
        if not text or len(text) > 1024 or len(levels) > MAX_TOPIC_LEVELS or "\0" in text:
            raise ValueError(f"a topic has 1 to {MAX_TOPIC_LEVELS} levels")
        self.text = text
        self.is_open = levels[-1] == "#"
        """Whether further levels may follow."""
        self.names = {place: level[1:-1] for place, level in enumerate(levels) if level.startswith("{")}
        """The names of levels, by place."""
        self.levels = tuple(
            fixed.get(level[1:-1]) if level.startswith("{") else None if level == "+" else level
            for level in levels[: len(levels) - self.is_open]
        )
        """What a topic has in each place; None: anything."""
        for level in levels:
            _check_level(level, text)
        if "#" in levels[:-1]:
            raise ValueError(f"{text!r}: '#' can only be the last level")
        if len(set(self.names.values())) < len(self.names):
            raise ValueError(f"{text!r}: two levels have the same name")

    @property
    def filter(self) -> str:
        """The MQTT filter of the same topics."""
        parts = ["+" if level is None else level for level in self.levels]
        return "/".join([*parts, "#"] if self.is_open else parts)

    def match(self, topic: str) -> dict[str, str] | None:
        """The named levels of a topic; None for a topic that does not follow the pattern."""
        from paho.mqtt.client import topic_matches_sub  # noqa: PLC0415 - commands that read no message do without

        parts = topic.split("/")
        return {n: parts[at] for at, n in self.names.items()} if topic_matches_sub(self.filter, topic) else None

    def overlaps(self, other: TopicPattern) -> bool:
        """Whether a topic may follow both patterns."""
        shorter, longer = sorted((self, other), key=lambda one: len(one.levels))
        if len(shorter.levels) < len(longer.levels) and not shorter.is_open:
            return False
        pairs = zip(self.levels, other.levels, strict=False)
        return all(mine is None or theirs is None or mine == theirs for mine, theirs in pairs)

    def level_at(self, name: str) -> int | None:
        """The place of a named level."""
        return next((place for place, level in self.names.items() if level == name), None)


def _check_level(level: str, text: str) -> None:
    if level in {"+", "#"}:
        return
    if level.startswith("{") and level.endswith("}"):
        if not _LEVEL_NAME.fullmatch(level[1:-1]):
            raise ValueError(f"{text!r}: {level} is not a named level: use letters, digits and _, as in {{vehicle}}")
    elif set(level) & set("{}+#"):
        raise ValueError(f"{text!r}: {level!r} mixes text and a wildcard: {{name}}, + and # are whole levels")
