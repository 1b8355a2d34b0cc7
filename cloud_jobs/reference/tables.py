"""Collects published reference data from compacted topics into the table `reference`, each publication once.

Several collectors may run at once.
"""

from __future__ import annotations

import json
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import structlog

from cloud_jobs.errors import CloudError
from cloud_jobs.lake.appending import append_missing
from cloud_jobs.lake.tables import Lake, checked_time
from cloud_jobs.lake.values import hex_digest
from geo.alerts import AlertError
from geo.reference.in_force import (
    InForce,
    PublishedFences,
    Usable,
    parse_fence,
    publication_order,
    published_fences,
    versions_in_force,
)
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
from geo.spatial import FenceError
from geo.spatial.activity import effective_ms
from waybill.identity.signatures import is_far_ahead

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from geo.spatial import Fence, Gate


# Published fences in the lake. No Spark.


class ParsedFences(NamedTuple):
    fences: tuple[Fence, ...]
    gates: tuple[Gate, ...]


def parse_fences(features: Iterable[str]) -> ParsedFences:
    """The fences and gates of features, each a text.

    Raises CloudError for an unusable one: without it, its published events would be retracted.
    """
    from geo.spatial import Fence, Gate  # noqa: PLC0415

    made = [*parsed(features)]
    return ParsedFences(
        tuple(one for one in made if isinstance(one, Fence)), tuple(one for one in made if isinstance(one, Gate))
    )


def parsed(features: Iterable[str]) -> Iterator[Fence | Gate]:
    """The fence or gate of each feature. Raises CloudError for an unusable one."""
    try:
        yield from map(parse_fence, features)
    except FenceError as fault:
        raise CloudError(f"nothing is computed, for a fence that was published cannot be used: {fault}") from fault


def fences_in(lake: Lake) -> PublishedFences:
    """The fences in force, validated again only when the table changes."""
    table = lake.open("reference")
    return _fences_at(lake, table.metadata().id, table.version())


# a job that follows asks every few seconds, and the fences of a country take longer than that to validate
@lru_cache(maxsize=1)
def _fences_at(lake: Lake, _table_id: str, _version: int) -> PublishedFences:
    return published_fences(lake.rows("reference", where=[("kind", "=", "fence")]).to_pylist())


# Reference data in force at the centre, by `geo.reference`. No Spark.

Made = TypeVar("Made")


def in_force(rows: Iterable[dict[str, Any]], parse: Callable[[str, str], Usable[Made]]) -> InForce[Made]:
    """The versions in force, from rows of the reference table in any order.

    `parse` makes an object of a kind and a text, or raises CloudError, AlertError or FenceError.
    """
    return versions_in_force(rows, parse, (CloudError, AlertError, FenceError))


# When a job last read the reference topics, stored in the lake. No Spark.

_NOTE: Final = "last-reference.json"


def note_taken(lake: Lake, now: datetime) -> None:
    """Notes in the lake that the topics were read. Raises OSError, LakeError."""
    with lake.location.errors_named(), lake.location.files().open_output_stream(_NOTE) as file:
        file.write(json.dumps({"taken_at": now.isoformat()}).encode())


def reference_taken_at(lake: Lake) -> datetime | None:
    """When a job last read the topics, or None. Raises StoreUnavailable."""
    try:
        with lake.location.errors_named(), lake.location.files().open_input_file(_NOTE) as file:
            return datetime.fromisoformat(json.loads(file.read())["taken_at"]).astimezone(UTC)
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


MAX_NAMED: Final = 100
"""Unusable versions that are named in one log line."""
_HELD_COLUMNS: Final = ["publication_id", "digest", "commit_number"]
_FAR_AHEAD: Final = "ahead: its publisher's clock was more than five minutes ahead; correct it and publish again"
_log = structlog.get_logger(__name__)

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class CollectionResult:
    """The publications in the table, how many are new, and messages that are no publications."""

    publications: int
    added: int
    quarantined: tuple[QuarantinedMessage, ...]


