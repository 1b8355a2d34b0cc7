"""Which publications of reference data are in force: one rule for fences, tariffs and accounts. Pure.

A version is an id and the moment from which it is in force. Its latest publication counts. A publication that cannot be
used is named and changes nothing: what it was to replace stays in force.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from geo.reference.moments import UNKNOWN_BEGINNING, beginning, instant_text
from geo.spatial.errors import FenceError

if TYPE_CHECKING:
    from geo.spatial import Fence, Gate


# Published fences in force. Pure.


@dataclass(frozen=True, slots=True)
class PublishedFences:
    """The GeoJSON features in force, all usable, and the refused publications.

    Each feature is on one line with sorted keys, however it was written, so that equal features are equal texts.
    """

    features: tuple[str, ...]
    refused: tuple[RefusedVersion, ...]


def published_fences(rows: Iterable[dict[str, Any]]) -> PublishedFences:
    """The fences and gates in force, from rows of the reference table; each is validated on its own, as in a file."""
    fences = (row for row in rows if row["kind"] == "fence")
    found = versions_in_force(fences, lambda _, body: usable_fence(body), (FenceError,))
    return PublishedFences(tuple(_canonical(held.row["body"]) for held in found.held), found.refused)


def _canonical(body: str) -> str:
    """JSON in one line that is the same for equal values, so a rewritten text is no change."""
    # ASCII output has no other line separators
    return json.dumps(json.loads(body), sort_keys=True)


def usable_fence(body: str) -> Usable[Fence | Gate]:
    """The fence or gate of a text, and from when it stands (ms since 1970); raises `FenceError`."""
    from geo.spatial.activity import effective_ms  # noqa: PLC0415

    made = parse_fence(body)
    return Usable(effective_ms(made), made)


def parse_fence(body: str) -> Fence | Gate:
    """The fence or gate of a text that is one GeoJSON feature; raises `FenceError`."""
    # most of billing reads no fence, and should not load Shapely and PROJ
    from geo.spatial.geojson import fence_of_text  # noqa: PLC0415

    return fence_of_text(body)


Made = TypeVar("Made")
Made_co = TypeVar("Made_co", covariant=True)


@dataclass(frozen=True, slots=True)
class RefusedVersion:
    """A publication that cannot be used. `place`: topic and message id of its message."""

    kind: str
    id: str
    effective_from: str
    publication_id: str
    published_at: str
    place: str
    reason: str

    def __str__(self) -> str:
        since = f" from {self.effective_from}" if self.effective_from else ""
        return f"{self.kind} {self.id!r}{since} ({self.place}, publication {self.publication_id}): {self.reason}"


class Usable(NamedTuple, Generic[Made_co]):
    """What the text of a version made, and a number that orders the versions of one id by their beginnings."""

    begin: int
    made: Made_co


@dataclass(frozen=True, slots=True)
class HeldVersion(Generic[Made]):
    """A version in force: the row of its latest usable publication, what that made, and the number that orders it."""

    row: dict[str, Any]
    made: Made
    begin: int


@dataclass(frozen=True, slots=True)
class InForce(Generic[Made]):
    """The versions in force, by kind, id and beginning, and the publications that would replace them and cannot be
    used.
    """

    held: tuple[HeldVersion[Made], ...]
    refused: tuple[RefusedVersion, ...]


@dataclass(frozen=True, slots=True)
class JudgedPublication(Generic[Made]):
    """The row of a publication, its beginning as written, and what its text made, or why that cannot be used."""

    row: dict[str, Any]
    written: str
    usable: Usable[Made] | None
    reason: str = ""


@dataclass(slots=True)
class _Thing(Generic[Made]):
    """The versions of one id, by their beginnings."""

    held: dict[int, HeldVersion[Made]] = field(default_factory=dict)
    refused: dict[str, RefusedVersion] = field(default_factory=dict)


def publication_order(row: dict[str, Any]) -> str:
    """The key that sorts rows of REFERENCE into the order of publication."""
    return str(row["publication_id"])


def versions_in_force(
    rows: Iterable[dict[str, Any]], parse: Callable[[str, str], Usable[Made]], faults: tuple[type[Exception], ...]
) -> InForce[Made]:
    """The versions in force, from rows of the reference table in any order.

    `parse` makes something of a kind and a text, or raises one of `faults`.
    """
    return held_versions(judged_publication(row, parse, faults) for row in sorted(rows, key=publication_order))


def judged_publication(
    row: dict[str, Any], parse: Callable[[str, str], Usable[Made]], faults: tuple[type[Exception], ...]
) -> JudgedPublication[Made]:
    """One publication on its own; `held_versions` compares it with others."""
    written = beginning(row["kind"], row["body"])
    try:
        return JudgedPublication(row, written, parse(row["kind"], row["body"]))
    except faults as fault:
        return JudgedPublication(row, written, None, fault.reason if isinstance(fault, FenceError) else str(fault))


def held_versions(publications: Iterable[JudgedPublication[Made]]) -> InForce[Made]:
    """The versions in force, from publications in `publication_order`. The bodies of their rows are not read.

    All versions of an id have one type: a gate under the id of a fence is refused. A publication without a readable
    beginning counts as corrected by any later usable publication of its id.
    """
    things: dict[tuple[str, str], _Thing[Made]] = {}
    for one in publications:
        kind, written = one.row["kind"], one.written
        thing = things.setdefault((kind, one.row["id"]), _Thing())
        if one.usable is None:
            thing.refused[written] = _refused(one.row, written, one.reason)
            continue
        begin, made = one.usable
        others = (held for other, held in thing.held.items() if other != begin)
        # all held versions have one type
        if kind == "fence" and any(type(held.made) is not type(made) for held in islice(others, 1)):
            thing.refused[written] = _refused(one.row, written, "this id is a fence and a gate")
            continue
        thing.held[begin] = HeldVersion(one.row, made, begin)
        # only a fence may have no beginning; any other text without one is a fault
        unknown = (UNKNOWN_BEGINNING,) if kind == "fence" else (UNKNOWN_BEGINNING, "")
        for corrected in (written, *unknown):
            thing.refused.pop(corrected, None)
    ordered = [thing for _, thing in sorted(things.items())]
    return InForce(
        tuple(held for thing in ordered for _, held in sorted(thing.held.items())),
        tuple(refused for thing in ordered for _, refused in sorted(thing.refused.items())),
    )


def _refused(row: dict[str, Any], written: str, reason: str) -> RefusedVersion:
    return RefusedVersion(
        kind=row["kind"],
        id=row["id"],
        effective_from=written,
        publication_id=row["publication_id"],
        published_at=instant_text(row["published_at"].isoformat()),
        place=row["place"] or "",
        reason=reason,
    )
