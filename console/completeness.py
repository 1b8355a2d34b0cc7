"""How complete the records of each device are, from the coverage of the lake; read again when the ingest commits."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from cloud_jobs.billing.certificates.certificate import CertificateState, relevant_streams, stream_state
from cloud_jobs.billing.contracts.published import micros
from cloud_jobs.errors import OtherRecords
from cloud_jobs.lake.coverage import Coverage, TenantDevice
from cloud_jobs.lake.coverage_log import COVERAGE_ROWS, from_rows
from cloud_jobs.lake.snapshot_reads import received_counts
from cloud_jobs.lake.snapshots import covering
from cloud_jobs.lake.tables import INGEST
from console.lake import OpenLake
from console.page import UNKNOWN, Clock

GRACE: Final = timedelta(minutes=5)
"""A device states with each batch up to which moment it sent all. So much older may its statement be."""

_WORDS: Final[Mapping[CertificateState, str]] = {
    CertificateState.COMPLETE: "complete",
    CertificateState.DECLARED_LOSS: "declared loss",
    CertificateState.SILENT: "silent",
    CertificateState.OPEN: "open",
}
"""The states of records, best first."""
STATES: Final = (*_WORDS.values(), UNKNOWN)


@dataclass(frozen=True, slots=True)
class FleetCoverage:
    """The coverage of all device streams at one commit of the ingest. `commit`: None before the first one.

    `streams`: the rows of each device, in their order.
    """

    commit: int | None = None
    rows: pa.Table = field(default_factory=COVERAGE_ROWS.empty_table)
    streams: Mapping[TenantDevice, range] = field(default_factory=dict)

    @classmethod
    def of(cls, commit: int | None, rows: pa.Table) -> FleetCoverage:
        """From rows that are sorted by device stream."""
        names = [*zip(rows["tenant"].to_pylist(), rows["device"].to_pylist(), strict=True)]
        begins = [at for at, name in enumerate(names) if not at or name != names[at - 1]]
        ends = [*begins[1:], len(names)]
        streams = {TenantDevice(*names[begin]): range(begin, end) for begin, end in zip(begins, ends, strict=False)}
        return cls(commit, rows, streams)

    def of_device(self, device: TenantDevice) -> dict[int, Coverage]:
        """The coverage of a device's streams by epoch; empty for a device that never sent anything."""
        held = self.streams.get(device)
        if held is None:
            return {}
        return {stream.epoch: one for stream, one in from_rows(self.rows.slice(held.start, len(held)))}

    def states(self, now: datetime) -> dict[TenantDevice, str]:
        """The state of each device's records up to `now` less GRACE; a device that is missing here is unknown.

        As the certificate of a period judges them, with a period that ends at that moment.
        """
        end_us = micros(now - GRACE)
        simple, word = self._plain_states(end_us)
        found: dict[TenantDevice, str] = {}
        for device, held in self.streams.items():
            if len(held) == 1 and simple[held.start]:
                found[device] = word[held.start]
            else:
                found[device] = _state(self.of_device(device), end_us)
        return found

    def _plain_states(self, end_us: int) -> tuple[list[bool], list[str]]:
        """For each row whether it has no declared loss, and the state that it has then."""
        rows = self.rows
        if not rows.num_rows:
            return [], []
        lists = [rows[name].combine_chunks() for name in ("received", "lost")]
        received, lost = (one.chunk(0) if isinstance(one, pa.ChunkedArray) else one for one in lists)
        bounds = received.flatten().to_numpy()
        first = received.offsets.to_numpy()[:-1] - received.offsets.to_numpy()[0]
        there = received.value_lengths().to_numpy() > 0
        through = np.zeros(rows.num_rows, np.int64)
        begins_at_one = np.zeros(rows.num_rows, np.bool_)
        begins_at_one[there] = bounds[first[there]] == 1
        through[begins_at_one] = bounds[first[begins_at_one] + 1]
        is_stated = (_ints(rows, "stated_us") >= end_us) & (_ints(rows, "stated_head") <= through)
        is_complete = (_ints(rows, "complete_until_us") >= end_us) | is_stated
        is_open = received_counts(rows) < _ints(rows, "head")
        word = np.where(is_complete, "complete", np.where(is_open, "open", "silent"))
        return (lost.value_lengths().to_numpy() == 0).tolist(), word.tolist()


