"""Messages that became raw records: how many, on which topic, why, and what they look like. Bounded."""

from __future__ import annotations

import math
import re
from dataclasses import asdict, dataclass
from typing import Any, Final

import structlog

from waybill.record import NO_FAULTS, vehicle_contract_topic

log = structlog.get_logger("edge_agent.intake")

MAX_KINDS: Final = 64
"""Pairs of topic and reason that are counted apart; all others of a reason are counted together."""
OTHER_TOPICS: Final = "(other topics)"
SAMPLE_CHARACTERS: Final = 80
LOGGED_EVERY_S: Final = 60.0
SHOWN_S: Final = 600.0
"""How long a message that could not be read is remembered in `state`."""
READABLE, SOME, NONE = "readable", "some unreadable", "none readable"
NOTHING: Final = "nothing of the contract"
UNHEALTHY: Final = {NONE, NOTHING}
FOREIGN_MESSAGES: Final = 100
"""So many on other topics before the first on one of the contract are `NOTHING`."""
MAX_MEANT: Final = 16
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
        self._foreign = 0
        self._has_contract = False
        self.meant_members: dict[str, str] = {}
        """Names that messages have in the place of an optional member of the contract, with that member. Bounded."""

    def add(self, topic: str, reason: str, payload: bytes, now_s: float, detail: str = "") -> None:
        """One more. Of each reason one line a minute is logged, without the payload: it may say where somebody is."""
        self._count_foreign(topic, now_s)
        if (topic, reason) not in self._kinds and len(self._kinds) >= MAX_KINDS:
            topic = OTHER_TOPICS
        kind = self._kinds.setdefault((topic, reason), UnreadableKind(_printable(topic), reason))
        kind.messages += 1
        kind.sample = _printable(payload[:_LOOKED_AT_BYTES].decode("utf-8", "replace"))
        kind.looks_like = looks_like(payload) or _printable(detail)
        if reason in NO_FAULTS:
            return
        self._unreadable_at_s = now_s
        if self._may_log(reason, now_s):
            log.warning(
                "a message cannot be read and is carried raw, in no bill: see `edge-agent status`",
                topic=kind.topic,
                reason=reason,
                messages=kind.messages,
                looks_like=kind.looks_like,
            )

    def add_meant(self, topic: str, name: str, member: str, now_s: float) -> None:
        """A message was read without a member that it has under another name; logged as those that cannot be read."""
        name = _printable(name)
        if name not in self.meant_members and len(self.meant_members) >= MAX_MEANT:
            return
        self.meant_members[name] = member
        if self._may_log(f"`{name}`", now_s):
            log.warning(
                "a member of messages is ignored, as the contract does not have it: see `edge-agent status`",
                topic=_printable(topic),
                member=name,
                did_you_mean=member,
            )

    def _count_foreign(self, topic: str, now_s: float) -> None:
        if vehicle_contract_topic(topic) is not None:
            self._has_contract = True
            return
        self._foreign += 1
        if self._is_foreign_alone() and self._may_log(NOTHING, now_s):
            log.warning(
                "messages come, and none on a topic of the contract: see `edge-agent status`",
                topic=_printable(topic),
                messages=self._foreign,
            )

    def _is_foreign_alone(self) -> bool:
        return self._foreign >= FOREIGN_MESSAGES and not self._has_contract and self.readable_at_s == -math.inf

    def _may_log(self, what: str, now_s: float) -> bool:
        if now_s - self._logged_at_s.get(what, -math.inf) < LOGGED_EVERY_S:
            return False
        self._logged_at_s[what] = now_s
        return True

    def state(self, now_s: float) -> str:
        """Of the last SHOWN_S: whether all messages of the contract's topics could be read, some, or none.

        `NOTHING`: many messages came since the settings were loaded, and none on such a topic.
        """
        if self._is_foreign_alone():
            return NOTHING
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
