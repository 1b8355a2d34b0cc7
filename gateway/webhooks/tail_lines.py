"""A line for each alert and verdict, for a terminal or a program. Pure."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Final

from rich.text import Text

from gateway.webhooks.tail import SeenAlert
from geo.alerts import Alert, AlertVerdict
from settings import one_line

__all__ = ["HEADER", "json_line", "table_line"]

_WIDTHS: Final = (12, 11, 8, 9, 20, 24, 8, 8, 8)
_NAMES: Final = ("device time", "state", "region", "kind", "place", "device", "seen", "raised", "here")
_COLOURS: Final = {
    "provisional": "yellow",
    "confirmed": "green",
    "corrected": "cyan",
    "withdrawn": "red",
    "late": "magenta",
}


def _cells(*words: str) -> str:
    cells = (one_line(word, width).ljust(width) for word, width in zip(words, _WIDTHS, strict=True))
    return " ".join(cells).rstrip()


HEADER: Final = _cells(*_NAMES)


def table_line(seen: SeenAlert) -> Text:
    """One line. `seen`: from the device's clock to the region; `raised`: from there to the alert, or from the device's
    clock to the verdict; `here`: from then until it could be read here."""
    said = seen.said
    if isinstance(said, Alert):
        state, t_ms, region = "provisional", said.t_ms, said.region
        times = (said.received_ms - said.t_ms, said.raised_ms - said.received_ms, seen.read_ms - said.raised_ms)
        seen_s, raised_s, here_s = map(_seconds, times)
    else:
        state, region, seen_s = said.verdict.value, "", ""
        t_ms = _event_ms(said)
        raised_s, here_s = _seconds(said.decided_ms - t_ms), _seconds(seen.read_ms - said.decided_ms)
    # a withdrawal that does not say of what still has its id
    place = seen.place or f"id {said.id}"
    cells = (_clock(t_ms), state, region, seen.kind or "", place, said.device, seen_s, raised_s, here_s)
    return Text(_cells(*cells), style=_COLOURS[state])


def json_line(seen: SeenAlert) -> str:
    """The same as one JSON object: the message, its state, and when it could be read."""
    kind = "alert" if isinstance(seen.said, Alert) else "verdict"
    content = {"type": kind, "read_ms": seen.read_ms, kind: seen.said.model_dump(mode="json", exclude_none=True)}
    return json.dumps(content, ensure_ascii=False)


def _event_ms(verdict: AlertVerdict) -> int:
    about = verdict.event or verdict.alerted
    return verdict.decided_ms if about is None else about.t_ms


def _clock(t_ms: int) -> str:
    return f"{datetime.fromtimestamp(t_ms / 1000, UTC):%H:%M:%S.%f}"[:12]


def _seconds(ms: int) -> str:
    return f"{ms / 1000:+.2f} s" if abs(ms) < 100_000 else f"{ms / 3_600_000:+.1f} h"