def collect(spark: SparkSession, lake: Lake, source_options: dict[str, str], trust: ReferenceTrust) -> CollectionResult:
    """Copies the topics into the tables, and logs fences that cannot be used.

    Raises ClockError, CommitConflict, LakeError.
    """
    # with a clock that is behind, new publications would be refused as far ahead, for good
    checked_time(lake)
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
) -> CollectionResult:
    """Adds new publications to the table, and messages that are none, or that `trust` refuses, to the quarantine.

    Each is added once, however often it comes and however many collectors run. Raises CommitConflict, LakeError.
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
    return CollectionResult(lake.open("reference").count(), len(added), named)


def _held(lake: Lake) -> dict[str, str]:
    """The digests of stored publications by id."""
    table = lake.rows("reference", ["publication_id", "digest"])
    return dict(zip(table["publication_id"].to_pylist(), table["digest"].to_pylist(), strict=True))


def _refused(lake: Lake) -> dict[str, dict[str, str]]:
    """By publication id, the fingerprints of refused contents with the reasons."""
    found: dict[str, dict[str, str]] = {}
    for row in lake.rows("reference_quarantine", ["publication_id", "fingerprint", "reason"]).to_pylist():
        found.setdefault(row["publication_id"], {})[row["fingerprint"]] = row["reason"]
    return found


def _quarantined(row: Row, refused: Mapping[str, Mapping[str, str]], now: datetime) -> Row | None:
    """The row of the quarantine for a refused publication, or None.

    A refused publication stays refused, so that it cannot come into force after its correction.
    """
    if before := refused.get(row["publication_id"]):
        made = quarantined_publication(row, _FAR_AHEAD)
        if reason := before.get(made["fingerprint"]):
            return made | {"reason": reason}
    if is_far_ahead(row["publication_id"], now.timestamp() * 1000):
        return quarantined_publication(row, _FAR_AHEAD)
    return None


def _compared(digests: dict[str, str], publications: Iterable[Row]) -> tuple[list[Row], list[Row]]:
    """New publications, each once, and rows for those with a stored id and other content."""
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
    """The quarantine of reference data without the contents, in the order of arrival."""
    names = ["topic", "message_id", "key", "publication_id", "reason", "published_at", "quarantined_at"]
    rows = lake.rows("reference_quarantine", names).to_pylist()
    return sorted(rows, key=lambda row: (row["quarantined_at"], row["topic"], row["message_id"] or ""))


def publications_in(lake: Lake) -> list[Row]:
    return sorted(lake.rows("reference").to_pylist(), key=publication_order)


NO_FENCE: Final = ""
"""The fence version of rows without a fence."""


_HOUR_MS: Final = 3_600_000


class FenceVersions:
    """The versions of a fence that apply in an hour, or within a gap before it.

    A segment belongs to the hour of the fix that ends it, and begins at most a gap earlier. `made`: each feature as
    text, and its fence or gate.
    """

    def __init__(self, made: Iterable[tuple[str, Fence | Gate]], gap_ms: int) -> None:
        self._gap_ms = gap_ms
        self._of_id: dict[str, list[list[tuple[int, str]]]] = {}
        # one id may stand for a fence and for a gate, if they were published one by one
        kinds: dict[tuple[str, type], list[tuple[int, str]]] = {}
        for body, place in made:
            text = json.dumps(json.loads(body), sort_keys=True)
            kinds.setdefault((place.id, type(place)), []).append((effective_ms(place), text))
        for (name, _), versions in sorted(kinds.items(), key=lambda item: (item[0][0], item[0][1].__name__)):
            self._of_id.setdefault(name, []).append(sorted(versions))
        self._known: dict[tuple[str, ...], str] = {}

    def of(self, zone: str, hour: int) -> str:
        """The fence version of a zone in an hour since 1970; NO_FENCE if the zone is no fence.

        16 hex digits of the SHA-256 of the bodies, each on one line with sorted keys, in the order of their beginnings.
        """
        kinds = self._of_id.get(zone)
        if kinds is None:
            return NO_FENCE
        if len(kinds) == 1 and len(kinds[0]) == 1:
            bodies: tuple[str, ...] = (kinds[0][0][1],)
        else:
            bodies = tuple(body for versions in kinds for body in self._standing(versions, hour))
        if bodies not in self._known:
            self._known[bodies] = hex_digest("".join(f"{body}\n" for body in bodies))
        return self._known[bodies]

    def _standing(self, versions: Sequence[tuple[int, str]], hour: int) -> list[str]:
        begins = [begin for begin, _ in versions]
        first = max(bisect_right(begins, hour * _HOUR_MS - self._gap_ms) - 1, 0)
        end = bisect_left(begins, (hour + 1) * _HOUR_MS)
        return [body for _, body in versions[first:end]]
