"""Which fixes are taken at all, in the order in which they are evaluated."""

from __future__ import annotations

from typing import Final

import numpy as np

from gateway.alerts.device_slots import FIX, DeviceSlots
from gateway.alerts.evaluation_settings import EvaluationSettings
from gateway.alerts.fix_columns import FixColumns
from gateway.alerts.passed_over import PassedOver
from gateway.alerts.slot_rows import Records
from geo.spatial import TrackSettings, valid_positions
from geo.spatial.ragged import Bools, Ints, run_starts

_MOST_BEHIND_MS: Final = 400 * 86_400_000
"""Of a fix that is older, the centre computes nothing either."""


def arrived(
    fixes: FixColumns,
    now_ms: int,
    *,
    slots: DeviceSlots,
    tracks: TrackSettings,
    settings: EvaluationSettings,
    passed_over: PassedOver,
) -> tuple[Ints, Records]:
    """The fixes that are taken, as rows (FIX) with their slots: by slot and time, each time once, all after the anchors
    of their devices. What is not taken is counted.
    """
    usable = _usable(fixes, now_ms, settings, passed_over)
    slot = _slot_of_row(fixes, usable, slots, now_ms)
    passed_over.no_room += int(np.count_nonzero(slot < 0))
    usable, slot = usable[slot >= 0], slot[slot >= 0]
    order = _order(fixes, usable, slot)
    slot, rows = slot[order], _rows(fixes, usable[order])
    t_ms, device, anchor = rows["t_ms"], slots.device, slots.anchor
    again = ~run_starts(slot, t_ms) if len(slot) else np.zeros(0, dtype=np.bool_)
    again |= t_ms == device["excluded_ms"][slot]
    placed = device["placed"][slot]
    again |= placed & (t_ms == anchor["t_ms"][slot])
    late = placed & (t_ms < anchor["t_ms"][slot])
    passed_over.repeated += int(np.count_nonzero(again))
    passed_over.too_late += int(np.count_nonzero(late & ~again))
    excluded = _excluded(rows, tracks) & ~again
    passed_over.excluded += int(np.count_nonzero(excluded & ~late))
    # an equal time is taken once, whatever the first one was
    np.maximum.at(device["excluded_ms"], slot[excluded], t_ms[excluded])
    taken = ~(again | late | excluded)
    return slot[taken], rows[taken]


def _usable(fixes: FixColumns, now_ms: int, settings: EvaluationSettings, passed_over: PassedOver) -> Ints:
    valid = valid_positions(fixes.latitude, fixes.longitude)
    ahead = fixes.t_ms > now_ms + round(settings.max_ahead_s * 1000)
    behind = fixes.t_ms < max(now_ms - _MOST_BEHIND_MS, 0)
    passed_over.invalid += int(np.count_nonzero(~valid))
    passed_over.clock_ahead += int(np.count_nonzero(valid & ahead))
    passed_over.clock_behind += int(np.count_nonzero(valid & behind))
    return np.flatnonzero(valid & ~ahead & ~behind)


def _slot_of_row(fixes: FixColumns, usable: Ints, slots: DeviceSlots, now_ms: int) -> Ints:
    source = fixes.source[usable]
    used = np.zeros(len(fixes.sources), dtype=np.bool_)
    used[source] = True
    numbers = np.flatnonzero(used)
    of_source = np.full(len(fixes.sources), -1, dtype=np.int64)
    of_source[numbers] = slots.of([fixes.sources[number] for number in numbers.tolist()], now_ms)
    return of_source[source]


def _order(fixes: FixColumns, usable: Ints, slot: Ints) -> Ints:
    """By slot, time, epoch and seq."""
    order = np.argsort(slot, kind="stable")
    rows = usable[order]
    slot, t_ms, seq = slot[order], fixes.t_ms[rows], fixes.seq[rows]
    ahead = (slot[1:] > slot[:-1]) | ((t_ms[1:] > t_ms[:-1]) & (seq[1:] > seq[:-1]))
    if ahead.all():
        return order
    epochs = np.array([source.epoch for source in fixes.sources], dtype=np.int64)
    again: Ints = np.lexsort((seq, epochs[fixes.source[rows]], t_ms, slot))
    return order[again]


def _rows(fixes: FixColumns, usable: Ints) -> Records:
    rows: Records = np.zeros(len(usable), dtype=FIX)
    for name in ("t_ms", "latitude", "longitude", "accuracy_m", "speed_mps", "seq", "received_ms"):
        rows[name] = getattr(fixes, name)[usable]
    # one place has one name
    rows["longitude"][rows["longitude"] == 180.0] = -180.0
    epochs = np.array([source.epoch for source in fixes.sources], dtype=np.int64)
    rows["epoch"] = epochs[fixes.source[usable]]
    return rows


def _excluded(rows: Records, tracks: TrackSettings) -> Bools:
    """What tracks leave out without a look at other fixes, as `build_tracks` does."""
    excluded = np.zeros(len(rows), dtype=np.bool_)
    if tracks.null_island_deg is not None:
        limit = tracks.null_island_deg
        excluded |= (np.abs(rows["latitude"]) < limit) & (np.abs(rows["longitude"]) < limit)
    if tracks.max_accuracy_m is not None:
        excluded |= rows["accuracy_m"] > tracks.max_accuracy_m
    return excluded
