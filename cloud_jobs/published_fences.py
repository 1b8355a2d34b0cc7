"""The published fences as the lake has them, and what they make for a job. Knows no Spark."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from cloud_jobs.errors import CloudError
from cloud_jobs.lake.tables import Lake
from geo.reference.in_force import PublishedFences, parse_fence, published_fences
from geo.spatial import FenceError

if TYPE_CHECKING:
    from geo.spatial import Fence, Gate


class ParsedFences(NamedTuple):
    """What features are."""

    fences: tuple[Fence, ...]
    gates: tuple[Gate, ...]


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


def fences_in(lake: Lake) -> PublishedFences:
    """The fences in force; validated again only when the table is another one."""
    table = lake.open("reference")
    return _fences_at(lake, table.metadata().id, table.version())


# a job that follows asks every few seconds, and the fences of a country take longer than that to validate
@lru_cache(maxsize=1)
def _fences_at(lake: Lake, _table_id: str, _version: int) -> PublishedFences:
    return published_fences(lake.rows("reference", where=[("kind", "=", "fence")]).to_pylist())
