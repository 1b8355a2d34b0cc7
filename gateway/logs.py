"""The log on standard error: bounded in the length of a line, and in the lines of one kind."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass
from typing import Any

import structlog

from gateway.config import Log

PER_S = 1.0
"""So many lines of one kind (level and event) a second in the long run ..."""
BURST = 20.0
"""... and so many at once. Those above are counted: the next line of the kind has the number as `suppressed`."""
MAX_CHARACTERS = 500
"""Of each value."""
_MAX_KINDS = 1000
_TOO_MANY = "other kinds"


@dataclass(slots=True)
class _Kind:
    left: float
    at_s: float
    suppressed: int = 0


class LineLimit:
    """A processor for structlog that lets a bounded number of lines of each kind pass."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._kinds: dict[str, _Kind] = {}

    def __call__(self, _: Any, level: str, line: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        """The line, its values cut; or DropEvent, and it is counted."""
        now_s = self._clock()
        name = f"{level} {str(line.get('event'))[:MAX_CHARACTERS]}"
        kind = self._kind(name, now_s)
        kind.left = min(BURST, kind.left + (now_s - kind.at_s) * PER_S)
        kind.at_s = now_s
        if kind.left < 1:
            kind.suppressed += 1
            raise structlog.DropEvent
        kind.left -= 1
        if kind.suppressed:
            line["suppressed"], kind.suppressed = kind.suppressed, 0
        return {key: _cut(value) for key, value in line.items()}

    def take_suppressed(self) -> dict[str, int]:
        """How many lines of each kind were suppressed since a line of it was written; they count as said now."""
        counts = {name: kind.suppressed for name, kind in self._kinds.items() if kind.suppressed}
        for name in counts:
            self._kinds[name].suppressed = 0
        return counts

    def _kind(self, name: str, now_s: float) -> _Kind:
        if name not in self._kinds and len(self._kinds) >= _MAX_KINDS:
            name = _TOO_MANY
        return self._kinds.setdefault(name, _Kind(BURST, now_s))


def start_logging(log: Log) -> LineLimit:
    """Log to standard error as these settings say; the limit that the lines pass through."""
    limit = LineLimit()
    renderer = structlog.processors.JSONRenderer() if log.format == "json" else structlog.dev.ConsoleRenderer()
    structlog.configure(
        processors=[
            limit,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[log.level.upper()]),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    return limit


def _cut(value: Any) -> Any:
    if isinstance(value, int | float | bool | None):
        return value
    if isinstance(value, str):
        return value if len(value) <= MAX_CHARACTERS else f"{value[:MAX_CHARACTERS]}… ({len(value)} characters)"
    text = repr(value)
    return value if len(text) <= MAX_CHARACTERS else f"{text[:MAX_CHARACTERS]}… ({len(text)} characters)"
