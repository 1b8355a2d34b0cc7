"""Which alerts are not settled after a run, in a file: so the next run looks at these and at what is new.

An alert is not settled while it waits for its verdict, and while it is withdrawn for a reason that says what is not
known. The tables decide: the file is of one commit of `verdicts`, and of no use with another. Without it the run begins
at the oldest alert without a verdict, as the tables state it, and looks at all later ones again.
"""

from __future__ import annotations

import io
import json
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from cloud_jobs.lake.alert_schemas import ALERTS, VERDICTS
from cloud_jobs.lake.transactions import counter_of
from waybill.daemon.durable_file import replace_durably

ASKED_ROWS: Final = pa.schema([ALERTS.field(name) for name in ("id", "tenant", "device", "day", "time")])
"""By what the rows of an id are found."""
OPEN_ROWS: Final = pa.schema(
    [
        *ASKED_ROWS,
        *(ALERTS.field(name).with_nullable(True) for name in ("epoch", "seq", "seen_until", "commit_number")),
        pa.field("since", ALERTS.field("collected_at").type),
        VERDICTS.field("reason"),
        pa.field("looked_at", pa.int64(), nullable=False),
    ]
)
"""What is kept of an alert: the rest is in the table, unless its device was erased meanwhile. `reason`: why it was
withdrawn; null: it waits. Of one that waits: `since` when, by the centre's clock as it goes now, and in which
`commit_number` of `alerts` it came. Of one that was withdrawn, `looked_at`: with which commit of the ingest (counted
from 1; -1: none), and `seen_until`, null where it was not looked up."""
NEVER: Final = -1
_FACTS: Final = b"open_alerts"


class TableCommit(NamedTuple):
    """The newest commit of a table: of which one, and its number (None: it has none)."""

    table_id: str
    number: int | None


@dataclass(frozen=True, slots=True)
class OpenAlerts:
    """As of a commit of `verdicts`, with all alerts up to one of `alerts`, and events that covered a commit of the
    ingest (None: none). `as_of`: when that was, by the centre's clock."""

    verdicts: TableCommit
    alerts: TableCommit
    covered: int | None
    as_of: datetime
    rows: pa.Table

    def is_of(self, verdicts: TableCommit, alerts: TableCommit) -> bool:
        """Whether they are those of these tables: the former unchanged, the latter with nothing but more."""
        if self.verdicts != verdicts or self.alerts.table_id != alerts.table_id:
            return False
        # only of the newest commit is it known whether it is the same
        return self.alerts == alerts or counter_of(self.alerts.number) < counter_of(alerts.number)

    def at(self, now: datetime) -> OpenAlerts:
        """By a clock that says `now`: where it was set back, each has waited as long as before."""
        if now >= self.as_of:
            return self
        since = pc.add(self.rows["since"], pa.scalar(now - self.as_of, pa.duration("us")))
        rows = self.rows.set_column(OPEN_ROWS.get_field_index("since"), OPEN_ROWS.field("since"), since)
        return replace(self, as_of=now, rows=rows)

    @property
    def waiting(self) -> pa.Table:
        """Those that wait for their verdict."""
        return self.rows.filter(pc.is_null(self.rows["reason"]))

    @property
    def unproven(self) -> pa.Table:
        """Those that were withdrawn, and of which it is not known whether they are so."""
        return self.rows.filter(pc.is_valid(self.rows["reason"]))


def read_open_alerts(path: Path) -> OpenAlerts | None:
    """What a run left; None: nothing that can be used."""
    try:
        rows = pq.read_table(io.BytesIO(path.read_bytes()))
        facts: dict[str, Any] = json.loads((rows.schema.metadata or {})[_FACTS])
        verdicts, alerts = (TableCommit(*facts[name]) for name in ("verdicts", "alerts"))
        as_of = datetime.fromisoformat(facts["as_of"])
        return OpenAlerts(verdicts, alerts, facts["covered"], as_of, rows.cast(OPEN_ROWS))
    except (OSError, ValueError, KeyError, TypeError, RecursionError, pa.ArrowException):
        return None


def write_open_alerts(path: Path, left: OpenAlerts) -> None:
    """For the next run. Raises OSError."""
    facts = {"verdicts": left.verdicts, "alerts": left.alerts, "covered": left.covered, "as_of": left.as_of.isoformat()}
    rows = left.rows.replace_schema_metadata({_FACTS: json.dumps(facts).encode()})
    content = io.BytesIO()
    pq.write_table(rows, content, compression="zstd")
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_durably(path, content.getvalue())
