"""Ways between two fixes on which surely nothing happens: most of them, and the cheapest."""

from __future__ import annotations

from typing import Final

import numpy as np

from gateway.alerts.rules import AlertRules
from gateway.alerts.slot_rows import Records
from geo.spatial.clip import Segments
from geo.spatial.geodesic import unwrapped_end
from geo.spatial.ragged import Bools, Floats

_DEGREE_M: Final = 111_700.0
"""Longer than a degree is anywhere, in metres: of latitude at the poles 111,694, of longitude at most 111,320."""


def surely_plain(start: Records, end: Records, limit_mps: Floats, rules: AlertRules) -> Bools:
    """Of ways between fixes (FIX): those that are no break, cross no border and no gate, on which no fence comes into
    force or goes out of it, and whose speed is not above a limit.
    """
    t_ms, until_ms = start["t_ms"].astype(np.float64), end["t_ms"].astype(np.float64)
    seconds = (until_ms - t_ms) / 1000.0
    lon = unwrapped_end(start["longitude"], end["longitude"])
    most_m = _at_most_m(start, end, lon)
    tracks = rules.tracks
    plain = seconds <= tracks.max_gap_s
    if tracks.max_speed_mps is not None:
        plain &= most_m <= tracks.max_speed_mps * seconds
    reported = end["speed_mps"]
    plain &= np.where(np.isnan(reported), most_m <= limit_mps * seconds, reported <= limit_mps)
    rows = np.flatnonzero(plain)
    segments = Segments(
        px=start["longitude"][rows],
        py=start["latitude"][rows],
        qx=lon[rows],
        qy=end["latitude"][rows],
        start_ms=t_ms[rows],
        end_ms=until_ms[rows],
    )
    plain[rows] = ~rules.fences.may_change(segments)
    if rules.gates.gates:
        plain[rows] &= ~rules.gates.may_cross(segments)
    return np.asarray(plain, dtype=np.bool_)


def _at_most_m(start: Records, end: Records, lon: Floats) -> Floats:
    """No way is longer than this."""
    nearest = np.minimum(np.abs(start["latitude"]), np.abs(end["latitude"]))
    wide = np.abs(lon - start["longitude"]) * np.cos(np.radians(nearest))
    return np.asarray(_DEGREE_M * np.hypot(wide, end["latitude"] - start["latitude"]), dtype=np.float64)
