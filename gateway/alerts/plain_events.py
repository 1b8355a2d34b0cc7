"""Events of devices by the whole engine over their last fixes, again for each change: slow, and plainly right."""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np

from gateway.alerts.live_fixes import FoundEvent, LiveFixes
from geo.spatial import (
    DayEvent,
    Fence,
    FenceSet,
    Fixes,
    Gate,
    GateSet,
    PublishedEventSettings,
    TrackSettings,
    build_tracks,
    end_fixes,
    find_events,
    identified,
    valid_positions,
)

__all__ = ["LiveRules", "PlainEvents"]

MAX_FIXES: Final = 20_000
"""Of a device so many are kept, the last ones by their time."""


@dataclass(frozen=True, slots=True, eq=False)
class LiveRules:
    """What decides what an event is, apart from the fixes. `max_age_ms`: older ones are left to the centre."""

    fences: FenceSet
    gates: GateSet
    tracks: TrackSettings
    events: PublishedEventSettings
    max_age_ms: int

    @classmethod
    def of(
        cls, places: Sequence[Fence | Gate], tracks: TrackSettings, events: PublishedEventSettings, max_age_ms: int
    ) -> LiveRules:
        """With the fences and gates in force."""
        fences = FenceSet([one for one in places if isinstance(one, Fence)])
        return cls(fences, GateSet([one for one in places if isinstance(one, Gate)]), tracks, events, max_age_ms)


class _Fix(NamedTuple):
    t_ms: int
    epoch: int
    seq: int
    latitude: float
    longitude: float
    accuracy_m: float
    speed_mps: float


@dataclass(slots=True)
class _Device:
    fixes: list[_Fix] = field(default_factory=list)
    records: set[tuple[int, int]] = field(default_factory=set)
    said: set[str] = field(default_factory=set)


class PlainEvents:
    """An evaluation (`LiveEvaluation`) that keeps each device's last fixes and looks at all of them each time."""

    def __init__(self, rules: LiveRules) -> None:
        self._rules = rules
        self._devices: dict[tuple[str, str], _Device] = {}

    def change_rules(self, rules: LiveRules) -> None:
        """Other fences hold from now on; what they say of earlier fixes is left to the centre."""
        self._rules = rules
        for name, device in self._devices.items():
            device.said |= self._events(name, device).keys()

    def take(self, fixes: LiveFixes, now_ms: int, *, report: bool) -> Sequence[FoundEvent]:
        """See LiveEvaluation."""
        for name in sorted(self._add(fixes)):
            device = self._devices[name]
            del device.fixes[:-MAX_FIXES]
        return [found for name in fixes.devices for found in self._news(name, now_ms, report=report)]

    def _add(self, fixes: LiveFixes) -> set[tuple[str, str]]:
        usable = valid_positions(fixes.latitude, fixes.longitude)
        names = ("t_ms", "epoch", "seq", "latitude", "longitude", "accuracy_m", "speed_mps")
        columns = (getattr(fixes, name)[usable].tolist() for name in names)
        for number, *row in zip(fixes.device[usable].tolist(), *columns, strict=True):
            fix = _Fix(*row)
            device = self._devices.setdefault(fixes.devices[number], _Device())
            if (fix.epoch, fix.seq) not in device.records:
                device.records.add((fix.epoch, fix.seq))
                insort(device.fixes, fix)
        return {name for name in fixes.devices if name in self._devices}

    def _news(self, name: tuple[str, str], now_ms: int, *, report: bool) -> list[FoundEvent]:
        device = self._devices.get(name)
        if device is None:
            return []
        events = self._events(name, device)
        new = events.keys() - device.said
        device.said |= new
        if not report:
            return []
        return [
            FoundEvent(one, *name, events[one])
            for one in sorted(new, key=events.__getitem__)
            if events[one].t_ms >= now_ms - self._rules.max_age_ms
        ]

    def _events(self, name: tuple[str, str], device: _Device) -> dict[str, DayEvent]:
        t_ms, epoch, seq, *rest = (np.array(column) for column in zip(*device.fixes, strict=True))
        lat, lon, accuracy, speed = rest
        tracks = build_tracks(
            Fixes(
                device=np.zeros(len(t_ms), dtype=np.int64),
                t_ms=t_ms,
                lat=lat,
                lon=lon,
                accuracy_m=accuracy,
                speed_mps=speed,
            ),
            self._rules.tracks,
        )
        events = find_events(tracks, self._rules.fences, self._rules.gates, self._rules.events)
        rows = end_fixes(tracks, events)
        records = zip(epoch[rows].tolist(), seq[rows].tolist(), strict=True)
        return identified(
            *name,
            (
                DayEvent(one.t_ms, one.kind, one.place, one.value, *record)
                for one, record in zip(events, records, strict=True)
            ),
        )
