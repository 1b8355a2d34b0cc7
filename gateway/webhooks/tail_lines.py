"""A line for each alert and verdict, for a terminal or a program. Pure."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from rich.text import Text

from gateway.webhooks.exact_json import with_exact_ids
from gateway.webhooks.tail import SeenAlert
from geo.alerts import Alert
from waybill.settings import one_line, printable_json

__all__ = ["HEADER", "json_line", "table_line"]

_WIDTHS: Final = (12, 11, 8, 9, 20, 24, 8, 8, 8, 8)
_NAMES: Final = ("device time", "state", "region", "kind", "place", "device", "seen", "raised", "decided", "here")
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
    """One line. `device time`: UTC, of another day without seconds. `seen`: from there to the region; `raised`: from
    that to the alert; `decided`: from the device time to the verdict; `here`: from the alert or the verdict until it
    could be read here."""
    said = seen.said
    if isinstance(said, Alert):
        state, region = "provisional", said.region
        times = (said.received_ms - said.t_ms, said.raised_ms - said.received_ms, seen.read_ms - said.raised_ms)
        seen_s, raised_s, here_s = map(_seconds, times)
        at, decided_s = _clock(said.t_ms, seen.read_ms), ""
    else:
        state, region, seen_s, raised_s = said.verdict.value, "", "", ""
        about = said.event or said.alerted
        # a withdrawal that does not say of what says nothing of the device's time
        at = "" if about is None else _clock(about.t_ms, seen.read_ms)
        decided_s = "" if about is None else _seconds(said.decided_ms - about.t_ms)
        here_s = _seconds(seen.read_ms - said.decided_ms)
    # a withdrawal that does not say of what still has its id
    place = seen.place or f"id {said.id}"
    cells = (at, state, region, seen.kind or "", place, said.device, seen_s, raised_s, decided_s, here_s)
    return Text(_cells(*cells), style=_COLOURS[state])


def json_line(seen: SeenAlert) -> str:
    """The same as one JSON object: the message, which of both it is, and when it could be read."""
    kind = "alert" if isinstance(seen.said, Alert) else "verdict"
    said = with_exact_ids(seen.said.model_dump(mode="json", exclude_none=True))
    content = {"type": kind, "read_ms": seen.read_ms, kind: said}
    return printable_json(content)


def _clock(t_ms: int, read_ms: int) -> str:
    at, read_at = (datetime.fromtimestamp(ms / 1000, UTC) for ms in (t_ms, read_ms))
    # a verdict may come days later
    return f"{at:%H:%M:%S.%f}"[:12] if at.date() == read_at.date() else f"{at:%m-%d %H:%M}"


def _seconds(ms: int) -> str:
    return f"{ms / 1000:+.2f} s" if abs(ms) < 100_000 else f"{ms / 3_600_000:+.1f} h"
