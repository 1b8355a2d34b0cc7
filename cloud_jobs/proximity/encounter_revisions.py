"""From parts and the known revisions of encounters to those that follow now: a pure function. Knows no Spark."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import pyarrow as pa

from cloud_jobs.lake.schemas import ENCOUNTERS, without
from cloud_jobs.proximity.meeting import PARTS, SEPARATOR, slice_day
from geo.spatial import Revision, fact_id, in_force, new_revisions, ordinals

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

REVISIONS: Final = without(ENCOUNTERS, "emitted_at", "commit_number")
"""Revisions on their way to the table `encounters`."""


class Part(NamedTuple):
    """The stretch of an encounter in one slice of time."""

    slice: int
    start_ms: float
    end_ms: float
    min_m: float
    t_min_ms: float


Parts: TypeAlias = tuple[Part, ...]
"""What an encounter is made of, in the order of time."""


class _Pair(NamedTuple):
    """The rows of two devices on one day."""

    parts: list[Part]
    known: list[Revision[Parts]]
    asked: set[int]


def revise(
    rows: pa.Table, first_computable: Callable[[str, str], int] | None = None, pause_ms: float = JOINED_MS
) -> pa.Table:
    """New revisions (schema REVISIONS) from whole pairs (schema INPUT). `pause_ms`: see `joined_parts`.

    `first_computable`: the slice of a tenant's device before which positions may be erased; parts there stay as known.
    """
    pairs: dict[tuple[str, str, int], _Pair] = {}
    for row in rows.to_pylist():
        key = (row["device_a"], row["device_b"], slice_day(row["slice"]))
        pair = pairs.setdefault(key, _Pair([], [], set()))
        if row["id"] is None:
            pair.parts.append(Part(*(row[name] for name in Part._fields)))
        else:
            pair.asked.update(row["asked"])
            pair.known.append(Revision(row["id"], row["revision"], parts_from(row["parts"]), row["retracted"]))
    revisions: list[dict[str, Any]] = []
    for (a, b, day), pair in sorted(pairs.items()):
        names = _bare(a, b)
        first = max(first_computable(names[0], one) for one in names[1:]) if first_computable else 0
        now = [part for part in pair.parts if part.slice >= first]
        # parts of slices that were not computed now still hold
        kept = [
            part
            for parts in in_force(pair.known).values()
            for part in parts
            if part.slice not in pair.asked or part.slice < first
        ]
        changed = new_revisions(pair.known, identified(*names, joined_parts([*now, *kept], pause_ms)))
        revisions += [_row(*names, day, one) for one in sorted(changed, key=lambda one: (one.content, one.id))]
    return pa.Table.from_pylist(revisions, schema=REVISIONS)


def joined_parts(parts: Iterable[Part], pause_ms: float = JOINED_MS) -> list[Parts]:
    """The encounters of one pair from its parts, in order; parts that come twice or overlap are one in their slice.

    Parts with no more than `pause_ms` between them are of one encounter: at the distance noise makes many of one.
    """
    runs: list[list[Part]] = []
    end_ms = float("-inf")
    for part in sorted(set(parts), key=lambda part: (part.start_ms, part.slice, part.end_ms)):
        if part.start_ms - end_ms > max(pause_ms, JOINED_MS):
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


def identified(tenant: str, device_a: str, device_b: str, encounters: Sequence[Parts]) -> dict[str, Parts]:
    """The encounters of one pair and day, in order of time, by their ids, each from facts alone.

    Those are tenant and pair, the slice in which it began, and which of those that began there it is. So an encounter
    that lasts longer keeps its id, and of two that join the first one's stays.
    """
    slices = [parts[0].slice for parts in encounters]
    found = {
        fact_id("encounter", tenant, device_a, device_b, number, ordinal): parts
        for number, ordinal, parts in zip(slices, ordinals(slices), encounters, strict=True)
    }
    assert len(found) == len(encounters), "two encounters have one id"
    return found


def parts_from(text: str) -> Parts:
    """Parts from their JSON."""
    return tuple(Part(*numbers) for numbers in json.loads(text))


def _bare(a: str, b: str) -> tuple[str, str, str]:
    """The tenant of two devices that are named with it, and the devices."""
    (tenant, _, device_a), (other, _, device_b) = a.partition(SEPARATOR), b.partition(SEPARATOR)
    assert tenant == other, "devices of two tenants never meet"
    return tenant, device_a, device_b


def _row(tenant: str, device_a: str, device_b: str, day: int, revision: Revision[Parts]) -> dict[str, Any]:
    parts = revision.content
    closest = min(parts, key=lambda part: (part.min_m, part.t_min_ms))
    return {
        "id": revision.id,
        "revision": revision.revision,
        "tenant": tenant,
        "device_a": device_a,
        "device_b": device_b,
        "start": round(parts[0].start_ms) * 1000,
        "end": round(max(part.end_ms for part in parts)) * 1000,
        "min_m": round(closest.min_m, 3),
        "min_at": round(closest.t_min_ms) * 1000,
        "retracted": revision.retracted,
        "parts": json.dumps(parts, separators=(",", ":")),
        "day": day,
    }
