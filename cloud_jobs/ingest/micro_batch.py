"""What is done with the parts of one micro-batch that executors wrote: decided, committed, counted. Without Spark.

Records, coverage, tombstones and heads become durable in one step: the commit of the records, under a number that
names the manifest of the coverage. What is written before it belongs to nothing until then. What follows it is done
again when the messages come again.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final, NamedTuple, TypeVar

import pyarrow as pa
import structlog

from cloud_jobs.errors import CommitFailed, LakeError
from cloud_jobs.ingest.decoding import Disbelieved
from cloud_jobs.ingest.deduplication import DeduplicationResult, deduplicate
from cloud_jobs.ingest.duplicates import Conflicts, compared_parts, filter_part, find_conflicts, repeated_parts
from cloud_jobs.ingest.known_coverage import KnownCoverage
from cloud_jobs.ingest.parts import WrittenPart
from cloud_jobs.ingest.quarantine import Run, commit_quarantine
from cloud_jobs.lake.appended_table import AppendedTable
from cloud_jobs.lake.coverage_log import CoverageWriter, Submit
from cloud_jobs.lake.data_files import DataFile, write_data_files
from cloud_jobs.lake.erasures import read_erasures
from cloud_jobs.lake.schemas import TABLES
from cloud_jobs.lake.tables import INGEST, Lake
from cloud_jobs.lake.transactions import MAX_ATTEMPT_S, counter_of, next_number

_log = structlog.get_logger("ingest")

_DEVICES_NAMED: Final = 10
_Item = TypeVar("_Item")
_Made = TypeVar("_Made")


class CrashPoint(StrEnum):
    """Between which writes of a micro-batch the process may die. In the order in which they are reached."""

    PARTS_WRITTEN = "parts written"
    PARTS_FILTERED = "parts filtered"
    COVERAGE_WRITTEN = "coverage written"
    COMMITTED = "committed"
    QUARANTINED = "quarantined"
    COUNTED = "counted"


class Attempt(NamedTuple):
    """A micro-batch that is about to be written: the number that its commit will have, and when it began."""

    number: int
    now: datetime
    began_s: float

    @property
    def ingest_number(self) -> int:
        """What the records have in their column."""
        return counter_of(self.number)


Counted = Callable[[Mapping[str, Any]], object]
"""Called with what a micro-batch was, as `ingest_batches` has it, when it is done."""


def ignore_counts(_: Mapping[str, Any]) -> None:
    """Counts nothing."""


def run_here(work: Callable[[_Item], _Made], items: Sequence[_Item]) -> list[_Made]:
    """Runs a function over parts one after the other."""
    return [work(item) for item in items]


class MicroBatchWriter:
    """Writes micro-batches into the records table, as the one ingest that does. Doing one again, whole or in other
    pieces, changes nothing."""

    def __init__(
        self,
        lake: Lake,
        *,
        run: Run = run_here,
        submit: Submit | None = None,
        reached: Callable[[CrashPoint], None] = lambda _: None,
        counted: Counted = ignore_counts,
    ) -> None:
        """Reads what was committed. `reached` is called at each crash point. Raises LakeError."""
        self._lake = lake
        self._run = run
        self._reached, self._counted = reached, counted
        self._files = lake.files("records")
        self._records = AppendedTable(lake, "records", INGEST)
        self._batches = AppendedTable(lake, "ingest_batches", INGEST)
        number = self._records.number
        if number is None and self._records.opened().file_uris():
            raise LakeError(
                f"the records in {lake.location} were not written by the ingest: their coverage is not known"
            )
        manifest = lake.coverage_manifest(number)
        self._known = KnownCoverage(lake.coverage_rows(manifest))
        self._coverage = CoverageWriter(lake.coverage_log, manifest, submit or _in_a_thread())

    @property
    def records_version(self) -> int:
        """The version of the records that is built upon."""
        return self._records.version

    def begin(self) -> Attempt:
        """An attempt at the next micro-batch, before its parts are written."""
        return Attempt(next_number(self._coverage.manifest.number), datetime.now(UTC), time.monotonic())

    def write(self, attempt: Attempt, parts: Sequence[WrittenPart]) -> None:
        """Makes durable what the parts hold and say. Raises Fenced, CommitFailed, LakeError."""
        self._reached(CrashPoint.PARTS_WRITTEN)
        streams = [stream for at, part in enumerate(parts) for stream in part.stream_parts(at)]
        result = deduplicate(self._known, streams)
        files = self._filter(attempt, parts, result)
        self._commit(attempt, files, result)
        conflicts = self._conflicts(attempt, parts, result)
        written = [file for part in parts for file in part.quarantined]
        written += [file for found in conflicts for file in found.quarantined]
        commit_quarantine(self._lake, written, self._run, attempt.ingest_number, attempt.now)
        self._reached(CrashPoint.QUARANTINED)
        counted = {
            "messages": sum(part.messages for part in parts),
            "malformed": sum(part.malformed for part in parts),
            "conflicts": sum(found.records for found in conflicts),
            **_disbelieved(parts),
            **_unreadable(parts),
        }
        far_off = sum(file.rows for file in files if file.day is None)
        self._count(attempt, result, counted | {"far_off": far_off})
        self._reached(CrashPoint.COUNTED)

    def _filter(self, attempt: Attempt, parts: Sequence[WrittenPart], result: DeduplicationResult) -> list[DataFile]:
        """The files to be committed, none with a duplicate."""
        files = [file for at, part in enumerate(parts) if at not in result.kept for file in part.files]
        if result.kept:
            repeated = repeated_parts(parts, result.kept)
            for written in self._run(filter_part(self._files, attempt.now), repeated):
                files += written
        self._reached(CrashPoint.PARTS_FILTERED)
        return files

    def _conflicts(
        self, attempt: Attempt, parts: Sequence[WrittenPart], result: DeduplicationResult
    ) -> Sequence[Conflicts]:
        """The records that came again with another content."""
        if not result.kept:
            return []
        # after the commit: what nobody waits for, and all that a record is held against is in the table
        compared = compared_parts(self._records.opened(), parts, result.kept, read_erasures(self._lake))
        return self._run(find_conflicts(self._lake, attempt.ingest_number, attempt.now), compared)

    def _commit(self, attempt: Attempt, files: Sequence[DataFile], result: DeduplicationResult) -> None:
        assert sum(file.rows for file in files) == result.accepted_count, "what is let in is what is written"
        # by both clocks: the one can be set back, the other stands still while the machine sleeps
        if max((datetime.now(UTC) - attempt.now).total_seconds(), time.monotonic() - attempt.began_s) > MAX_ATTEMPT_S:
            # its files may have been swept up: a commit must not name what is not there
            raise CommitFailed("records", f"the micro-batch took longer than {MAX_ATTEMPT_S:g} s")
        manifest = self._coverage.prepare(attempt.number, result.delta)
        self._reached(CrashPoint.COVERAGE_WRITTEN)
        # also without files: who was overtaken must not go on, and coverage may have changed
        self._records.commit(files, attempt.number)
        self._coverage.committed(manifest)
        # after the commit: what counts as received and is not in the table would be dropped when it comes again
        self._known.update(result.coverage)
        self._reached(CrashPoint.COMMITTED)

    def _count(self, attempt: Attempt, result: DeduplicationResult, counted: dict[str, int]) -> None:
        accepted, duplicates = result.accepted_count, result.duplicate_count
        row: dict[str, Any] = counted | {
            "ingest_number": attempt.ingest_number,
            "records": accepted + duplicates,
            "accepted": accepted,
            "duplicates": duplicates,
            "seconds": time.monotonic() - attempt.began_s,
        }
        _log.info("micro-batch", **row)
        now = datetime.now(UTC)
        rows = pa.Table.from_pylist([row | {"committed_at": now}], schema=TABLES["ingest_batches"].schema)
        files = write_data_files(self._lake.files("ingest_batches"), rows, now, table="ingest_batches")
        self._batches.commit(files, attempt.number)
        self._counted(row)


def _disbelieved(parts: Sequence[WrittenPart]) -> dict[str, Any]:
    """How many statements were not believed, and of which regions, with how far their clocks are ahead."""
    found: dict[str, Disbelieved] = {}
    for part in parts:
        for region, one in part.disbelieved.items():
            found[region] = one | found.get(region, Disbelieved(0, 0))
    # whoever reads it has to know whose clock to set
    named = [f"{region or 'no region'} {one.ahead_us // 1_000_000} s" for region, one in sorted(found.items())]
    return {"disbelieved": sum(one.count for one in found.values()), "clocks_ahead": ", ".join(named)}


def _unreadable(parts: Sequence[WrittenPart]) -> dict[str, Any]:
    """How many messages agents could not read, of how many devices all, and of which devices, these first; of those
    that came twice both."""
    found = sum((part.unreadable for part in parts), Counter[str]())
    mute = frozenset[str]().union(*(part.mute for part in parts))
    worst = sorted(found.items(), key=lambda one: (one[0] not in mute, -one[1]))[:_DEVICES_NAMED]
    named = [f"{device} {count}{' (all)' if device in mute else ''}" for device, count in worst]
    if len(found) > _DEVICES_NAMED:
        named.append(f"and {len(found) - _DEVICES_NAMED} devices more")
    return {"unreadable": found.total(), "unreadable_devices": len(mute), "unreadable_of": ", ".join(named)}


def _in_a_thread() -> Submit:
    # a large merge of coverage files is not waited for
    threads = ThreadPoolExecutor(1, "coverage-merge")
    return threads.submit
