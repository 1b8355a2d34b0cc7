"""Messages that became raw records: how many, on which topic, why, and what they look like. Bounded."""

from __future__ import annotations

import math
import re
from dataclasses import asdict, dataclass
from typing import Any, Final

import structlog

from telemetry import NO_FAULTS

log = structlog.get_logger("edge_agent.intake")

MAX_KINDS: Final = 64
"""Pairs of topic and reason that are counted apart; all others of a reason are counted together."""
OTHER_TOPICS: Final = "(other topics)"
SAMPLE_CHARACTERS: Final = 80
LOGGED_EVERY_S: Final = 60.0
SHOWN_S: Final = 600.0
"""How long a message that could not be read is remembered in `state`."""
READABLE, SOME, NONE = "readable", "some unreadable", "none readable"
_LOOKED_AT_BYTES: Final = 4096
_MEMBER: Final = re.compile(r'"([A-Za-z_]{1,32})"\s*:')
_PARAMETER: Final = re.compile(r"(?:^|[?&])([A-Za-z_]{1,32})=")
_NMEA: Final = re.compile(r"\s*[$!][A-Z]{2}[A-Z]{3},")
_FORMATS: Final = (
    ("OwnTracks", ("lat", "lon", "tst")),
    ("Traccar (OsmAnd)", ("lat", "lon", "timestamp")),
    ("Traccar", ("latitude", "longitude", "fixTime")),
    ("GPSd TPV", ("class", "lat", "lon")),
)
"""Formats of others, with members that together only they have."""


@dataclass(slots=True)
class UnreadableKind:
    """Messages of one topic and reason. `sample`: the beginning of the last one, printable."""

    topic: str
    reason: str
    messages: int = 0
    looks_like: str = ""
    sample: str = ""


class UnreadableMessages:
    """What came and could not be read since the settings were loaded. One thread writes; times by one clock."""

    def __init__(self) -> None:
        self.readable_at_s = -math.inf
        """When a message of the contract was read last; its owner sets it."""
        self._unreadable_at_s = -math.inf
        self._kinds: dict[tuple[str, str], UnreadableKind] = {}
        self._logged_at_s: dict[str, float] = {}

    def add(self, topic: str, reason: str, payload: bytes, now_s: float) -> None:
        """One more. Of each reason one line a minute is logged, without the payload: it may say where somebody is."""
        if (topic, reason) not in self._kinds and len(self._kinds) >= MAX_KINDS:
            topic = OTHER_TOPICS
        kind = self._kinds.setdefault((topic, reason), UnreadableKind(_printable(topic), reason))
        kind.messages += 1
        kind.sample = _printable(payload[:_LOOKED_AT_BYTES].decode("utf-8", "replace"))
        kind.looks_like = looks_like(payload)
        if reason in NO_FAULTS:
            return
        self._unreadable_at_s = now_s
        if now_s - self._logged_at_s.get(reason, -LOGGED_EVERY_S) < LOGGED_EVERY_S:
            return
        self._logged_at_s[reason] = now_s
        log.warning(
            "a message cannot be read and is carried raw, in no bill: see `edge-agent status`",
            topic=kind.topic,
            reason=reason,
            messages=kind.messages,
            looks_like=kind.looks_like,
        )

    def state(self, now_s: float) -> str:
        """Of the last SHOWN_S: whether all messages of the contract's topics could be read, some, or none."""
        if now_s - self._unreadable_at_s >= SHOWN_S:
            return READABLE
        return SOME if now_s - self.readable_at_s < SHOWN_S else NONE

    def rows(self) -> list[dict[str, Any]]:
        """The kinds as plain values: the most frequent first, those that are no faults last. Any thread may ask."""
        kinds = sorted([*self._kinds.values()], key=lambda one: (one.reason in NO_FAULTS, -one.messages))
        return [asdict(kind) for kind in kinds]


def looks_like(payload: bytes) -> str:
    """The nearest known format and how it is known, as `OwnTracks: lat, lon, tst`; "" for none."""
    text = payload[:_LOOKED_AT_BYTES].decode("utf-8", "replace")
    if found := _NMEA.match(text):
        return f"NMEA 0183: {found[0].strip().rstrip(',')}"
    names = {*_MEMBER.findall(text), *_PARAMETER.findall(text)}
    for name, members in _FORMATS:
        if names.issuperset(members):
            return f"{name}: {', '.join(members)}"
    return ""


def _printable(text: str) -> str:
    """The beginning, without what a terminal would act on or not show."""
    shown = "".join(one if one.isprintable() else "·" for one in text[: SAMPLE_CHARACTERS + 1])
    return shown if len(shown) <= SAMPLE_CHARACTERS else f"{shown[: SAMPLE_CHARACTERS - 1]}…"
