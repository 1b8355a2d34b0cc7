"""From parts and the known revisions of encounters to those that follow now: a pure function. Knows no Spark."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

import pyarrow as pa

from cloud_jobs.lake.schemas import ENCOUNTERS, without
from cloud_jobs.proximity.meeting import PARTS, slice_day
from cloud_jobs.revisions import latest_by_id
from geo.spatial.revisions import new_id

JOINED_MS: Final = 1e-3
"""Parts that are no farther apart follow on each other."""

INPUT: Final = pa.schema(
    [
        pa.field("pair", pa.string()),
        *PARTS,
        pa.field("id", pa.string()),
        pa.field("revision", pa.int32()),
        pa.field("retracted", pa.bool_()),
        pa.field("parts", pa.string()),
        pa.field("asked", pa.list_(pa.int64())),
    ]
)
"""Parts (`id` is null) and known revisions; of these `slice` is one of their day, and `asked` are the slices
whose parts are computed anew."""

REVISIONS: Final = without(ENCOUNTERS, "emitted_at")
"""Revisions on their way to the table `encounters`."""


class Part(NamedTuple):
    """The stretch of an encounter in one slice of time."""

    slice: int
    start_ms: float
    end_ms: float
    min_m: float
    t_min_ms: float


@dataclass(frozen=True, slots=True)
class EncounterRevision:
    """A revision of an encounter: what it is made of."""

    id: str
    revision: int
    parts: tuple[Part, ...]
    retracted: bool = False

    @property
    def start_ms(self) -> float:
        """When it began."""
        return self.parts[0].start_ms

    @property
    def end_ms(self) -> float:
        """When it ended."""
        return max(part.end_ms for part in self.parts)

    @property
    def closest(self) -> Part:
        """The part with the closest approach; the first of equal ones."""
        return min(self.parts, key=lambda part: (part.min_m, part.t_min_ms))


class _Pair(NamedTuple):
    """The rows of two devices on one day."""

    parts: list[Part]
    known: list[EncounterRevision]
    asked: set[int]


def revise(rows: pa.Table) -> pa.Table:
    """New revisions (schema REVISIONS) from whole pairs (schema INPUT)."""
    pairs: dict[tuple[str, str, int], _Pair] = {}
    for row in rows.to_pylist():
        key = (row["device_a"], row["device_b"], slice_day(row["slice"]))
        pair = pairs.setdefault(key, _Pair([], [], set()))
        if row["id"] is None:
            pair.parts.append(Part(*(row[name] for name in Part._fields)))
        else:
            pair.asked.update(row["asked"])
            pair.known.append(EncounterRevision(row["id"], row["revision"], parts_from(row["parts"]), row["retracted"]))
    revisions: list[dict[str, Any]] = []
    for (a, b, day), pair in sorted(pairs.items()):
        known = latest_by_id(pair.known)
        current = [one for one in known.values() if not one.retracted]
        # parts of slices that were not computed now still hold
        kept = [part for one in current for part in one.parts if part.slice not in pair.asked]
        # retracted ids too: an id is never given to another encounter
        changed = new_revisions(current, joined_parts([*pair.parts, *kept]), {*known}, f"{a}|{b}")
        revisions += [_row(a, b, day, one) for one in changed]
    return pa.Table.from_pylist(revisions, schema=REVISIONS)


def joined_parts(parts: Iterable[Part]) -> list[tuple[Part, ...]]:
    """The encounters of one pair from its parts, in order; parts that come twice or overlap are one in their slice."""
    runs: list[list[Part]] = []
    end_ms = float("-inf")
    for part in sorted(set(parts), key=lambda part: (part.start_ms, part.slice, part.end_ms)):
        if part.start_ms - end_ms > JOINED_MS:
            runs.append([part])
        elif runs[-1][-1].slice == part.slice:
            runs[-1][-1] = _union(runs[-1][-1], part)
        else:
            runs[-1].append(part)
        end_ms = max(end_ms, part.end_ms)
    return [tuple(one) for one in runs]


def _union(one: Part, other: Part) -> Part:
    least = min(one, other, key=lambda part: (part.min_m, part.t_min_ms))
    return least._replace(start_ms=min(one.start_ms, other.start_ms), end_ms=max(one.end_ms, other.end_ms))


def new_revisions(
    known: Sequence[EncounterRevision], encounters: Sequence[tuple[Part, ...]], used: set[str], namespace: str
) -> list[EncounterRevision]:
    """The new revisions of one pair and day, given those in force (`known`) and the encounters as they are now.

    An encounter takes the id of the known one that it overlaps most: unchanged it makes no revision, changed the next
    one. A known one that overlaps nothing is retracted; an encounter that overlaps no known one is new. One sweep over
    time: known ones do not overlap each other, nor do encounters, so that few are near each other at any time.
    """
    waiting = deque(sorted(known, key=lambda revision: (revision.start_ms, revision.id)))
    near: list[EncounterRevision] = []
    revisions: list[EncounterRevision] = []
    for now in (EncounterRevision("", 0, parts) for parts in sorted(encounters, key=lambda parts: parts[0].start_ms)):
        gone = [revision for revision in near if revision.end_ms < now.start_ms]
        near = [revision for revision in near if revision.end_ms >= now.start_ms]
        while waiting and waiting[0].start_ms <= now.end_ms:
            revision = waiting.popleft()
            (near if revision.end_ms >= now.start_ms else gone).append(revision)
        revisions += [replace(revision, revision=revision.revision + 1, retracted=True) for revision in gone]
        if not near:
            revisions.append(replace(now, id=new_id(f"{namespace}|{round(now.start_ms)}", used)))
            continue
        same = max(near, key=lambda revision: (_overlap_ms(revision, now), revision.start_ms, revision.id))
        near.remove(same)
        if same.parts != now.parts:
            revisions.append(replace(same, revision=same.revision + 1, parts=now.parts))
    revisions += [replace(revision, revision=revision.revision + 1, retracted=True) for revision in (*near, *waiting)]
    return sorted(revisions, key=lambda revision: (revision.start_ms, revision.id))


def _overlap_ms(one: EncounterRevision, other: EncounterRevision) -> float:
    return min(one.end_ms, other.end_ms) - max(one.start_ms, other.start_ms)


def parts_from(text: str) -> tuple[Part, ...]:
    """Parts from their JSON."""
    return tuple(Part(*numbers) for numbers in json.loads(text))


def _row(device_a: str, device_b: str, day: int, known: EncounterRevision) -> dict[str, Any]:
    closest = known.closest
    return {
        "id": known.id,
        "revision": known.revision,
        "device_a": device_a,
        "device_b": device_b,
        "start": round(known.start_ms) * 1000,
        "end": round(known.end_ms) * 1000,
        "min_m": round(closest.min_m, 3),
        "min_at": round(closest.t_min_ms) * 1000,
        "retracted": known.retracted,
        "parts": json.dumps(known.parts, separators=(",", ":")),
        "day": day,
    }