def _state(streams: Mapping[int, Coverage], end_us: int) -> str:
    """The worst state of a device's streams that may hold records until a moment."""
    states = {stream_state(one, end_us) for one in relevant_streams(streams, end_us, end_us).values()}
    return _WORDS[max(states, key=[*_WORDS].index, default=CertificateState.SILENT)]


def _ints(rows: pa.Table, name: str) -> NDArray[np.int64]:
    numbers: NDArray[np.int64] = rows[name].to_numpy()
    return numbers


class CompletenessReader:
    """Keeps the coverage of a lake. Any thread may read."""

    def __init__(self, lake: OpenLake) -> None:
        self._lake = lake
        self._lock = threading.Lock()
        self._known = FleetCoverage()

    def read(self) -> FleetCoverage:
        """Raises LakeError, StoreUnavailable."""
        if not self._lake.has("records"):
            return FleetCoverage()
        commit = self._lake.newest_number("records", INGEST)
        with self._lock:
            if commit != self._known.commit:
                lake = self._lake.lake
                self._known = FleetCoverage.of(commit, lake.coverage_rows(lake.coverage_manifest(commit)))
            return self._known


def not_covered(lake: OpenLake, table: str, what: str, until: datetime, clock: Clock) -> str:
    """A sentence if a derived table lacks records from before `until`; "": it has all that the ingest has committed.

    Raises LakeError, StoreUnavailable.
    """
    if not lake.has(table) or not lake.has("records"):
        return ""
    try:
        # derived tables first: later commits then exceed what they cover
        found = covering(lake.opened(table), table, lake.opened("records"))
    except OtherRecords as error:
        return f"It is unknown whether {what.lower()} all records: {error}."
    since, stored = found.since or 0, lake.stored("records")
    if found.until == since or not len(stored):
        return ""
    bounds = zip(stored.bounds("ingest_number"), stored.bounds("device_time"), strict=True)
    # a merged file may begin with older records, and those of a far-off clock have no bound
    waiting = [begin for (_, last), (begin, _) in bounds if begin is not None and (last is None or last > since)]
    if not waiting or min(waiting) >= until:
        return ""
    count = found.until - since
    wait = "commit of the ingest waits" if count == 1 else "commits of the ingest wait"
    return f"{what} records up to {clock.text(min(waiting))}; {count:,} {wait}."


def stations(streams: Mapping[int, Coverage]) -> dict[str, Any]:
    """What is received of a device over all of its streams, and what it says that it has sent.

    `received`, `missing`, `declared_lost`: numbers of records; None for a device without coverage. `head`, `through`:
    of the newest buffer: its highest known seq, and up to where nothing is missing.
    """
    if not streams:
        return dict.fromkeys(("received", "missing", "declared_lost", "head", "through", "stated", "complete_until"))
    newest, of_all = streams[max(streams)], streams.values()
    return {
        "received": sum(one.received.count for one in of_all),
        "missing": sum(one.missing.count for one in of_all),
        "declared_lost": sum(one.declared_lost.count for one in of_all),
        "head": newest.head,
        "through": newest.covered_through,
        "stated": _moment(max(one.stated_us for one in of_all)),
        "complete_until": _moment(min(one.complete_until_us for one in of_all)),
    }


def _moment(us: int) -> datetime | None:
    if us <= 0:
        return None
    try:
        return datetime.fromtimestamp(us / 1_000_000, UTC)
    except (OverflowError, ValueError, OSError):
        return None
