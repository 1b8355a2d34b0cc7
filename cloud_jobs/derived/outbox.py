"""Publication of the rows that a derived table's commits added, to a Pulsar topic, at least once.

The table is written first; how far its commits were published is noted after Pulsar has persisted them. A crash between
the two publishes some rows again; consumers drop them by the key of a message, `id/revision`. A lost note publishes the
whole table again. Rows keep the number of their commit, so due rows are found whatever was compacted or deleted
meanwhile. The note names the very commit: a table that was restored or created again has another history, and is
published whole.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pulsar
import pyarrow as pa
from deltalake import DeltaTable

from cloud_jobs.errors import NotPublished
from cloud_jobs.lake.data_files import Range, StoredFiles
from cloud_jobs.lake.schemas import TABLES
from cloud_jobs.lake.tables import Lake
from cloud_jobs.lake.transactions import counter_of, newest_number
from waybill.daemon.durable_file import replace_durably
from waybill.pulsar.pulsar_client import PulsarAccess, PulsarAccessError, open_pulsar_client

if TYPE_CHECKING:
    from cloud_jobs.config import CloudSettings

# Publication of revised events and encounters.


def event_message(row: dict[str, Any]) -> dict[str, Any]:
    """A row of `geofence_events` as consumers get it, as JSON; `time` in ISO 8601 with milliseconds."""
    names = ("id", "revision", "tenant", "device", "epoch", "seq", "kind", "place", "value", "retracted")
    return {name: row[name] for name in names} | {"time": _iso_ms(row["time"])}


def encounter_message(row: dict[str, Any]) -> dict[str, Any]:
    """A row of `encounters` as consumers get it, as JSON; times in ISO 8601 with milliseconds."""
    names = ("id", "revision", "tenant", "device_a", "device_b", "min_m", "retracted")
    return {name: row[name] for name in names} | {name: _iso_ms(row[name]) for name in ("start", "end", "min_at")}


def _iso_ms(moment: datetime) -> str:
    """ISO 8601 in UTC with milliseconds, as in `2026-01-05T10:17:02.000Z`."""
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


_TIMEOUT_S = 10
_NOTED = "commit"
_TABLE_ID = "table_id"
_SEND_TIMEOUT_MS = 30_000
_MAX_PENDING = 5_000
_ANYBODY = PulsarAccess()

Send = Callable[[Iterator[dict[str, Any]]], None]
"""Sends messages, and returns when all are persisted."""


@dataclass(frozen=True, slots=True)
class Outbox:
    """The due rows of one derived table. `progress_file` notes up to which commit they were published.

    `tenant`: only the rows of this tenant, which have their own topic and progress.
    """

    lake: Lake
    table: str
    progress_file: Path
    tenant: str | None = None

    def _noted(self) -> tuple[str, int] | None:
        """The id of the table and the number of its last published commit."""
        try:
            note = json.loads(self.progress_file.read_text(encoding="utf-8"))
            return str(note[_TABLE_ID]), int(note[_NOTED])
        except (FileNotFoundError, ValueError, KeyError, TypeError, RecursionError):
            return None

    def _published(self, opened: DeltaTable, newest: int | None) -> int:
        """The counter of the last published commit of this very table; 0 for none."""
        noted = self._noted()
        if noted is None or newest is None or noted[0] != str(opened.metadata().id):
            return 0
        # only the newest commit can be compared with the noted one
        is_past = noted[1] == newest or counter_of(noted[1]) < counter_of(newest)
        return counter_of(noted[1]) if is_past else 0

    def flush(self, send: Send) -> int:
        """Publish the due rows and return their number."""
        # fixed before the rows are read: later commits are due in the next run
        opened = self.lake.open(self.table)
        newest = newest_number(opened, self.table)
        since, until = self._published(opened, newest), counter_of(newest)
        if newest is None or since == until:
            return 0
        if self._noted() is None:
            # from now on this note shows that rows are due
            self._save(str(opened.metadata().id), 0)
        count = 0

        def counted() -> Iterator[dict[str, Any]]:
            nonlocal count
            for row in self._rows(opened, since, until):
                count += 1
                yield row

        send(counted())
        # after Pulsar has persisted them: a crash before this publishes them again, and skips none
        self._save(str(opened.metadata().id), newest)
        return count

    def waiting_since(self) -> datetime | None:
        """When the oldest due row was made. None: no row is due, or nothing was ever published with this note.

        Raises LakeError, OSError.
        """
        opened = self.lake.open(self.table)
        newest = newest_number(opened, self.table)
        since, until = self._published(opened, newest), counter_of(newest)
        if self._noted() is None or since == until:
            return None
        due = self._due(opened, since, until, ["emitted_at"])
        return min((moment for rows in due for moment in rows["emitted_at"].to_pylist()), default=None)

    def _rows(self, opened: DeltaTable, since: int, until: int) -> Iterator[dict[str, Any]]:
        for rows in self._due(opened, since, until, TABLES[self.table].schema.names):
            for batch in rows.to_batches(max_chunksize=10_000):
                yield from batch.to_pylist()

    def _due(self, opened: DeltaTable, since: int, until: int, columns: Sequence[str]) -> Iterator[pa.Table]:
        due: dict[str, Range] = {"commit_number": (since + 1, until)}
        due |= {} if self.tenant is None else {"tenant": (self.tenant, self.tenant)}
        return StoredFiles.of(opened, self.table).rows(self.lake.files(self.table), columns, due)

    def _save(self, table_id: str, commit: int) -> None:
        self.progress_file.parent.mkdir(parents=True, exist_ok=True)
        replace_durably(self.progress_file, json.dumps({_TABLE_ID: table_id, _NOTED: commit}).encode())


def progress_file(checkpoints: Path, table: str, tenant: str | None = None) -> Path:
    """The file that notes how far the rows of a table were published, to the topic of all or of one tenant."""
    return checkpoints / "published" / (table if tenant is None else f"{table}@{tenant}")


def unpublished_since(lake: Lake, table: str, checkpoints: Path) -> datetime | None:
    """When the oldest row of a table that is due at any of its topics was made; None: none is. Raises as Outbox."""
    notes = [progress_file(checkpoints, table), *sorted((checkpoints / "published").glob(f"{table}@*"))]
    boxes = [Outbox(lake, table, note, note.name.partition("@")[2] or None) for note in notes]
    return min((moment for box in boxes if (moment := box.waiting_since()) is not None), default=None)


def topic_sender(
    service_urls: Sequence[str],
    topic: str,
    of_row: Callable[[dict[str, Any]], dict[str, Any]],
    access: PulsarAccess = _ANYBODY,
) -> Send:
    """Sends rows as JSON, made by `of_row`, to a topic of the first cluster that answers. Raises NotPublished."""

    def send(rows: Iterator[dict[str, Any]]) -> None:
        # without rows no connection is opened
        first = next(rows, None)
        if first is None:
            return
        client, producer = _producer(service_urls, topic, access)
        failures: list[Any] = []

        def done(result: Any, _: Any) -> None:
            if result != pulsar.Result.Ok:
                failures.append(result)

        try:
            for row in chain([first], rows):
                text = json.dumps(of_row(row), separators=(",", ":"), ensure_ascii=False)
                key = f"{row['id']}/{row['revision']}"
                producer.send_async(text.encode(), done, partition_key=key)
                if failures:
                    break
            producer.flush()
        except pulsar.PulsarException as error:
            raise NotPublished(topic, str(error)) from error
        finally:
            client.close()
        if failures:
            raise NotPublished(topic, str(failures[0]))

    return send


def _producer(service_urls: Sequence[str], topic: str, access: PulsarAccess) -> tuple[Any, Any]:
    reason = "no cluster is configured"
    for url in service_urls:
        try:
            access.check_token(time.time())
            client = open_pulsar_client(url, access, timeout_s=_TIMEOUT_S)
        # the next cluster has the same access
        except PulsarAccessError as error:
            raise NotPublished(topic, str(error)) from error
        try:
            return client, client.create_producer(
                topic,
                send_timeout_millis=_SEND_TIMEOUT_MS,
                max_pending_messages=_MAX_PENDING,
                block_if_queue_full=True,
                batching_enabled=True,
            )
        except pulsar.PulsarException as error:
            reason = f"{url}: {error}"
            client.close()
    raise NotPublished(topic, reason)


def publish_rows(
    settings: CloudSettings, table: str, topic: str, message: Callable[[dict[str, Any]], dict[str, Any]]
) -> int:
    """Publish the due rows of a table, and return their number.

    With one topic per tenant, a failing topic does not hold back the rows of others. Raises NotPublished.
    """
    count, failures = 0, []
    for name, tenant in settings.topics_of(topic).items():
        outbox = Outbox(settings.tables, table, progress_file(settings.checkpoints, table, tenant), tenant)
        try:
            count += outbox.flush(topic_sender(settings.service_urls, name, message, settings.access))
        except NotPublished as error:
            failures.append(error)
    if failures:
        raise failures[0]
    return count
