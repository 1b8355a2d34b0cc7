"""Which positions are erased, so that nothing is computed from them again.

A job that computes from positions opens the records first, at one version, and reads the erasures afterwards, as
`records_and_erasures` does. It then knows the erasure of every missing position. An hour, day or segment that may
include an erased position keeps its earlier result; a late fix there is only counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from cloud_jobs.errors import LakeError
from cloud_jobs.lake.appending import Row, append_missing
from cloud_jobs.lake.data_files import StoredFiles
from cloud_jobs.lake.schemas import RECORDS
from cloud_jobs.lake.tables import Lake

TABLE: Final = "erasures"


class Erasure(NamedTuple):
    """Positions before a moment, of one device or, with None, of all.

    With `since`, the request of a data subject: everything of one device from then until `before`.
    """

    tenant: str | None
    device: str | None
    before: datetime
    since: datetime | None = None


class Erasures:
    def __init__(self, declared: Iterable[Erasure]) -> None:
        self._of: dict[tuple[str | None, str | None], dict[datetime | None, datetime]] = {}
        for tenant, device, before, since in declared:
            known = self._of.setdefault((tenant, device), {})
            known[since] = max(before, known.get(since, before))

    def __bool__(self) -> bool:
        return bool(self._of)

    def __iter__(self) -> Iterator[Erasure]:
        return (one for key in self._of for one in self._declared(*key))

    def before(self, tenant: str | None, device: str) -> datetime | None:
        """The moment before which positions of a device may be erased, now or soon; None: none are.

        Nothing before it is computed again, also not before the period of a data subject's request.
        """
        return max((one.before for one in self._concerning(tenant, device)), default=None)

    def requests(self, tenant: str, device: str) -> list[Erasure]:
        return [one for one in self._concerning(tenant, device) if one.since is not None]

    def include(self, tenant: str, device: str, moment: datetime) -> bool:
        """Whether a position of a device at a moment is erased, now or soon."""
        return any(
            moment < one.before and (one.since is None or one.since <= moment)
            for one in self._concerning(tenant, device)
        )

    def say(self, erasure: Erasure) -> bool:
        return any(
            one.before >= erasure.before
            and (one.since is None if erasure.since is None else one.since is not None and one.since <= erasure.since)
            for one in self._concerning(erasure.tenant, erasure.device)
        )

    def _concerning(self, tenant: str | None, device: str | None) -> list[Erasure]:
        # four look-ups for each device of a file, however many erasures there are
        keys = dict.fromkeys((one, other) for one in (tenant, None) for other in (device, None))
        return [one for key in keys for one in self._declared(*key)]

    def _declared(self, tenant: str | None, device: str | None) -> Iterator[Erasure]:
        known = self._of.get((tenant, device), {})
        return (Erasure(tenant, device, before, since) for since, before in known.items())


def is_erased(rows: pa.Table, erasures: Iterable[Erasure]) -> pa.ChunkedArray:
    """Which records are erased: positions, or all records that a data subject's request covers.

    For a record without a day, whose clock was far off, the moment of receipt counts.
    """
    declared = [*erasures]
    far_off = pc.coalesce(rows["received_at"], rows["device_time"])
    moment = pc.if_else(pc.is_valid(rows["device_date"]), rows["device_time"], far_off)
    before = pc.less(moment, _boundaries(rows, Erasures(one for one in declared if one.since is None)))
    erased = pc.and_(pc.equal(rows["kind"], "position"), pc.fill_null(before, False))
    there = {*pc.unique(rows["device"]).to_pylist()}
    for one in declared:
        if one.since is not None and one.device in there:
            within = pc.and_(pc.greater_equal(moment, one.since), pc.less(moment, one.before))
            theirs = pc.and_(pc.equal(rows["device"], one.device), pc.equal(rows["tenant"], one.tenant))
            erased = pc.or_(erased, pc.and_(theirs, within))
    return erased


def _boundaries(rows: pa.Table, erasures: Erasures) -> pa.Array:
    """For each record, the moment before which positions of its device are erased, or null."""
    tenants, devices = (rows[name].combine_chunks().dictionary_encode() for name in ("tenant", "device"))
    count = len(devices.dictionary)
    codes = pc.add(pc.multiply(tenants.indices.cast(pa.int64()), count), devices.indices.cast(pa.int64()))
    found = pc.unique(codes)
    # once for each device, however many erasures there are
    names = [(tenants.dictionary[code // count], devices.dictionary[code % count]) for code in found.to_pylist()]
    before = [erasures.before(tenant.as_py(), device.as_py()) for tenant, device in names]
    return pa.array(before, RECORDS.field("device_time").type).take(pc.index_in(codes, value_set=found))


def read_erasures(lake: Lake) -> Erasures:
    """All declared erasures. Raises LakeError."""
    return Erasures(Erasure(**row) for row in lake.rows(TABLE, Erasure._fields).to_pylist())


def records_and_erasures(lake: Lake) -> tuple[StoredFiles, Erasures]:
    """The current files of the records, and the erasures that explain missing positions. Raises LakeError."""
    with lake.damage_as_error("records"):
        stored = StoredFiles.of(lake.open("records"), "records")
    # in this order: a position that is erased in between is still in these files, and its erasure is known
    return stored, read_erasures(lake)


def declare_erasure(lake: Lake, erasure: Erasure, now: datetime) -> bool:
    """Adds an erasure unless declared ones include it; returns whether it did.

    Raises LakeError for a moment in the future, CommitConflict, StoreUnavailable.
    """
    assert erasure.before.utcoffset() is not None, "a moment"
    if erasure.before > now:
        raise LakeError(
            f"positions before {erasure.before.isoformat()} cannot be erased: the time is in the future, so all coming"
            " positions would be erased too"
        )

    def missing(rows: pa.Table) -> list[Row]:
        held = Erasures(Erasure(**row) for row in rows.select(Erasure._fields).to_pylist())
        if held.say(erasure):
            return []
        number = 1 + (pc.max(rows["number"]).as_py() or 0)
        return [erasure._asdict() | {"number": number, "erased_at": now.astimezone(UTC)}]

    return bool(append_missing(lake, TABLE, ["number", *Erasure._fields], missing))
