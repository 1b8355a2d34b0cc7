"""Alerts that wait for their verdict: of which of them more may be known than in the run before.

A run costs what is new, not what waits: coverage is read of what the commits since then brought, and tables of what can
be decided.
"""

from __future__ import annotations

from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from cloud_jobs.verdicts.deciding import PROVEN
from cloud_jobs.verdicts.record_states import AlertCoverage, record_state
from cloud_jobs.verdicts.unproven import CoverageOf


class WaitingAlerts(NamedTuple):
    """`due`: those that can be decided now; `kept`: those that go on waiting. Both have the schema OPEN_ROWS."""

    due: pa.Table
    kept: pa.Table


def split_waiting(
    waiting: pa.Table, is_due: pa.ChunkedArray, changed: pa.Table | None, coverage_of: CoverageOf
) -> WaitingAlerts:
    """Which of some alerts can be decided.

    `is_due`: of each, whether it is anyhow. `changed`: the devices (tenant, device) of which records came since the run
    before; None: that is not known, so of any.
    """
    due, rest = waiting.filter(is_due), waiting.filter(pc.invert(is_due))
    asked = rest if changed is None else rest.filter(pc.is_in(_device(rest), _device(changed).combine_chunks()))
    rows = asked.to_pylist()
    coverage = AlertCoverage(coverage_of(rows), {}) if rows else AlertCoverage({}, {})
    proven = [row["id"] for row in rows if record_state(row, coverage) in PROVEN]
    is_proven = pc.is_in(rest["id"], pa.array(proven, pa.string()))
    return WaitingAlerts(pa.concat_tables([due, rest.filter(is_proven)]), rest.filter(pc.invert(is_proven)))


def _device(rows: pa.Table) -> pa.ChunkedArray:
    # neither name has a line's end
    return pc.binary_join_element_wise(rows["tenant"], rows["device"], "\n")
