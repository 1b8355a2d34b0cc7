"""Snapshots: the commit numbers of all tables, and the fences and track settings in use.

A snapshot names commits by counted numbers, never by a clock. Maintenance keeps what a snapshot names, so a read at it
always gives the same rows.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from pyarrow.fs import FileSelector, FileType

from cloud_jobs.errors import LakeError, OtherRecords
from cloud_jobs.lake.appending import Row, append_missing
from cloud_jobs.lake.location import error_text
from cloud_jobs.lake.tables import COVERS, FENCES, INGEST, QUARANTINED, TRACKS, Lake, row_fault_as_error
from cloud_jobs.lake.transactions import counter_of, newest_number, stated
from geo.spatial import TrackSettings

# Texts that a derived table was computed with, stored next to the tables by number.


def text_number(content: bytes) -> int:
    """The number of a text, from its SHA-256."""
    # a signed 64-bit integer that is not negative
    return int.from_bytes(hashlib.sha256(content).digest()[:8], "big") >> 1


@dataclass(frozen=True, slots=True, kw_only=True)
class AppliedTexts:
    """A kind of texts that tables were computed with, stored in the lake by number.

    `what` and `else_` complete the message of an error: what cannot be read, and what to do.
    """

    folder: str
    within: str
    ending: str
    what: str
    else_: str

    def path(self, number: int) -> str:
        return f"{self.within}/{number:016x}.{self.ending}"

    def note(self, lake: Lake, content: bytes) -> int:
        """Stores a text unless it is there, and returns its number. Raises OSError, LakeError."""
        files, number = lake.files(self.folder), text_number(content)
        if self.read(lake, number) is None:
            files.create_dir(self.within, recursive=True)
            beside = f"{self.within}/{uuid4().hex}.part"
            with files.open_output_stream(beside) as file:
                file.write(content)
            files.move(beside, self.path(number))
        return number

    def read(self, lake: Lake, number: int) -> bytes | None:
        """The text of a number; None if it is missing or damaged.

        Raises StoreUnavailable, LakeError for a file that exists and cannot be read.
        """
        try:
            with lake.location.errors_named(), lake.files(self.folder).open_input_file(self.path(number)) as file:
                content = bytes(file.read())
        except FileNotFoundError:
            return None
        except OSError as error:
            place = f"{lake.path(self.folder)}/{self.path(number)}"
            raise LakeError(
                f"the {self.what} cannot be read: {place}: {error_text(error)}; if this persists, {self.else_}"
            ) from error
        return content if text_number(content) == number else None

    def is_kept(self, lake: Lake, number: int) -> bool:
        with lake.location.errors_named():
            return lake.files(self.folder).get_file_info(self.path(number)).type is not FileType.NotFound


# Track settings and engine version of usage: stored with the table, pinned by snapshots, named by each row.

_KEPT_TRACKS: Final = AppliedTexts(
    folder="applied_tracks",
    within="settings",
    ending="json",
    what="track settings that usage was computed with",
    else_="remove it: the next run of `cloud-jobs usage` writes it again",
)


def note_tracks(lake: Lake, values: Mapping[str, float | None]) -> int:
    """Stores track settings for `applied_tracks`, and returns their number. Raises OSError, LakeError."""
    return _KEPT_TRACKS.note(lake, json.dumps(dict(values), sort_keys=True, separators=(",", ":")).encode())


def applied_tracks(lake: Lake, usage: DeltaTable) -> str | None:
    """The track settings that usage was computed with, as text; None: the table states none.

    Raises StoreUnavailable, LakeError also if they are stated and missing.
    """
    number = stated(usage, TRACKS)
    if number is None:
        return None
    content = _KEPT_TRACKS.read(lake, number)
    if content is None:
        raise LakeError(
            f"the track settings of the usage are missing in {lake.path(_KEPT_TRACKS.folder)}:"
            " run `cloud-jobs usage`, which writes them again"
        )
    return content.decode()


# Progress of a derived table, as the table states it. No Spark.

COVERED_COMMIT: Final = "covered_commit"
"""The name under which a derived table states the number of the ingest's commit that it covers."""


class Covering(NamedTuple):
    """`since`: the ingest number up to which a table covers the records; None: never computed. `until`: the newest
    ingest number; `newest`: its commit.
    """

    since: int | None
    until: int
    newest: int | None


def covering(opened: DeltaTable, table: str, records: DeltaTable) -> Covering:
    """Compares a derived table with the records, which must have been opened after it.

    Raises OtherRecords for a table that covers more than the records have, as after a partial restore.
    """
    newest = newest_number(records, INGEST)
    found = Covering(stated(opened, COVERS), counter_of(newest), newest)
    since = found.since or 0
    if since > found.until or (since == found.until and since and stated(opened, COVERED_COMMIT) not in {None, newest}):
        raise OtherRecords(table, covered_number=since, found_number=found.until)
    return found


