"""What a GeoJSON feature says of itself, beside its geometry. Imports nothing that computes."""

from __future__ import annotations

from typing import Any

__all__ = ["given_properties", "named"]


def named(feature: dict[str, Any]) -> Any:
    """The id that a feature gives, `properties.id` or its own, whatever it is; None: it gives none."""
    return given_properties(feature).get("id", feature.get("id"))


def given_properties(feature: dict[str, Any]) -> dict[str, Any]:
    """The properties that are given: null, which tables are exported with, gives none."""
    value = feature.get("properties")
    return {key: item for key, item in value.items() if item is not None} if isinstance(value, dict) else {}
