"""What publishing files would change, field by field. Pure.

A thing of a list is compared with the one of the same name, wherever it stands: a device of an account by tenant and
device, a price by its meter.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from cloud_jobs.in_force import in_force
from cloud_jobs.reference_files import PlacedVersion, usable
from geo.reference.moments import beginning, instant_text

_NAMES: Final = (("tenant", "device", "begin"), ("meter", "zone", "window"), ("id",), ("name",))
"""By which keys the things of a list are known: the first of these that all of them have, and no two alike."""
_MAX_CHARACTERS: Final = 120


class FieldChange(NamedTuple):
    """A field that would be another one. None: it is not there."""

    path: str
    before: Any
    after: Any

    def __str__(self) -> str:
        if self.before is None:
            return f"{self.path}: + {_shown(self.after)}"
        if self.after is None:
            return f"{self.path}: - {_shown(self.before)}"
        return f"{self.path}: {_shown(self.before)} -> {_shown(self.after)}"


class VersionDiff(NamedTuple):
    """A version of files beside what is in force. `change`: `new`, `replaced`, `after another`, `same`.

    `compared_with`: the publication that it is compared with, and by whom that was; "": with nothing.
    """

    place: str
    kind: str
    id: str
    effective_from: str
    change: str
    compared_with: str
    fields: tuple[FieldChange, ...]


def diffs(rows: Iterable[dict[str, Any]], placed: Iterable[PlacedVersion]) -> Iterator[VersionDiff]:
    """Each version of files beside what rows of the table REFERENCE have in force.

    One with the same beginning would be replaced. A version with another beginning follows the one before it.
    """
    held: dict[tuple[str, str], list[tuple[str, dict[str, Any]]]] = {}
    for one in in_force(rows, usable).held:
        key = (one.row["kind"], one.row["id"])
        held.setdefault(key, []).append((beginning(one.row["kind"], one.row["body"]), one.row))
    for place, version, *_ in placed:
        begin = instant_text(version.effective_from)
        known = held.get((version.kind, version.id), [])
        same = next((row for other, row in known if other == begin), None)
        former = next((row for other, row in reversed(known) if other < begin), None)
        # a version says all of its thing, so what it would end is compared, too
        row = same or former
        fields = tuple(changes({} if row is None else json.loads(row["body"]), json.loads(version.body)))
        change = "new" if row is None else "after another" if same is None else "replaced" if fields else "same"
        by = "" if row is None else f"{row['publication_id']} by {row['published_by'] or 'nobody known'}"
        yield VersionDiff(place, version.kind, version.id, version.effective_from, change, by, fields)


def changes(before: Any, after: Any, path: str = "") -> Iterator[FieldChange]:
    """The fields in which two values of JSON differ, by their paths."""
    if before == after and type(before) is type(after):
        return
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for name in sorted({*before, *after}):
            yield from changes(before.get(name), after.get(name), f"{path}.{name}" if path else name)
    elif (found := _named(before, after)) is not None:
        for name in sorted({*found[0], *found[1]}):
            yield from changes(found[0].get(name), found[1].get(name), f"{path}[{name}]")
    else:
        yield FieldChange(path, before, after)


def _named(before: Any, after: Any) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """Two lists of things by their names; None where they have none."""
    if not isinstance(before or [], list) or not isinstance(after or [], list):
        return None
    both = [*(before or []), *(after or [])]
    if not both or not all(isinstance(one, dict) for one in both):
        return None
    for keys in _NAMES:
        if all(keys[0] in one for one in both):
            lists = [_by_name(some or [], keys) for some in (before, after)]
            if len(lists[0]) == len(before or []) and len(lists[1]) == len(after or []):
                return lists[0], lists[1]
    return None


def _by_name(things: Sequence[dict[str, Any]], keys: tuple[str, ...]) -> dict[str, Any]:
    return {" ".join(str(one[key]) for key in keys if one.get(key) is not None): one for one in things}


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, sort_keys=True)
    return text if len(text) <= _MAX_CHARACTERS else f"{text[:_MAX_CHARACTERS]}... ({len(text)} characters)"
