"""Reference data is pushed: fences, tariffs and accounts are published to compacted topics and arrive like records.

The key of a version is its id and the moment from which it is in force, so that compaction keeps every version.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import pulsar
import pyarrow as pa
import structlog
from pyspark.sql import SparkSession

from cloud_jobs.errors import CloudError
from cloud_jobs.fences import PublishedFences, published_fences
from cloud_jobs.lake import Lake
from cloud_jobs.tables import REFERENCE
from geo.spatial.features import read_features
from geo.spatial.geojson import named
from telemetry import InvalidJson, parse_json

Kind = Literal["fence", "tariff", "account"]
TOPICS: dict[Kind, str] = {"fence": "fences", "tariff": "tariffs", "account": "accounts"}
NAMESPACE = "persistent://fleet/reference"
_TIMEOUT_S = 10
_MOST_BYTES = 5 << 20
_MOST_VALUES = 500_000
_MOST_NAMED = 100
_PUBLICATION = ("kind", "id", "published_at")
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Version:
    """One version of one thing: `body` is its JSON text."""

    kind: Kind
    id: str
    effective_from: str
    body: str

    @property
    def key(self) -> str:
        """Its name in the compacted topic."""
        return f"{self.id}@{self.effective_from}"


@dataclass(frozen=True, slots=True)
class Collected:
    """Rows of the reference table, and how many of its fences cannot be used."""

    rows: int
    refused_fences: int


def read_folder(folder: Path) -> Iterator[Version]:
    """The versions in `fences.geojson`, `tariffs.json` and `accounts.json`. Raises CloudError."""
    path = folder / "fences.geojson"
    for feature in read_features(_text(path)):
        if feature.fault is not None:
            raise CloudError(f"{path}: {feature.place}: {feature.fault}")
        properties = feature.value.get("properties")
        facts = properties if isinstance(properties, dict) else {}
        yield _version("fence", named(feature.value), facts.get("effective_from"), feature.value, path)
    kinds: tuple[tuple[Kind, str], ...] = (("tariff", "tariffs.json"), ("account", "accounts.json"))
    for kind, name in kinds:
        path = folder / name
        for body in _listed(path):
            yield _version(kind, body.get("id"), body.get("effective_from"), body, path)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise CloudError(f"{path}: cannot be read: {error}") from error


def _listed(path: Path) -> list[dict[str, Any]]:
    try:
        values = json.loads(_text(path))
    except (ValueError, RecursionError) as error:
        raise CloudError(f"{path}: cannot be read: {error}") from error
    if not isinstance(values, list) or not all(isinstance(value, dict) for value in values):
        raise CloudError(f"{path}: it is not a list of JSON objects")
    return values


def _version(kind: Kind, name: Any, effective_from: Any, body: dict[str, Any], path: Path) -> Version:
    if name is None or name == "":
        raise CloudError(f"{path}: a {kind} has no id")
    text = json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return Version(kind, str(name), "" if effective_from is None else str(effective_from), text)


def publish(service_url: str, versions: Iterable[Version]) -> int:
    """Publishes versions to their topics and returns their number, once all are persisted."""
    quiet = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    client = pulsar.Client(service_url, operation_timeout_seconds=_TIMEOUT_S, logger=quiet)
    try:
        producers = {kind: client.create_producer(f"{NAMESPACE}/{topic}") for kind, topic in TOPICS.items()}
        count = 0
        for version in versions:
            producers[version.kind].send(version.body.encode(), partition_key=version.key)
            count += 1
        return count
    finally:
        client.close()


def collect(spark: SparkSession, lake: Lake, source_options: dict[str, str]) -> Collected:
    """Takes what the topics hold into the reference table, each publication that changes something once.

    A version that was published as A, then as B and then as A again has three rows, so that the newest holds, and what
    held at any moment can be told. Fences that cannot be used are logged.
    """
    found: list[dict[str, Any]] = []
    for kind, topic in TOPICS.items():
        messages = (
            spark.read.format("pulsar")
            .options(**source_options)
            .option("topics", f"{NAMESPACE}/{topic}")
            .option("readCompacted", "true")
            .load()
            .select("key", "value", "publish_time", "message_id", "malformed")
        )
        found.extend(versions_in(kind, messages.toArrow().to_pylist()))
    table = lake.open("reference")
    same = " AND ".join(f"old.{name} = new.{name}" for name in REFERENCE.names)
    source = pa.Table.from_pylist(_changing(found, lake), schema=REFERENCE)
    table.merge(source, same, source_alias="new", target_alias="old").when_not_matched_insert_all().execute()
    refused = fences_in(lake).refused
    if refused:
        not_named = max(len(refused) - _MOST_NAMED, 0)
        _log.warning("fences_refused", count=len(refused), fences=list(refused[:_MOST_NAMED]), not_named=not_named)
    return Collected(lake.open("reference").count(), len(refused))


def _changing(found: list[dict[str, Any]], lake: Lake) -> list[dict[str, Any]]:
    """What was published, without what says again what held at that moment."""
    table = lake.rows("reference", [*_PUBLICATION])
    known = {tuple(row[name] for name in _PUBLICATION) for row in table.to_pylist()}
    same, new = list[dict[str, Any]](), list[dict[str, Any]]()
    for row in found:
        (same if tuple(row[name] for name in _PUBLICATION) in known else new).append(row)
    if new:
        things = {(row["kind"], row["id"]) for row in new}
        old = [row for row in lake.rows("reference").to_pylist() if (row["kind"], row["id"]) in things]
        new = changing(old, new)
    return same + new


def changing(old: list[dict[str, Any]], new: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of new publications those that, in order of publication, say another thing of a version than the one before."""
    held: dict[tuple[str, str, str], str] = {}
    found: list[dict[str, Any]] = []
    marked = [(row, False) for row in old] + [(row, True) for row in new]
    for row, is_new in sorted(marked, key=lambda item: item[0]["published_at"]):
        version = row["kind"], row["id"], _beginning(row["kind"], row["body"])
        if is_new and held.get(version) != row["body"]:
            found.append(row)
        held[version] = row["body"]
    return found