TABLE: Final = "snapshots"
_DIGITS: Final = 12
_MAX_NAMED: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeState:
    """The commit numbers that a snapshot pins, 0 or None where there was no commit.

    `ingest_commit`, `usage_commit` include random bits, so another history of the lake gives another snapshot.
    `covers`: the ingest number up to which usage covers the records. `usage_fences`, `usage_tracks`: the number of the
    fences, and the track settings and engine version as JSON, that usage was computed with. `events_commit`,
    `events_fences`, `events_covers`: the same of `geofence_events`; None: never computed.
    """

    ingest_commit: int | None = None
    usage_commit: int | None = None
    usage_fences: int | None = None
    usage_tracks: str | None = None
    covers: int = 0
    reference_commit: int = 0
    erasures_number: int = 0
    decisions_number: int = 0
    quarantine_commit: int = 0
    events_commit: int | None = None
    events_fences: int | None = None
    events_covers: int | None = None

    def __post_init__(self) -> None:
        assert 0 <= self.covers <= self.ingest_number, "usage never covers what the records lack"

    @property
    def ingest_number(self) -> int:
        return counter_of(self.ingest_commit)

    @property
    def usage_number(self) -> int:
        return counter_of(self.usage_commit)

    @property
    def events_number(self) -> int:
        return counter_of(self.events_commit)

    def digest(self) -> str:
        # a state without events has the digest that it had before the lake knew any
        said = {name: value for name, value in _columns(self).items() if value is not None or name not in _EVENTS}
        text = json.dumps(said, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot(LakeState):
    """A state of the lake that can be read for years. `number` counts from 1. `taken_at` is not part of the state."""

    number: int
    taken_at: datetime

    @property
    def id(self) -> str:
        """Number and digest, as in `12-0a1b2c3d4e5f`."""
        return f"{self.number}-{self.digest()[:_DIGITS]}"


_STATE: Final = tuple(LakeState.__dataclass_fields__)
_EVENTS: Final = ("events_commit", "events_fences", "events_covers")


def take_snapshot(lake: Lake, now: datetime) -> Snapshot:
    """The snapshot of the current lake: the newest one if nothing changed, else a new row.

    Concurrent callers get the same one. Raises LakeError, CommitConflict, StoreUnavailable.
    """
    assert now.utcoffset() is not None, "a moment"
    taken: list[Snapshot] = []

    def missing(rows: pa.Table) -> list[Row]:
        # read after the snapshots, so a snapshot committed before is not newer than this state
        state = newest_state(lake)
        newest = rows.filter(pc.equal(rows["number"], pc.max(rows["number"]))).to_pylist()
        last = _snapshot(newest[0]) if newest else None
        if last is not None and last.digest() == state.digest():
            taken[:] = [last]
            return []
        number = 1 if last is None else last.number + 1
        taken[:] = [Snapshot(**_columns(state), number=number, taken_at=now.astimezone(UTC))]
        return [_columns(taken[0]) | {"number": number, "id": taken[0].id, "taken_at": taken[0].taken_at}]

    append_missing(lake, TABLE, ["number", "id", "taken_at", *_STATE], missing)
    return taken[0]


def snapshots(lake: Lake) -> list[Snapshot]:
    return sorted((_snapshot(row) for row in lake.rows(TABLE).to_pylist()), key=lambda one: one.number)


def read_snapshot(lake: Lake, snapshot_id: str) -> Snapshot:
    """Raises LakeError, also for a snapshot that was not taken."""
    found = lake.rows(TABLE, where=[("id", "=", snapshot_id)]).to_pylist()
    if not found:
        newest = ", ".join(one.id for one in snapshots(lake)[-_MAX_NAMED:])
        raise LakeError(f"no snapshot {snapshot_id!r} was taken; the newest are: {newest or 'none'}")
    return _snapshot(found[0])


def commits_of_snapshots(lake: Lake) -> set[int]:
    """The commits of the ingest whose coverage a snapshot needs. Raises LakeError."""
    commits = lake.rows(TABLE, ["ingest_commit"])["ingest_commit"].drop_null().unique()
    return {*commits.to_pylist()}


def newest_state(lake: Lake) -> LakeState:
    """The current state. Derived tables are read first: later commits may exceed what they cover, and never lack it."""
    usage, events = lake.open("usage"), lake.open("geofence_events")
    covered = covering(usage, "usage", lake.open("records"))
    return LakeState(
        ingest_commit=covered.newest,
        usage_commit=newest_number(usage, "usage"),
        usage_fences=stated(usage, FENCES),
        usage_tracks=applied_tracks(lake, usage),
        covers=covered.since or 0,
        reference_commit=_highest(lake, "reference", "commit_number"),
        # read after the records, so the erasure of every missing position is known
        erasures_number=_highest(lake, "erasures", "number"),
        decisions_number=_highest(lake, "decisions", "number"),
        quarantine_commit=counter_of(newest_number(lake.open("quarantine"), QUARANTINED)),
        events_commit=newest_number(events, "geofence_events"),
        events_fences=stated(events, FENCES),
        events_covers=stated(events, COVERS),
    )


def _highest(lake: Lake, table: str, column: str) -> int:
    return int(pc.max(lake.rows(table, [column])[column]).as_py() or 0)


def _columns(state: LakeState) -> dict[str, Any]:
    return {name: getattr(state, name) for name in _STATE}


def _snapshot(row: Row) -> Snapshot:
    with row_fault_as_error(TABLE, row):
        made = Snapshot(
            **{name: row[name] for name in _STATE},
            number=row["number"],
            taken_at=row["taken_at"].astimezone(UTC),
        )
        if made.id != row["id"]:
            raise ValueError("its id does not match its content")
        return made


COMPUTED_WITH_FENCES: Final = ("usage", "geofence_events")
"""The tables that state the number of their fences."""


KEPT_FENCES: Final = AppliedTexts(
    folder="applied_fences",
    within="features",
    ending="geojson",
    what="fences that were applied last",
    else_="remove it: all is computed again then",
)


def fences_number(features: Sequence[str]) -> int:
    return text_number(_fences_content(features))


def note_fences(lake: Lake, features: Sequence[str]) -> int:
    """Stores a set of fences for `changes_since`, and returns its number. Raises OSError, LakeError."""
    return KEPT_FENCES.note(lake, _fences_content(features))


def sweep_fences(lake: Lake, older_than_s: float) -> int:
    """Deletes old sets of fences that no table was last computed with, and returns their number.

    `older_than_s`: since 1970. Without a set, the next run computes more than it had to. Raises LakeError, OSError.
    """
    files, used = lake.files(KEPT_FENCES.folder), [stated(lake.open(table), FENCES) for table in COMPUTED_WITH_FENCES]
    listed = files.get_file_info(FileSelector(KEPT_FENCES.within, allow_not_found=True))
    kept = {KEPT_FENCES.path(number) for number in used if number is not None}
    gone = [info for info in listed if info.is_file and info.path not in kept and info.mtime.timestamp() < older_than_s]
    for info in gone:
        # another run may have been faster
        with suppress(FileNotFoundError):
            files.delete_file(info.path)
    return len(gone)


def read_fences(lake: Lake, number: int) -> tuple[str, ...] | None:
    """A set of fences by its number; None if it is missing or damaged."""
    content = KEPT_FENCES.read(lake, number)
    try:
        # not splitlines: a feature may contain a carriage return
        return None if content is None else tuple(content.decode().split("\n")[:-1])
    except UnicodeDecodeError:
        return None


def _fences_content(features: Sequence[str]) -> bytes:
    return "".join(f"{feature}\n" for feature in features).encode()


# The track settings and engine of a snapshot's usage, and how far fixes around a period affect it.

MAX_SEGMENT: Final = timedelta(days=1)
"""A usage row covers segments that end in its hour; a segment begins at most this long before."""


class Reach(NamedTuple):
    """How long before and after a period fixes affect what is metered in it."""

    before: timedelta = timedelta()
    after: timedelta = timedelta()


def reach_at(snapshot: LakeState) -> Reach:
    tracks = tracks_at(snapshot)
    return Reach(timedelta(milliseconds=tracks.margin_ms), timedelta(milliseconds=tracks.reach_ahead_ms))


def tracks_at(snapshot: LakeState) -> TrackSettings:
    stated = _stated(snapshot)
    # the text also has the engine version, and perhaps settings of earlier versions
    return TrackSettings.model_validate({name: stated[name] for name in TrackSettings.model_fields if name in stated})


def engine_at(snapshot: LakeState) -> int | None:
    """The engine version that computed the usage of a snapshot; None if it states none."""
    found: int | None = _stated(snapshot).get("engine_version")
    return found


def _stated(snapshot: LakeState) -> dict[str, Any]:
    # a lake without usage states none
    found: dict[str, Any] = json.loads(snapshot.usage_tracks or "{}")
    return found
