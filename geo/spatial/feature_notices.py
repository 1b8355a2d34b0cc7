"""What a feature that can be used may mean otherwise: a property that is almost one that counts. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches
from typing import Any, Final

from geo.spatial.ids import given_properties

__all__ = ["MAX_NOTICES", "PROPERTIES", "feature_notices"]

PROPERTIES: Final = (
    "id",
    "priority",
    "effective_from",
    "effective_until",
    "weekly",
    "speed_limit_mps",
    "radius_m",
    "width_m",
    "gate",
)
"""The properties of a feature that mean something here; others are the publisher's own."""
MAX_NOTICES: Final = 20
"""So many properties of a feature are named."""
_SIMILAR: Final = 0.8
"""As much as `radius` is like `radius_m`. With less, `date` would be taken for `gate`."""
_SHOWN_CHARS: Final = 60
_MAX_LOOKED_AT: Final = 1_000


def feature_notices(feature: dict[str, Any]) -> tuple[str, ...]:
    """Of each property that is ignored, and may be meant as one that counts, which that may be."""
    return tuple(said for said, _ in zip(_notices(feature), range(MAX_NOTICES), strict=False))


def _notices(feature: dict[str, Any]) -> Iterator[str]:
    given = given_properties(feature)
    absent = [name for name in PROPERTIES if name not in given]
    for name in [*given][:_MAX_LOOKED_AT]:
        if name not in PROPERTIES and (near := _nearest(name, absent)):
            yield f"the property {name!r} means nothing here, and is ignored: did you mean {near}?"
    for name in absent:
        if name != "id" and name in feature:
            yield f"{name} stands beside its properties, and is ignored: it belongs into them"


def _nearest(name: str, known: list[str]) -> str:
    if len(name) > _SHOWN_CHARS:
        return ""
    written = name.casefold().replace("-", "_").replace(" ", "_")
    return next(iter(get_close_matches(written, known, 1, _SIMILAR)), "")
