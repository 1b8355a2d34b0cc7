"""How far the derived tables are: a position that is erased before they covered it is missing in them for good."""

from __future__ import annotations

from typing import Final, NamedTuple

from cloud_jobs.lake.schemas import WRITTEN_BY
from cloud_jobs.lake.tables import COVERS, INGEST, Lake
from cloud_jobs.lake.transactions import counter_of, newest_number, stated

_ALWAYS: Final = "usage"
"""Bills are made of it: it is waited for although it was never computed."""
_DERIVED: Final = (_ALWAYS, "geofence_events", "encounters")


class Covered(NamedTuple):
    """Up to which ingest number all jobs have read the records, and the command that is the farthest behind."""

    ingest_number: int
    last: str


def covered_by_jobs(lake: Lake) -> Covered:
    """What every derived table covers that is computed in this lake. Raises LakeError."""
    # the tables first: what is taken in meanwhile is not covered
    states = {table: stated(lake.open(table), COVERS) for table in _DERIVED}
    found = {table: number or 0 for table, number in states.items() if number is not None or table == _ALWAYS}
    last = min(found, key=lambda table: found[table])
    return Covered(min(found[last], everything(lake).ingest_number), WRITTEN_BY[last])


def everything(lake: Lake) -> Covered:
    """All that was taken in. Raises LakeError."""
    return Covered(counter_of(newest_number(lake.open("records"), INGEST)), "")
