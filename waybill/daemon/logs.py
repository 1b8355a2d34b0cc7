"""The log on standard error, with bounded lines and a bounded rate of each kind of line."""

from __future__ import annotations

import contextvars
import logging
import sys
import threading
import time
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass
from typing import Any, Literal

import structlog

from waybill.daemon.backoff import TokenBucket
from waybill.settings import Settings

PER_S = 1.0
"""Lines of one kind (level and event) a second, on average."""
BURST = 20.0
"""Lines of one kind at once. Suppressed lines are counted; the next line has the number as `suppressed`."""
MAX_CHARACTERS = 500
"""Of each value."""
_MAX_KINDS = 1000
_TOO_MANY = "other kinds"


class LogSettings(Settings):
    """The log on standard error."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """The least important lines that are written."""
    format: Literal["json", "console"] = "json"
    """One JSON object a line, or text for a terminal."""


@dataclass(slots=True)
class _Kind:
    bucket: TokenBucket
    suppressed: int = 0


class LineLimit:
    """A structlog processor that limits the rate of each kind of line. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        # Re-entrant: what the garbage collector ends in the middle of a line may log as well.
        self._lock = threading.RLock()
        self._kinds: dict[str, _Kind] = {}

    def __call__(self, _: Any, level: str, line: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        """The line with its values cut. Raises DropEvent for a line above the rate, which is counted."""
        now_s = self._clock()
        name = f"{level} {str(line.get('event'))[:MAX_CHARACTERS]}"
        with self._lock:
            kind = self._ensure_kind(name)
            if not kind.bucket.try_take(now_s):
                kind.suppressed += 1
                raise structlog.DropEvent
            if kind.suppressed:
                line["suppressed"], kind.suppressed = kind.suppressed, 0
        return {key: _cut(value) for key, value in line.items()}

    def take_suppressed(self) -> dict[str, int]:
        """The numbers of suppressed lines by kind since the last call."""
        with self._lock:
            counts = {name: kind.suppressed for name, kind in self._kinds.items() if kind.suppressed}
            for name in counts:
                self._kinds[name].suppressed = 0
        return counts

    def log_suppressed(self, log: Any) -> None:
        """Log the numbers of suppressed lines; to be called regularly and at the end."""
        if kinds := self.take_suppressed():
            log.warning("log lines suppressed", kinds=kinds)

    def _ensure_kind(self, name: str) -> _Kind:
        if name not in self._kinds and len(self._kinds) >= _MAX_KINDS:
            name = _TOO_MANY
        return self._kinds.setdefault(name, _Kind(TokenBucket(PER_S, BURST)))


def start_logging(settings: LogSettings, limit: LineLimit | None = None) -> LineLimit:
    """Log to standard error with these settings; returns the limit of the lines.

    `limit`: the former one, when the settings are loaded again; it keeps its counts.
    """
    limit = limit or LineLimit()
    # After the limit, which cuts values: a traceback stays whole.
    as_json = [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            limit,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *(as_json if settings.format == "json" else [structlog.dev.ConsoleRenderer()]),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[settings.level.upper()]),
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
    )
    return limit


def log_thread(name: str, run: Callable[[], None]) -> threading.Thread:
    """A daemon thread whose lines have the values that are bound for this one: `structlog.contextvars`."""
    return threading.Thread(target=contextvars.copy_context().run, args=(run,), name=name, daemon=True)


def _cut(value: Any) -> Any:
    if isinstance(value, int | float | bool | None):
        return value
    if isinstance(value, str):
        return value if len(value) <= MAX_CHARACTERS else f"{value[:MAX_CHARACTERS]}… ({len(value)} characters)"
    text = repr(value)
    return value if len(text) <= MAX_CHARACTERS else f"{text[:MAX_CHARACTERS]}… ({len(text)} characters)"
