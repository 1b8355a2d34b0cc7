"""The fences that were published: which rows of the reference table hold, and what they make. Knows no Spark.

Each fence is a text of its own, with the bounds of a text. A set of them has none: no fence is refused for the others.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

from cloud_jobs.errors import CloudError
from cloud_jobs.lake.schemas import publication_order
from geo.spatial import Fence, FenceError
from geo.spatial.features import read_features
from geo.spatial.gates import Gate
from geo.spatial.geojson import fence_of
from geo.spatial.versions import effective_ms


@dataclass(frozen=True, slots=True)
class PublishedFences:
    """GeoJSON features that hold, each on one line, all of which can be used; and of each row that cannot be used why,
    with its id."""

    features: tuple[str, ...]
    refused: tuple[str, ...]


class ParsedFences(NamedTuple):
    """What features are."""

    fences: tuple[Fence, ...]
    gates: tuple[Gate, ...]


def published_fences(rows: Iterable[dict[str, Any]]) -> PublishedFences:
    """The fences and gates of rows of the reference table, each row validated on its own, as a file of features is.

    A version is an id and an instant, however either is written. Of a version that was corrected the newest row that
    can be used holds; a row that cannot be is refused and changes nothing, and so is one that would make a gate of a
    fence that stands with another version, or a fence of a gate.
    """
    versions: dict[str, dict[int, tuple[type, str]]] = {}
    refused: list[str] = []
    for row in sorted(rows, key=publication_order):
        try:
            made = parse_fence(row["body"])
            current, begin = versions.setdefault(made.id, {}), effective_ms(made)
            # a version that is put in another's place may be of the other kind, if it is the only one
            if any(kind is not type(made) for kind, _ in islice(current.values(), 1)) and [*current] != [begin]:
                raise FenceError("this id is a fence and a gate")
            current[begin] = type(made), row["body"]
        except FenceError as fault:
            refused.append(str(FenceError(fault.reason, fence_id=row["id"])))
    bodies = [body for _, current in sorted(versions.items()) for _, (_, body) in sorted(current.items())]
    # between the tokens of JSON a line feed is a space, and within a text there is none
    return PublishedFences(tuple(body.replace("\n", " ") for body in bodies), tuple(refused))


def parse_fences(features: Iterable[str]) -> ParsedFences:
    """The fences and gates of features, each a text by itself.

    Raises CloudError for one that cannot be used: with a fence less, its published events would be retracted.
    """
    try:
        made = [parse_fence(feature) for feature in features]
    except FenceError as fault:
        raise CloudError(f"nothing is computed, for a fence that was published cannot be used: {fault}") from fault
    return ParsedFences(
        tuple(one for one in made if isinstance(one, Fence)), tuple(one for one in made if isinstance(one, Gate))
    )


def parse_fence(body: str) -> Fence | Gate:
    """The fence or gate of a text that is one GeoJSON feature; raises `FenceError`."""
    features = list(islice(read_features(body), 2))
    if len(features) != 1 or not body.lstrip().startswith("{"):
        raise FenceError("it is not one GeoJSON feature")
    if features[0].fault is None and features[0].value.get("type") != "Feature":
        raise FenceError("it is not a GeoJSON feature")
    return fence_of(features[0])
