"""How far a table that is derived from the records covers them, as it states itself. Knows no Spark."""

from __future__ import annotations

from typing import Final, NamedTuple

from deltalake import DeltaTable

from cloud_jobs.errors import OtherRecords
from cloud_jobs.lake.tables import COVERS, INGEST
from cloud_jobs.lake.transactions import counter_of, newest_number, stated

COVERED_COMMIT: Final = "covered_commit"
"""Under which name it states the number of that commit of the ingest, of which no other attempt has the same."""


class Covering(NamedTuple):
    """The ingest numbers up to which a table covers the records (None: it was never computed), and up to which they
    are; `newest`: the number of the commit that brought the latter."""

    since: int | None
    until: int
    newest: int | None


def covering(opened: DeltaTable, table: str, records: DeltaTable) -> Covering:
    """Of a derived table and of the records, which was opened after it.

    Raises OtherRecords for a table that covers what the records do not have, as after one of the two was restored.
    """
    newest = newest_number(records, INGEST)
    found = Covering(stated(opened, COVERS), counter_of(newest), newest)
    since = found.since or 0
    if since > found.until or (since == found.until and since and stated(opened, COVERED_COMMIT) not in {None, newest}):
        raise OtherRecords(table, covered_number=since, found_number=found.until)
    return found