def _beginning(kind: Kind, body: str) -> str:
    """From when a version is in force, as the bill and the fences take it: however its instant is written."""
    if kind == "account":
        return ""  # the one published last holds
    try:
        facts = json.loads(body)
        facts = facts["properties"] if kind == "fence" else facts
        begin = facts.get("effective_from")
        if begin is None:
            return ""
        time = datetime.fromisoformat(begin)
        return str(time if time.utcoffset() is None else time.astimezone(UTC))
    except (AttributeError, KeyError, ValueError, TypeError, OverflowError, RecursionError):
        return "unknown"  # told apart from no other of that thing: then more is kept than is needed


def versions_in(kind: Kind, messages: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows of the reference table for messages of one topic; one that is no version is logged and left out."""
    rows: list[dict[str, Any]] = []
    for message in messages:
        try:
            rows.append(_reference_row(kind, message))
        except (InvalidJson, ValueError) as error:
            _log.warning("not_a_version", kind=kind, message_id=message["message_id"], reason=str(error))
    return rows


def _reference_row(kind: Kind, message: dict[str, Any]) -> dict[str, Any]:
    if message["malformed"] is not None:
        raise ValueError(message["malformed"])
    if message["key"] is None or message["value"] is None:
        raise ValueError("a version has a key and a value")
    body = parse_json(message["value"], max_bytes=_MOST_BYTES, max_values=_MOST_VALUES)
    if not isinstance(body, dict):
        raise ValueError("a version is a JSON object")
    id_ = message["key"].rpartition("@")[0]
    return {"kind": kind, "id": id_, "body": message["value"].decode(), "published_at": message["publish_time"]}


def fences_in(lake: Lake) -> PublishedFences:
    """All versions of all fences that the reference table holds; judged again only when the table is another one."""
    table = lake.open("reference")
    return _fences_at(lake, table.metadata().id, table.version())


@lru_cache(maxsize=1)
def _fences_at(lake: Lake, _table_id: str, _version: int) -> PublishedFences:
    return published_fences(row for row in lake.rows("reference").to_pylist() if row["kind"] == "fence")
