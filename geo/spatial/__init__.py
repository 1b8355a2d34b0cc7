"""The spatial engine: fences, tracks, crossings and split lengths, pure and vectorised.

Use it in four steps, all on columns (numpy arrays):

    report = fences_from_geojson(text)                 # .fences, and .refused (messages with their place)
    zones = ZoneSet(report.fences)                     # priorities resolved, versions in their time, index built
    tracks = build_tracks(Fixes(device=..., t_ms=..., lat=..., lon=...), TrackSettings(max_gap_s=300))
    pieces = zones.split(tracks)                       # .end_fix .zone .metres .ms .entry

`pieces.end_fix` are rows of the `Fixes` that were given, `pieces.zone` indexes `zones.names` (-1: outside), so a
caller groups by device, hour and zone as it likes. A segment's pieces are a function of its two fixes alone: sums
over hours, batches or windows add up to the same bytes in whatever way the fixes were cut, if each part is given with
a margin of two gaps (`max_gap_s`) of time on each side (see `build_tracks`).

For every fence on its own, in place of a zone set: `use_by_fence(tracks, FenceSet(report.fences))`.
`docs/spatial.md` has the meaning of every word used here.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from geo.spatial.activity import ALWAYS, Activity
    from geo.spatial.charges import charged_crossings, charged_entries, is_sure
    from geo.spatial.encounters import Encounters, find_encounters
    from geo.spatial.errors import FenceError, FixError, SpatialError, TooManyEncounters
    from geo.spatial.event_ids import (
        DayEvent,
        Kind,
        Revision,
        fact_id,
        identified,
        in_force,
        is_identified_by,
        new_revisions,
        ordinals,
    )
    from geo.spatial.events import (
        EventSettings,
        GeofenceEvent,
        PublishedEventSettings,
        end_fixes,
        events_of,
        find_events,
    )
    from geo.spatial.fence_set import FenceSet
    from geo.spatial.fences import Fence
    from geo.spatial.fixes import Fixes, TrackRule, TrackSettings, valid_positions
    from geo.spatial.gates import Crossings, Gate, GateSet
    from geo.spatial.geojson import FenceReport, fences_from_geojson
    from geo.spatial.measure import ENGINE_VERSION, OUTSIDE, FenceUse, Pieces, ZoneSet, pieces_by_fence, use_by_fence
    from geo.spatial.tracks import Tracks, Verdict, build_tracks
    from geo.spatial.visits import Visits, VisitSettings, find_visits

__all__ = [
    "ALWAYS",
    "ENGINE_VERSION",
    "OUTSIDE",
    "Activity",
    "Crossings",
    "DayEvent",
    "Encounters",
    "EventSettings",
    "Fence",
    "FenceError",
    "FenceReport",
    "FenceSet",
    "FenceUse",
    "FixError",
    "Fixes",
    "Gate",
    "GateSet",
    "GeofenceEvent",
    "Kind",
    "Pieces",
    "PublishedEventSettings",
    "Revision",
    "SpatialError",
    "TooManyEncounters",
    "TrackRule",
    "TrackSettings",
    "Tracks",
    "Verdict",
    "VisitSettings",
    "Visits",
    "ZoneSet",
    "build_tracks",
    "charged_crossings",
    "charged_entries",
    "end_fixes",
    "events_of",
    "fact_id",
    "fences_from_geojson",
    "find_encounters",
    "find_events",
    "find_visits",
    "identified",
    "in_force",
    "is_identified_by",
    "is_sure",
    "new_revisions",
    "ordinals",
    "pieces_by_fence",
    "use_by_fence",
    "valid_positions",
]

_MODULES = {
    "activity": ("ALWAYS", "Activity"),
    "charges": ("charged_crossings", "charged_entries", "is_sure"),
    "encounters": ("Encounters", "find_encounters"),
    "errors": ("FenceError", "FixError", "SpatialError", "TooManyEncounters"),
    "event_ids": (
        "DayEvent",
        "Kind",
        "Revision",
        "fact_id",
        "identified",
        "in_force",
        "is_identified_by",
        "new_revisions",
        "ordinals",
    ),
    "events": ("EventSettings", "GeofenceEvent", "PublishedEventSettings", "end_fixes", "events_of", "find_events"),
    "fence_set": ("FenceSet",),
    "fences": ("Fence",),
    "fixes": ("Fixes", "TrackRule", "TrackSettings", "valid_positions"),
    "gates": ("Crossings", "Gate", "GateSet"),
    "geojson": ("FenceReport", "fences_from_geojson"),
    "measure": ("ENGINE_VERSION", "OUTSIDE", "FenceUse", "Pieces", "ZoneSet", "pieces_by_fence", "use_by_fence"),
    "tracks": ("Tracks", "Verdict", "build_tracks"),
    "visits": ("Visits", "VisitSettings", "find_visits"),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """A public name, imported on first use: code that only checks ids must not load Shapely and PROJ."""
        if name not in _MODULE_OF:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = getattr(import_module(f"geo.spatial.{_MODULE_OF[name]}"), name)
        globals()[name] = found
        return found
