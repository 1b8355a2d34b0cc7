"""How far the derived tables are: a position that is erased before they covered it is missing in them for good."""

from __future__ import annotations

from datetime import datetime
from typing import Final, NamedTuple

from deltalake import DeltaTable

from cloud_jobs.lake.schemas import WRITTEN_BY
from cloud_jobs.lake.tables import COMPUTED_AT, COVERS, INGEST, Lake
from cloud_jobs.lake.transactions import MAX_LEAD, counter_of, newest_number, stated

_ALWAYS: Final = "usage"
"""Bills are made of it: it is waited for although it was never computed."""
_DERIVED: Final = (_ALWAYS, "geofence_events", "encounters")


class Covered(NamedTuple):
    """Up to which ingest number all jobs have read the records, and the command that is the farthest behind."""

    ingest_number: int
    last: str


def covered_by_jobs(lake: Lake, now: datetime) -> Covered:
    """What every derived table covers that is computed in this lake. Raises LakeError."""
    # the tables first: what is taken in meanwhile is not covered
    opened = {table: lake.open(table) for table in _DERIVED}
    states = {table: stated(one, COVERS) for table, one in opened.items()}
    found = {table: number or 0 for table, number in states.items() if number is not None or table == _ALWAYS}
    # what a clock has stamped that was far ahead is known to no bill: it is computed again, and from the positions
    found |= {table: 0 for table in found if _is_ahead(opened[table], now)}
    last = min(found, key=lambda table: found[table])
    return Covered(min(found[last], everything(lake).ingest_number), WRITTEN_BY[last])


def _is_ahead(opened: DeltaTable, now: datetime) -> bool:
    computed_us = stated(opened, COMPUTED_AT)
    return computed_us is not None and computed_us / 1e6 > (now + MAX_LEAD).timestamp()


def everything(lake: Lake) -> Covered:
    """All that was taken in. Raises LakeError."""
    return Covered(counter_of(newest_number(lake.open("records"), INGEST)), "")
