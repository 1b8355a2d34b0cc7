"""Reference data is pushed: fences, tariffs and accounts are published to compacted topics and arrive like records.

`reference_publisher` publishes them; here they are collected into the table `reference`, each publication once. Any
number of collectors may run at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import structlog

from cloud_jobs.errors import ClockBehind
from cloud_jobs.lake.shared_append import append_missing
from cloud_jobs.lake.tables import Lake
from cloud_jobs.lake.transactions import MAX_LEAD
from cloud_jobs.published_fences import fences_in
from cloud_jobs.reference_note import note_taken
from geo.reference.in_force import publication_order
from geo.reference.messages import (
    NAMESPACE,
    TOPICS,
    Kind,
    QuarantinedMessage,
    ReferenceTrust,
    check_content,
    named_message,
    quarantined_publication,
    read_messages,
)
from waybill.identity.publication_id import is_far_ahead

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MAX_NAMED: Final = 100
"""Of what cannot be used so many are named in a line of the log."""
_HELD_COLUMNS: Final = ["publication_id", "digest", "commit_number"]
_FAR_AHEAD: Final = (
    "ahead: it was published by a clock more than five minutes ahead; publish it again by one that is right"
)
_log = structlog.get_logger(__name__)

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class CollectedReference:
    """What a collector found: publications that the table holds now, how many of them it added, and what is none."""

    publications: int
    added: int
    quarantined: tuple[QuarantinedMessage, ...]


def collect(
    spark: SparkSession, lake: Lake, source_options: dict[str, str], trust: ReferenceTrust
) -> CollectedReference:
    """Takes what the topics hold into the tables. Fences that cannot be used are logged.

    Raises ClockBehind, CommitConflict.
    """
    _check_clock(lake, datetime.now(UTC))
    messages = {
        kind: (
            spark.read.format("pulsar")
            .options(**source_options)
            .option("topics", f"{NAMESPACE}/{topic}")
            .option("readCompacted", "true")
            .load()
            .select("key", "value", "properties", "publish_time", "message_id", "malformed")
            .toArrow()
            .to_pylist()
        )
        for kind, topic in TOPICS.items()
    }
    collected = store(lake, messages, trust)
    _log_named("messages that are no publications", collected.quarantined)
    _log_named("fences that cannot be used", fences_in(lake).refused)
    note_taken(lake, datetime.now(UTC))
    return collected


def store(
    lake: Lake,
    messages: Mapping[Kind, Iterable[dict[str, Any]]],
    trust: ReferenceTrust,
    *,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
    pause: Callable[[float], object] = time.sleep,
) -> CollectedReference:
    """Takes messages of each topic into the tables, those that are no publications into the quarantine.

    So is what nobody signed whom `trust` takes.

    Each is there once, however often it comes and however many do this at once. Raises CommitConflict, LakeError.
    """
    publications, quarantined = list[Row](), list[Row]()
    began, refused, held = now(), _refused(lake), _held(lake)
    for kind, of_kind in messages.items():
        read = read_messages(kind, of_kind, trust, held)
        quarantined += read.quarantined
        for row in read.publications:
            if found := _quarantined(row, refused, began):
                quarantined.append(found)
            else:
                publications.append(row)
    contradicting: list[Row] = []

    def missing(table: pa.Table) -> list[Row]:
        digests = dict(zip(*(table[name].to_pylist() for name in ("publication_id", "digest")), strict=True))
        new, contradicting[:] = _compared(digests, publications)
        number = 1 + (pc.max(table["commit_number"]).as_py() or 0)
        return [row | {"collected_at": began, "commit_number": number} for row in new]

    added = append_missing(lake, "reference", _HELD_COLUMNS, missing, pause=pause)
    quarantined += contradicting
    _quarantine(lake, quarantined, now, pause)
    named = tuple(named_message(row) for row in quarantined)
    return CollectedReference(lake.open("reference").count(), len(added), named)


def _check_clock(lake: Lake, now: datetime) -> None:
    # what was published a minute ago would be refused for good, as by a clock far ahead
    latest = lake.open("records").history(1)
    committed = max((datetime.fromtimestamp(one["timestamp"] / 1000, UTC) for one in latest), default=now)
    if committed > now + MAX_LEAD:
        raise ClockBehind(now, committed)


def _held(lake: Lake) -> dict[str, str]:
    """The digests of what was taken, by the ids of the publications."""
    table = lake.rows("reference", ["publication_id", "digest"])
    return dict(zip(table["publication_id"].to_pylist(), table["digest"].to_pylist(), strict=True))


def _refused(lake: Lake) -> dict[str, dict[str, str]]:
    """By publication id the reasons for which contents under it were refused, by their fingerprints."""
    found: dict[str, dict[str, str]] = {}
    for row in lake.rows("reference_quarantine", ["publication_id", "fingerprint", "reason"]).to_pylist():
        found.setdefault(row["publication_id"], {})[row["fingerprint"]] = row["reason"]
    return found


def _quarantined(row: Row, refused: Mapping[str, Mapping[str, str]], now: datetime) -> Row | None:
    """The row of the quarantine for a publication that is refused; None: it is not.

    What was refused once stays so: a clock that moves on must not put it in force after its correction.
    """
    if before := refused.get(row["publication_id"]):
        made = quarantined_publication(row, _FAR_AHEAD)
        if reason := before.get(made["fingerprint"]):
            return made | {"reason": reason}
    if is_far_ahead(row["publication_id"], now.timestamp() * 1000):
        return quarantined_publication(row, _FAR_AHEAD)
    return None


def _compared(digests: dict[str, str], publications: Iterable[Row]) -> tuple[list[Row], list[Row]]:
    """Of publications those with an id that is not held, each once, and rows for those that say another thing."""
    new, contradicting, held = list[Row](), list[Row](), {*digests}
    for row in publications:
        name = row["publication_id"]
        try:
            check_content(row, digests.setdefault(name, row["digest"]))
        except ValueError as fault:
            contradicting.append(quarantined_publication(row, str(fault)))
        else:
            if name not in held:
                held.add(name)
                new.append(row)
    return new, contradicting


def _quarantine(lake: Lake, rows: Sequence[Row], now: Callable[[], datetime], pause: Callable[[float], object]) -> None:
    def missing(table: pa.Table) -> list[Row]:
        known = {*table["fingerprint"].to_pylist()}
        new = {row["fingerprint"]: row for row in rows if row["fingerprint"] not in known}
        return [row | {"quarantined_at": now()} for row in new.values()]

    if rows:
        append_missing(lake, "reference_quarantine", ["fingerprint"], missing, pause=pause)


def _log_named(event: str, named: Sequence[object]) -> None:
    if named:
        not_named = max(len(named) - MAX_NAMED, 0)
        _log.warning(event, count=len(named), refused=[str(one) for one in named[:MAX_NAMED]], not_named=not_named)


def quarantined_messages(lake: Lake) -> list[Row]:
    """The quarantine of the reference data, without the contents, in the order in which it was filled."""
    names = ["topic", "message_id", "key", "publication_id", "reason", "published_at", "quarantined_at"]
    rows = lake.rows("reference_quarantine", names).to_pylist()
    return sorted(rows, key=lambda row: (row["quarantined_at"], row["topic"], row["message_id"] or ""))


def publications_in(lake: Lake) -> list[Row]:
    """All rows of the reference table, in the order in which they were published."""
    return sorted(lake.rows("reference").to_pylist(), key=publication_order)
