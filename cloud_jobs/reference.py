"""Reference data is pushed: fences, tariffs and accounts are published to compacted topics and arrive like records.

`reference_files` publishes them; here they are collected into the table `reference`.

The key of a version is its id and the moment from which it is in force, so that compaction keeps every version. Both
stand in its body, too; a publication whose key says another thing is refused: compaction would go by the one, and all
else by the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import pyarrow as pa
import structlog

from cloud_jobs.lake.beginning import beginning, instant_text
from cloud_jobs.lake.schemas import REFERENCE, publication_order
from cloud_jobs.lake.tables import Lake
from cloud_jobs.published_fences import PublishedFences, published_fences
from geo.spatial.geojson import named
from telemetry import InvalidJson, parse_json

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Kind = Literal["fence", "tariff", "account"]
TOPICS: dict[Kind, str] = {"fence": "fences", "tariff": "tariffs", "account": "accounts"}
NAMESPACE = "persistent://fleet/reference"
MAX_BYTES = 5 << 20
MAX_VALUES = 500_000
_MAX_NAMED = 100
_SHOWN_CHARS = 60
_PUBLICATION = ("kind", "id", "published_at", "place")
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class CollectedReference:
    """Rows of the reference table, and how many messages are no versions."""

    rows: int
    refused_messages: int


class ReferenceRows(NamedTuple):
    """Rows of the reference table, and of each message that is none of a version why, with its id."""

    rows: list[dict[str, Any]]
    refused: list[str]


def stated_version(kind: Kind, body: dict[str, Any]) -> tuple[str, str]:
    """The id and the beginning that a body gives itself, as they stand in a key; "": none."""
    facts = body.get("properties") if kind == "fence" else body
    name = named(body) if kind == "fence" else body.get("id")
    begin = facts.get("effective_from") if isinstance(facts, dict) else None
    return "" if name is None else str(name), "" if begin is None else str(begin)


def collect(spark: SparkSession, lake: Lake, source_options: dict[str, str]) -> CollectedReference:
    """Takes what the topics hold into the reference table, each publication that changes something once.

    A version that was published as A, then as B and then as A again has three rows, so that the newest holds, and
    what held at any moment is in the table. Fences that cannot be used are logged.
    """
    rows, refused = list[dict[str, Any]](), list[str]()
    for kind, topic in TOPICS.items():
        messages = (
            spark.read.format("pulsar")
            .options(**source_options)
            .option("topics", f"{NAMESPACE}/{topic}")
            .option("readCompacted", "true")
            .load()
            .select("key", "value", "publish_time", "message_id", "malformed")
        )
        taken = versions_in(kind, messages.toArrow().to_pylist())
        rows += taken.rows
        refused += taken.refused
    table = lake.open("reference")
    same = " AND ".join(f"old.{name} = new.{name}" for name in REFERENCE.names)
    source = pa.Table.from_pylist(_changing(rows, lake), schema=REFERENCE)
    # a merge, not an append: what a run that was cut off has written is not added again
    table.merge(source, same, source_alias="new", target_alias="old").when_not_matched_insert_all().execute()
    _log_refused("messages that are not versions", refused)
    _log_refused("fences that cannot be used", fences_in(lake).refused)
    return CollectedReference(lake.open("reference").count(), len(refused))


def _log_refused(event: str, refused: Sequence[str]) -> None:
    if refused:
        not_named = max(len(refused) - _MAX_NAMED, 0)
        _log.warning(event, count=len(refused), refused=list(refused[:_MAX_NAMED]), not_named=not_named)


def _changing(rows: list[dict[str, Any]], lake: Lake) -> list[dict[str, Any]]:
    """What was published, without what says again what held at that moment."""
    table = lake.rows("reference", [*_PUBLICATION])
    known = {tuple(row[name] for name in _PUBLICATION) for row in table.to_pylist()}
    same, new = list[dict[str, Any]](), list[dict[str, Any]]()
    for row in rows:
        (same if tuple(row[name] for name in _PUBLICATION) in known else new).append(row)
    # whole bodies are read only when something is new: a job that follows comes here every minute
    if new:
        things = {(row["kind"], row["id"]) for row in new}
        old = [row for row in lake.rows("reference").to_pylist() if (row["kind"], row["id"]) in things]
        new = changing(old, new)
    return same + new


def changing(old: list[dict[str, Any]], new: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of new publications those that, in order of publication, say another thing of a version than the one before."""
    held: dict[tuple[str, str, str], str] = {}
    changed: list[dict[str, Any]] = []
    marked = [(row, False) for row in old] + [(row, True) for row in new]
    for row, is_new in sorted(marked, key=lambda item: publication_order(item[0])):
        version = row["kind"], row["id"], beginning(row["kind"], row["body"])
        if is_new and held.get(version) != row["body"]:
            changed.append(row)
        held[version] = row["body"]
    return changed


def versions_in(kind: Kind, messages: Iterable[dict[str, Any]]) -> ReferenceRows:
    """What the messages of one topic say; one that is no version is named and left out."""
    taken = ReferenceRows([], [])
    for message in messages:
        try:
            taken.rows.append(_reference_row(kind, message))
        except (InvalidJson, ValueError) as error:
            taken.refused.append(f"{kind} {message['message_id']}: {error}")
    return taken


def _reference_row(kind: Kind, message: dict[str, Any]) -> dict[str, Any]:
    if message["malformed"] is not None:
        raise ValueError(message["malformed"])
    if message["key"] is None or message["value"] is None:
        raise ValueError("a version has a key and a value")
    body = parse_json(message["value"], max_bytes=MAX_BYTES, max_values=MAX_VALUES)
    if not isinstance(body, dict):
        raise ValueError("a version is a JSON object")
    name, begin = stated_version(kind, body)
    key_begin = message["key"].removeprefix(f"{name}@")
    agree = kind == "account" or instant_text(key_begin) == instant_text(begin)
    if not name or key_begin == message["key"] or not agree:
        raise ValueError(f"its key {_shown(message['key'])} is not that of its content, {_shown(f'{name}@{begin}')}")
    text, published_at = message["value"].decode(), message["publish_time"]
    return {"kind": kind, "id": name, "body": text, "published_at": published_at, "place": _place(message)}


def _place(message: dict[str, Any]) -> str:
    """Where a message stands in its topic, as a text that sorts so; of `ledger:entry:partition[:index]`."""
    ledger, entry, _, index = (*map(int, message["message_id"].split(":")), 0)[:4]
    return f"{ledger:019}:{entry:019}:{index:010}"


def _shown(text: str) -> str:
    return repr(text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}...")


def newest_publications(lake: Lake) -> list[dict[str, Any]]:
    """Of each version in the reference table the row that was published last, with its `effective_from`."""
    newest: dict[tuple[str, str, str], dict[str, Any]] = {}
    for row in sorted(lake.rows("reference").to_pylist(), key=publication_order):
        begin = beginning(row["kind"], row["body"])
        newest[row["kind"], row["id"], begin] = row | {"effective_from": begin}
    return [row for _, row in sorted(newest.items())]


def fences_in(lake: Lake) -> PublishedFences:
    """All versions of all fences that the reference table holds; validated again only when the table is another one."""
    table = lake.open("reference")
    return _fences_at(lake, table.metadata().id, table.version())


# a job that follows asks every few seconds, and the fences of a country take longer than that to validate
@lru_cache(maxsize=1)
def _fences_at(lake: Lake, _table_id: str, _version: int) -> PublishedFences:
    return published_fences(row for row in lake.rows("reference").to_pylist() if row["kind"] == "fence")
