"""What is known of the centre at one moment. None stands for unknown, everywhere. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any


@dataclass(frozen=True, slots=True)
class TableStatus:
    """A table as its log has it. `rows`: None if the log does not say; `missing_files`: named by the log, not there."""

    table: str
    rows: int | None = None
    files: int | None = None
    bytes: int | None = None
    committed_at: datetime | None = None
    missing_files: int | None = None
    error: str = ""


@dataclass(frozen=True, slots=True)
class DerivedStatus:
    """How far a derived table is behind the records.

    `computed`: whether it ever was. `records_behind`: None where a merged file holds old and new records; then
    `records_behind_at_most` alone is known. `waiting_since`: when the oldest commit that it does not cover was made.
    `fences_since`: since when other fences are in force than those that it was computed with; None: they are the same.
    `unpublished_since`: when the oldest row was made that is due to be published from this machine; None: none is.
    """

    table: str
    computed: bool | None = None
    commits_behind: int | None = None
    records_behind: int | None = None
    records_behind_at_most: int | None = None
    waiting_since: datetime | None = None
    fences_since: datetime | None = None
    unpublished_since: datetime | None = None
    error: str = ""


@dataclass(frozen=True, slots=True)
class TopicLag:
    """What waits for the ingest in one topic partition. `oldest`: when the oldest of these messages was published.

    `answered`: whether the cluster said something of it, if only that it has no such topic or subscription.
    """

    topic: str
    cluster: str
    backlog: int | None = None
    oldest: datetime | None = None
    error: str = ""
    answered: bool = True


@dataclass(frozen=True, slots=True)
class TopicLeftOut:
    """A topic that the ingest cannot read, and reads the others without: why, and since when."""

    topic: str
    cluster: str
    reason: str
    since: datetime


@dataclass(frozen=True, slots=True)
class CoverageStatus:
    """What the coverage says: device streams, those with a gap, records received, declared lost, and missing."""

    streams: int
    open_streams: int
    received: int
    declared_lost: int
    missing: int


@dataclass(frozen=True, slots=True)
class ReferenceStatus:
    """Versions of fences, tariffs and accounts: in force, publications that cannot be used, messages that are none.

    `taken_at`: when a job last took what was published; None: none is known.
    """

    in_force: int
    refused: int
    quarantined: int
    taken_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class MaintenanceStatus:
    """The last run of the maintenance; `ended_at` None: none is known."""

    ended_at: datetime | None = None
    seconds: float | None = None
    errors: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ProvisionalStatus:
    """Alerts that wait for their verdicts: the longest that one may, and since when the oldest does; None: none does.

    `error`: why that is unknown. `was_collected`: False where no alert ever was, so that nothing is known of any.
    """

    bound_s: float
    since: datetime | None = None
    error: str = ""
    was_collected: bool = True


@dataclass(frozen=True, slots=True)
class CentreStatus:
    """All of it. `clock_ahead_s`: how far this machine's clock is ahead of that of the lake's store.

    `ingest_number`, `fence`: of the newest commit of the ingest, counted from 1, and whole, as its writer drew it.
    `newest_batch`: the newest row of `ingest_batches`. `quarantine`: rows by cause. `erasures_pending`: declared, and
    not yet done in all files. `provisional`: None where nobody asked. `errors`: what could not be read,
    by its name. `token_problem`: that the token of `[access]` has ended or ends soon; "": it does not.
    """

    now: datetime
    clock_ahead_s: float | None = None
    ingest_number: int | None = None
    fence: int | None = None
    tables: tuple[TableStatus, ...] = ()
    derived: tuple[DerivedStatus, ...] = ()
    lag: tuple[TopicLag, ...] = ()
    left_out: tuple[TopicLeftOut, ...] = ()
    coverage: CoverageStatus | None = None
    newest_batch: Mapping[str, Any] | None = None
    quarantine: Mapping[str, int] | None = None
    reference: ReferenceStatus | None = None
    erasures: int | None = None
    erasures_pending: int | None = None
    maintenance: MaintenanceStatus = MaintenanceStatus()
    provisional: ProvisionalStatus | None = None
    errors: Mapping[str, str] = field(default_factory=dict)
    token_problem: str = ""

    def age_s(self, moment: datetime | None) -> float | None:
        """Seconds since a moment; None for None."""
        return None if moment is None else (self.now - moment).total_seconds()

    def document(self) -> dict[str, Any]:
        """As JSON has it: moments in ISO 8601, with their ages."""
        plain = asdict(self)
        moments = {"tables": "committed_at", "derived": "waiting_since", "lag": "oldest", "left_out": "since"}
        for name, moment in moments.items():
            for row in plain[name]:
                row["age_s"] = self.age_s(row[moment])
        for held in (plain["maintenance"], *([plain["newest_batch"]] if plain["newest_batch"] else [])):
            held["age_s"] = self.age_s(held.get("ended_at") or held.get("committed_at"))
        made: dict[str, Any] = _plain(plain)
        return made


def _plain(value: Any) -> Any:
    match value:
        case datetime():
            return value.isoformat(timespec="milliseconds")
        case Mapping():
            return {name: _plain(one) for name, one in value.items()}
        case list() | tuple():
            return [_plain(one) for one in value]
        case _:
            return value
