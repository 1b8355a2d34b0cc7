"""Events of devices by the whole engine over their last fixes, again for each change: slow, and plainly right."""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np

from gateway.alerts.evaluation import FoundEvent, PassedOver
from gateway.alerts.evaluation_settings import EvaluationSettings
from gateway.alerts.fix_columns import FixColumns, FixSource
from gateway.alerts.rules import AlertRules
from geo.spatial import (
    DayEvent,
    Fixes,
    build_tracks,
    end_fixes,
    find_events,
    identified,
    valid_positions,
)
from telemetry import Kind
from telemetry.columns import RecordColumns

__all__ = ["PlainEvents", "plain_columns"]

MAX_FIXES: Final = 20_000
"""Of a device so many are kept, the last ones by their time."""


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
    """An evaluation like `LiveEvents` that keeps each device's last fixes and looks at all of them each time."""

    def __init__(self, rules: AlertRules, settings: EvaluationSettings | None = None) -> None:
        self._rules, self._settings = rules, settings or EvaluationSettings()
        self._devices: dict[tuple[str, str], _Device] = {}
        self.passed_over = PassedOver()

    @property
    def device_count(self) -> int:
        """Of how many devices something is held."""
        return len(self._devices)

    def replace_rules(self, rules: AlertRules) -> None:
        """Other fences hold from now on; what they say of earlier fixes is left to the centre."""
        self._rules = rules
        for name, device in self._devices.items():
            device.said |= self._events(name, device).keys()

    def take(self, fixes: FixColumns, now_ms: int, *, report: bool = True) -> list[FoundEvent]:
        """What is new, by device and time."""
        received_ms = self._add(fixes)
        return [
            found
            for name in sorted(received_ms)
            for found in self._news(name, now_ms, received_ms[name], report=report)
        ]

    def _add(self, fixes: FixColumns) -> dict[tuple[str, str], int]:
        usable = valid_positions(fixes.latitude, fixes.longitude)
        names = ("source", "t_ms", "seq", "latitude", "longitude", "accuracy_m", "speed_mps", "received_ms")
        columns = (getattr(fixes, name)[usable].tolist() for name in names)
        touched: dict[tuple[str, str], int] = {}
        for source, t_ms, seq, *rest, received_ms in zip(*columns, strict=True):
            tenant, name, epoch = fixes.sources[source]
            device = self._devices.setdefault((tenant, name), _Device())
            touched[tenant, name] = received_ms
            if (epoch, seq) not in device.records:
                device.records.add((epoch, seq))
                insort(device.fixes, _Fix(t_ms, epoch, seq, *rest))
                del device.fixes[:-MAX_FIXES]
        return touched

    def _news(self, name: tuple[str, str], now_ms: int, received_ms: int, *, report: bool) -> list[FoundEvent]:
        device = self._devices[name]
        events = self._events(name, device)
        new = events.keys() - device.said
        device.said |= new
        if not report:
            return []
        oldest_ms = now_ms - self._settings.max_age_s * 1000
        young = [one for one in new if events[one].t_ms >= oldest_ms]
        self.passed_over.too_old += len(new) - len(young)
        return [FoundEvent(*name, one, events[one], received_ms) for one in sorted(young, key=lambda one: events[one])]

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


def plain_columns(batches: Sequence[tuple[str, RecordColumns, int]]) -> FixColumns:
    """The fixes of decoded batches, each with its tenant and when the region's cluster had it."""
    rows = [np.flatnonzero(columns.kind == Kind.POSITION) for _, columns, _ in batches]
    counts = [len(one) for one in rows]

    def joined(name: str) -> Any:
        return np.concatenate([getattr(columns, name)[row] for (_, columns, _), row in zip(batches, rows, strict=True)])

    return FixColumns(
        sources=[FixSource(tenant, columns.header.device, columns.header.epoch) for tenant, columns, _ in batches],
        source=np.repeat(np.arange(len(batches)), counts),
        seq=joined("seq"),
        t_ms=joined("device_time_us") // 1000,
        latitude=joined("latitude"),
        longitude=joined("longitude"),
        accuracy_m=joined("accuracy_m"),
        speed_mps=joined("speed_mps"),
        received_ms=np.repeat(np.array([received_ms for _, _, received_ms in batches], dtype=np.int64), counts),
    )
