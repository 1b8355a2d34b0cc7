"""The fences that were published: which of them are in force, and what they make. Knows no Spark.

Each fence is a text of its own, with the bounds of a text. A set of them has none: no fence is refused for the others.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from cloud_jobs.errors import CloudError
from cloud_jobs.in_force import RefusedVersion, Usable, in_force
from cloud_jobs.lake.tables import Lake
from geo.spatial import FenceError

if TYPE_CHECKING:
    from geo.spatial import Fence, Gate


@dataclass(frozen=True, slots=True)
class PublishedFences:
    """GeoJSON features that are in force, all of which can be used; and what cannot be used.

    Each is on one line with sorted keys, however it was written: so features are compared by what they say.
    """

    features: tuple[str, ...]
    refused: tuple[RefusedVersion, ...]


class ParsedFences(NamedTuple):
    """What features are."""

    fences: tuple[Fence, ...]
    gates: tuple[Gate, ...]


def published_fences(rows: Iterable[dict[str, Any]]) -> PublishedFences:
    """The fences and gates in force, of rows of the reference table: each is validated on its own, as in a file."""
    found = in_force((row for row in rows if row["kind"] == "fence"), lambda _, body: usable_fence(body))
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


def parse_fences(features: Iterable[str]) -> ParsedFences:
    """The fences and gates of features, each a text by itself.

    Raises CloudError for one that cannot be used: with a fence less, its published events would be retracted.
    """
    from geo.spatial import Fence, Gate  # noqa: PLC0415

    made = [*parsed(features)]
    return ParsedFences(
        tuple(one for one in made if isinstance(one, Fence)), tuple(one for one in made if isinstance(one, Gate))
    )


def parsed(features: Iterable[str]) -> Iterator[Fence | Gate]:
    """What each of some features is, in their order; raises CloudError for one that cannot be used."""
    try:
        yield from map(parse_fence, features)
    except FenceError as fault:
        raise CloudError(f"nothing is computed, for a fence that was published cannot be used: {fault}") from fault


def parse_fence(body: str) -> Fence | Gate:
    """The fence or gate of a text that is one GeoJSON feature; raises `FenceError`."""
    # most of billing knows of fences and reads none: it does not wait for Shapely and PROJ
    from geo.spatial.geojson import fence_of_text  # noqa: PLC0415

    return fence_of_text(body)


def fences_in(lake: Lake) -> PublishedFences:
    """The fences in force; validated again only when the table is another one."""
    table = lake.open("reference")
    return _fences_at(lake, table.metadata().id, table.version())


# a job that follows asks every few seconds, and the fences of a country take longer than that to validate
@lru_cache(maxsize=1)
def _fences_at(lake: Lake, _table_id: str, _version: int) -> PublishedFences:
    return published_fences(lake.rows("reference", where=[("kind", "=", "fence")]).to_pylist())
