"""New revisions of encounters, from parts and known revisions: a pure function. Knows no Spark."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import pyarrow as pa

from cloud_jobs.lake.schemas import ENCOUNTERS, without
from cloud_jobs.proximity.encounters import PARTS, SEPARATOR, SLICE_MS, slice_day
from geo.spatial import Revision, fact_id, in_force, new_revisions, ordinals

JOINED_MS: Final = 1e-3
"""Parts that are no farther apart follow each other."""

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
whose parts are computed again."""

REVISIONS: Final = without(ENCOUNTERS, "emitted_at", "commit_number")
"""Revisions on their way to the table `encounters`."""


class Part(NamedTuple):
    """The stretch of an encounter in one slice of time. `open`: BEGIN and END, where the two were not apart at its
    ends.
    """

    slice: int
    start_ms: float
    end_ms: float
    min_m: float
    t_min_ms: float
    open: int = 0


Parts: TypeAlias = tuple[Part, ...]
"""The parts of an encounter, in order of time."""

BEGIN, END = 1, 2
_PLACE_IN_SLICE: Final = {BEGIN: 0, BEGIN | END: 0, 0: 1, END: 2}


class _Pair(NamedTuple):
    """The rows of two devices on one day."""

    parts: list[dict[str, Any]]
    known: list[Revision[Parts]]
    asked: set[int]


def revise(rows: pa.Table, first_computable: Callable[[str, str], int] | None = None) -> pa.Table:
    """New revisions (schema REVISIONS) from whole pairs (schema INPUT).

    `first_computable`: the first slice of a tenant's device without erased positions; parts before it stay as known.
    """
    pairs: dict[tuple[str, str, int], _Pair] = {}
    for row in rows.to_pylist():
        key = (row["device_a"], row["device_b"], slice_day(row["slice"]))
        pair = pairs.setdefault(key, _Pair([], [], set()))
        if row["id"] is None:
            pair.parts.append(row)
            continue
        pair.asked.update(row["asked"])
        pair.known.append(Revision(row["id"], row["revision"], parts_from(row["parts"]), row["retracted"]))
    revisions: list[dict[str, Any]] = []
    for (a, b, day), pair in sorted(pairs.items()):
        names = _bare(a, b)
        first = max(first_computable(names[0], one) for one in names[1:]) if first_computable else 0
        # parts of slices that were not computed now still hold
        kept = [
            part
            for parts in in_force(pair.known).values()
            for part in parts
            if part.slice not in pair.asked or part.slice < first
        ]
        encounters = joined_parts([*(one for one in parts_in(pair.parts) if one.slice >= first), *kept])
        changed = new_revisions(pair.known, identified(*names, encounters))
        revisions += [_row(*names, day, one) for one in sorted(changed, key=lambda one: (one.content, one.id))]
    return pa.Table.from_pylist(revisions, schema=REVISIONS)


def parts_in(rows: Iterable[Mapping[str, Any]]) -> list[Part]:
    """Parts of one pair from rows of PARTS, which may overlap; only those within the distance."""
    parts: list[Part] = []
    last: Mapping[str, Any] | None = None
    for row in sorted(rows, key=lambda row: (row["slice"], row["from_ms"], row["to_ms"])):
        follows = last is not None and row["slice"] == last["slice"] and row["from_ms"] - last["to_ms"] <= JOINED_MS
        last = _union(last, row) if last is not None and follows else row
        begin_ms = last["slice"] * SLICE_MS
        is_open = BEGIN * (last["from_ms"] <= begin_ms + JOINED_MS)
        is_open |= END * (last["to_ms"] >= begin_ms + SLICE_MS - JOINED_MS)
        part = Part(last["slice"], last["start_ms"], last["end_ms"], last["min_m"], last["t_min_ms"], is_open)
        parts[len(parts) - follows :] = [part]
    return [part for part in parts if part.start_ms <= part.end_ms]


def _union(one: Mapping[str, Any], other: Mapping[str, Any]) -> Mapping[str, Any]:
    least = min(one, other, key=lambda row: (row["min_m"], row["t_min_ms"]))
    first = {name: min(one[name], other[name]) for name in ("start_ms", "from_ms")}
    return {**least, **first, **{name: max(one[name], other[name]) for name in ("end_ms", "to_ms")}}


def joined_parts(parts: Iterable[Part]) -> list[Parts]:
    """The encounters of one pair from its parts, in order.

    Parts of one encounter are in slices that follow each other, and the two were not apart in between.
    """
    ordered = sorted(parts, key=lambda part: (part.slice, _PLACE_IN_SLICE[part.open], part.start_ms))
    runs: list[list[Part]] = []
    for part in ordered:
        last = runs[-1][-1] if runs else None
        if last and last.slice == part.slice - 1 and last.open & END and part.open & BEGIN:
            runs[-1].append(part)
        else:
            runs.append([part])
    return [tuple(run) for run in runs]


def identified(tenant: str, device_a: str, device_b: str, encounters: Sequence[Parts]) -> dict[str, Parts]:
    """The encounters of one pair and day, in order of time, by their ids.

    An id follows from tenant, pair, the slice in which the encounter began, and its index there. So an encounter that
    lasts longer keeps its id, and of two that join the first one's id stays.
    """
    slices = [parts[0].slice for parts in encounters]
    found = {
        fact_id("encounter", tenant, device_a, device_b, number, ordinal): parts
        for number, ordinal, parts in zip(slices, ordinals(slices), encounters, strict=True)
    }
    assert len(found) == len(encounters), "two encounters have one id"
    return found


def parts_from(text: str) -> Parts:
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
