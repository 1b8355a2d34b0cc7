"""The fences that were published: which of them are in force. Pure.

Each fence is a text of its own, with the bounds of a text. A set of them has none: no fence is refused for the others.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from geo.reference.in_force import RefusedVersion, Usable, versions_in_force
from geo.spatial.errors import FenceError

if TYPE_CHECKING:
    from geo.spatial import Fence, Gate


@dataclass(frozen=True, slots=True)
class PublishedFences:
    """GeoJSON features that are in force, all of which can be used; and what cannot be used.

    Each is on one line with sorted keys, however it was written: so features are compared by what they say.
    """

    features: tuple[str, ...]
    refused: tuple[RefusedVersion, ...]


def published_fences(rows: Iterable[dict[str, Any]]) -> PublishedFences:
    """The fences and gates in force, of rows of the reference table: each is validated on its own, as in a file."""
    fences = (row for row in rows if row["kind"] == "fence")
    found = versions_in_force(fences, lambda _, body: usable_fence(body), (FenceError,))
    return PublishedFences(tuple(_canonical(held.row["body"]) for held in found.held), found.refused)


def _canonical(body: str) -> str:
    """A text of JSON in one line that is the same for all that say the same: nothing changed where only it did."""
    # with ASCII alone, no text holds what ends a line
    return json.dumps(json.loads(body), sort_keys=True)


def usable_fence(body: str) -> Usable[Fence | Gate]:
    """The fence or gate of a text, and from when it stands (ms since 1970); raises `FenceError`."""
    from geo.spatial.versions import effective_ms  # noqa: PLC0415

    made = parse_fence(body)
    return Usable(effective_ms(made), made)


def parse_fence(body: str) -> Fence | Gate:
    """The fence or gate of a text that is one GeoJSON feature; raises `FenceError`."""
    # most of billing knows of fences and reads none: it does not wait for Shapely and PROJ
    from geo.spatial.geojson import fence_of_text  # noqa: PLC0415

    return fence_of_text(body)
