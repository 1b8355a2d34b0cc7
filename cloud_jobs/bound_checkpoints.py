"""A folder of checkpoints belongs to one lake: a note in it says to which, and up to which commit of the ingest.

The ingest's checkpoint says what was read, and how far a table was published is noted beside it: of another lake, or of
an earlier state of this one, neither is true, and what lies between would be left out. The note is written after the
commit that it names, so it is never ahead of its lake.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from cloud_jobs.errors import LakeError, OtherLake
from cloud_jobs.lake.snapshots import commits_of_snapshots
from cloud_jobs.lake.tables import INGEST, Lake
from cloud_jobs.lake.transactions import counter_of, newest_number
from waybill.daemon.durable_file import create_durably, replace_durably

_NOTE: Final = "of-lake.json"
_TABLE_ID: Final = "table_id"
_COMMIT: Final = "commit"


class _Noted(NamedTuple):
    """The id of the records table, and the number of the newest commit of the ingest; 0: there was none."""

    table_id: str
    commit: int


@dataclass(frozen=True, slots=True)
class BoundCheckpoints:
    """The checkpoints in a folder, and the lake that they are used with."""

    folder: Path
    lake: Lake

    def check(self) -> None:
        """Raises OtherLake if the note says that they are of another lake, or of a state of it that was lost.

        No note: none. What is older than `maintenance.history_days` is not known to be lost. Raises LakeError.
        """
        # before the lake is looked at: a commit that is made from here on is no later state
        noted = self._noted()
        if noted is None:
            return
        try:
            found = self._found()
        except LakeError as error:
            raise OtherLake(str(self.folder), str(self.lake.location), f"that cannot be it: {error}") from error
        there, here = counter_of(noted.commit), counter_of(found.commit)
        if noted.table_id != found.table_id:
            raise OtherLake(str(self.folder), str(self.lake.location), "its records are another table")
        if there > here or (there == here and noted.commit != found.commit):
            reason = f"they are of ingest number {there}, and it is at {here}: it was brought back from a copy"
            raise OtherLake(str(self.folder), str(self.lake.location), reason)
        if 0 < there < here and self._is_of_another_history(noted.commit):
            reason = f"their ingest number {there} is not that of it: it was brought back from a copy, and has gone on"
            raise OtherLake(str(self.folder), str(self.lake.location), reason)

    def bind(self) -> None:
        """Notes the lake as it is, where there is no note; else as `check`. Raises OtherLake, LakeError, OSError."""
        self.check()
        self.folder.mkdir(parents=True, exist_ok=True)
        if self._noted() is None:
            create_durably(self.folder / _NOTE, _content(self._found()))

    def note(self, commit: int) -> None:
        """Notes a commit of the ingest, which was made."""
        noted = self._noted()
        assert noted is not None, "they are bound before anything is committed"
        replace_durably(self.folder / _NOTE, _content(noted._replace(commit=commit)))

    def _is_of_another_history(self, commit: int) -> bool:
        with self.lake.damage_as_error("coverage"):
            return self.lake.coverage_log.never_had(commit, commits_of_snapshots(self.lake))

    def _found(self) -> _Noted:
        opened = self.lake.open("records")
        return _Noted(str(opened.metadata().id), newest_number(opened, INGEST) or 0)

    def _noted(self) -> _Noted | None:
        try:
            note = json.loads((self.folder / _NOTE).read_text(encoding="utf-8"))
            return _Noted(str(note[_TABLE_ID]), int(note[_COMMIT]))
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise OtherLake(str(self.folder), str(self.lake.location), f"{_NOTE} there is damaged: {error}") from error


def _content(noted: _Noted) -> bytes:
    return json.dumps({_TABLE_ID: noted.table_id, _COMMIT: noted.commit}).encode()
