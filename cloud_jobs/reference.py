"""Reference data is pushed: fences, tariffs and accounts are published to compacted topics and arrive like records.

The key of a version is its id and the moment from which it is in force, so that compaction keeps every version.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pulsar
import pyarrow as pa
import structlog
from pyspark.sql import SparkSession

from cloud_jobs.errors import CloudError
from cloud_jobs.lake import Lake
from cloud_jobs.tables import REFERENCE
from geo.spatial import FenceError, fences_from_geojson
from geo.spatial.activity import FOREVER_MS
from geo.spatial.geojson import effective_from_ms
from telemetry import InvalidJson, parse_json

Kind = Literal["fence", "tariff", "account"]
TOPICS: dict[Kind, str] = {"fence": "fences", "tariff": "tariffs", "account": "accounts"}
NAMESPACE = "persistent://fleet/reference"
_TIMEOUT_S = 10
_MOST_BYTES = 5 << 20
_MOST_VALUES = 500_000
_MOST_NAMED = 100
_NO_FENCES = json.dumps({"type": "FeatureCollection", "features": []})
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


@dataclass(frozen=True, slots=True)
class PublishedFences:
    """One GeoJSON feature collection, and why rows of the table are not in it."""

    geojson: str
    refused: tuple[str, ...]

    def all_refused(self) -> tuple[str, ...]:
        """What is not in it, and what is in it and cannot be used: a message with its id for each."""
        return self.refused + fences_from_geojson(self.geojson).refused if self.geojson != _NO_FENCES else self.refused


def read_folder(folder: Path) -> Iterator[Version]:
    """The versions in `fences.geojson`, `tariffs.json` and `accounts.json`. Raises CloudError."""
    for feature in _read(folder / "fences.geojson").get("features", ()):
        yield _version("fence", feature["properties"], feature)
    for kind, name in (("tariff", "tariffs.json"), ("account", "accounts.json")):
        for body in _read(folder / name):
            yield _version("tariff" if kind == "tariff" else "account", body, body)


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CloudError(f"{path}: cannot be read: {error}") from error


def _version(kind: Kind, facts: dict[str, Any], body: dict[str, Any]) -> Version:
    text = json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return Version(kind, str(facts["id"]), str(facts.get("effective_from", "")), text)


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
    """Takes what the topics hold into the reference table, each version once; fences that cannot be used are logged."""
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
    same = " AND ".join(f"old.{name} = new.{name}" for name in ("kind", "id", "body"))
    source = pa.Table.from_pylist(found, schema=REFERENCE)
    table.merge(source, same, source_alias="new", target_alias="old").when_not_matched_insert_all().execute()
    refused = fences_in(lake).all_refused()
    if refused:
        _log.warning("fences_refused", count=len(refused), fences=list(refused[:_MOST_NAMED]))
    return Collected(lake.open("reference").count(), len(refused))


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
    """All versions of all fences that the reference table holds."""
    return published_fences(row for row in lake.rows("reference").to_pylist() if row["kind"] == "fence")


def published_fences(rows: Iterable[dict[str, Any]]) -> PublishedFences:
    """The fences of rows of the reference table; of a version that was corrected (the same instant), the newest."""
    newest: dict[tuple[str, int], dict[str, Any]] = {}
    refused: list[str] = []
    for row in sorted(rows, key=lambda row: (row["published_at"], row["id"], row["body"])):
        try:
            feature = json.loads(row["body"])
            newest[row["id"], _effective_ms(feature)] = feature
        except FenceError as fault:
            refused.append(str(FenceError(fault.reason, fence_id=row["id"])))
        except (ValueError, RecursionError) as fault:
            refused.append(str(FenceError(f"it is not JSON: {fault}", fence_id=row["id"])))
    text = json.dumps({"type": "FeatureCollection", "features": [newest[key] for key in sorted(newest)]})
    return PublishedFences(text, tuple(refused))


def _effective_ms(feature: Any) -> int:
    if not isinstance(feature, dict) or not isinstance(feature.get("properties"), dict):
        raise FenceError("it is not a feature with properties")
    begin = effective_from_ms(feature["properties"])
    return -FOREVER_MS if begin is None else begin
