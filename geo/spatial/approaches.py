"""How near devices came to places."""

from __future__ import annotations

import numpy as np

from geo.spatial.clip import Segments, segments_of
from geo.spatial.encounters import Encounters, encounters_among, joined
from geo.spatial.ragged import Floats
from geo.spatial.tracks import Tracks


def find_approaches(tracks: Tracks, lon: Floats, lat: Floats, within_m: float) -> Encounters:
    """Each time that a device comes within a distance of a place: `device_a` is the place's number, `device_b` the
    device. A place is a thing that stands still: the same interpolation as between two devices, the same closest
    approach.
    """
    segments = segments_of(tracks)
    if not len(segments) or not len(lon):
        return joined([])
    device = tracks.fixes.device[tracks.row[tracks.segments()]]
    start, end = float(segments.start_ms.min()), float(segments.end_ms.max())
    places, ones = len(lon), np.ones(len(lon))
    both = Segments(
        px=np.concatenate([lon, segments.px]),
        py=np.concatenate([lat, segments.py]),
        qx=np.concatenate([lon, segments.qx]),
        qy=np.concatenate([lat, segments.qy]),
        start_ms=np.concatenate([start * ones, segments.start_ms]),
        end_ms=np.concatenate([end * ones, segments.end_ms]),
    )
    shift = places - int(device.min())
    numbers = np.concatenate([np.arange(places), device + shift])
    kind = np.repeat([1, 2], [places, len(segments)])
    found = encounters_among(both, numbers, within_m, apart=kind)
    return Encounters(found.device_a, found.device_b - shift, found.start_ms, found.end_ms, found.min_m, found.t_min_ms)
