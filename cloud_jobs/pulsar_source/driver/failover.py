"""Which cluster is read, kept in a small file beside the checkpoint; and the operator's switchover request.

A position means nothing in another cluster, so after a change of cluster reading begins at the subscription's cursor
there, which followed what was acknowledged. Three things must outlive the driver, because neither the checkpoint nor
the clusters tell them: which cluster is read now (a cluster that comes back must not be rejoined by itself, it may have
missed acknowledgements), which planned batches were closed without being read, and where the subscription was missing
and was created for a query that had begun: its cursor there followed nothing.
"""

import json
import os
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import structlog

from cloud_jobs.pulsar_source.errors import FailoverFileError
from cloud_jobs.pulsar_source.position import Offset
from runtime import create_durably, replace_durably

_log = structlog.get_logger(__name__)
_MAX_ABANDONED = 16
_MAX_BYTES = 64 << 20
_VERSION = 2
_NOT_A_FAILOVER_FILE = "it is not a failover file of the Pulsar source"


@dataclass(frozen=True, slots=True)
class FailoverState:
    """The active cluster, and the ends of batches that were planned on a cluster that then was lost. Pure.

    `created`: cluster -> the topic partitions where the subscription was missing after the query had begun, until the
    query stands there itself, or has read all that its own cluster has, or the loss was accepted.
    """

    active: str
    abandoned: tuple[str, ...] = ()
    created: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def with_active(self, cluster: str) -> Self:
        """Reading goes on there."""
        return replace(self, active=cluster)

    def with_abandoned(self, end: Offset) -> Self:
        """The batch up to `end` is closed without being read: what it held comes again from the other cluster."""
        return replace(self, abandoned=(*self.abandoned, _text(end))[-_MAX_ABANDONED:])

    def creating(self, cluster: str, topics: Collection[str]) -> Self:
        """The subscription is missing on those topic partitions, and is about to be created there."""
        everywhere = {*self.created.get(cluster, ()), *topics}
        return replace(self, created={**self.created, cluster: tuple(sorted(everywhere))}) if topics else self

    def without_created(self, cluster: str) -> Self:
        """What was created on that cluster is told, or matters no more."""
        return replace(self, created={name: topics for name, topics in self.created.items() if name != cluster})

    def is_abandoned(self, end: Offset) -> bool:
        """Whether the batch that ended here was closed without being read."""
        return _text(end) in self.abandoned

    def restarts_at_cursor(self, start: Offset) -> bool:
        """Whether the batch after `start` begins at the active cluster's cursor and not at `start`."""
        return start.cluster != self.active or self.is_abandoned(start)


@dataclass(frozen=True, slots=True)
class QueryIdentity:
    """Whose failover file it is: the query of a checkpoint, its subscription and what it reads."""

    query: str
    subscription: str
    topics: str


class FailoverFile:
    """The file that keeps a `FailoverState`, and `<file>.switchover`, where an operator writes the name of a cluster.

    Every method raises FailoverFileError when the disk refuses, or holds something else.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._request_path = path.with_name(path.name + ".switchover")

    def load(self) -> tuple[QueryIdentity, FailoverState] | None:
        """What was kept; None when there is no file."""
        try:
            with self._path.open("rb") as file:
                content = file.read(_MAX_BYTES)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise FailoverFileError(self._path, f"it cannot be read: {error}") from error
        try:
            document = json.loads(content)
        except (ValueError, RecursionError) as error:
            what = "it is empty" if not content else f"{_NOT_A_FAILOVER_FILE}: {error}"
            raise FailoverFileError(self._path, what) from error
        return _parse(self._path, document)

    def save(self, owner: QueryIdentity, state: FailoverState) -> None:
        """Keeps it for good: whole and on disk before this returns. What another query keeps there is not replaced."""
        document = {"version": _VERSION, **asdict(owner), **asdict(state)}
        content = json.dumps(document, sort_keys=True).encode()
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            if create_durably(self._path, content):
                return
            kept = self.load()
            if kept and kept[0].query != owner.query:
                raise FailoverFileError(self._path, f"another query, of {kept[0].subscription!r}, has begun with it")
            replace_durably(self._path, content)
        except OSError as error:
            raise FailoverFileError(self._path, f"it cannot be written: {error}") from error

    def record_answer(self, now_s: float) -> bool:
        """Notes, as the file's time of change, that the active cluster answered at `now_s` (seconds since 1970).

        False when there is no file: it has to be saved anew.
        """
        try:
            os.utime(self._path, (now_s, now_s))
        except FileNotFoundError:
            return False
        except OSError as error:
            _log.warning("failover_file_not_touched", path=str(self._path), error=str(error))
        return True

    def last_answer_s(self) -> float | None:
        """When a cluster answered last, to whichever process reads it; None when that was never noted."""
        try:
            return self._path.stat().st_mtime
        except OSError:
            return None

    def switchover_request(self) -> str | None:
        """The cluster that an operator wants read; None without a request."""
        try:
            return self._request_path.read_bytes()[:1000].decode("utf-8", "replace").strip() or None
        except FileNotFoundError:
            return None
        except OSError as error:
            raise FailoverFileError(self._request_path, f"it cannot be read: {error}") from error

    def clear_switchover_request(self) -> None:
        """Removes the request."""
        try:
            self._request_path.unlink(missing_ok=True)
        except OSError as error:
            raise FailoverFileError(self._request_path, f"it cannot be removed: {error}") from error


def _text(offset: Offset) -> str:
    return json.dumps(offset.to_json(), sort_keys=True)


def _parse(path: Path, document: Any) -> tuple[QueryIdentity, FailoverState]:
    if not isinstance(document, Mapping):
        raise FailoverFileError(path, _NOT_A_FAILOVER_FILE)
    if document.get("version") != _VERSION:
        raise FailoverFileError(path, f"{_NOT_A_FAILOVER_FILE}, or of another version than {_VERSION}")
    texts = [document.get(name) for name in ("query", "subscription", "topics", "active")]
    abandoned = document.get("abandoned")
    if not all(isinstance(text, str) and text for text in texts) or not isinstance(abandoned, list):
        raise FailoverFileError(path, f"{_NOT_A_FAILOVER_FILE}: it lacks a part")
    if not all(isinstance(text, str) for text in abandoned):
        raise FailoverFileError(path, f"{_NOT_A_FAILOVER_FILE}: a batch in it is not a string")
    query, subscription, topics, active = map(str, texts)
    created = _checked_created(path, document.get("created", {}))
    return QueryIdentity(query, subscription, topics), FailoverState(active, tuple(abandoned), created)


def _checked_created(path: Path, created: Any) -> dict[str, tuple[str, ...]]:
    if not isinstance(created, Mapping) or not all(isinstance(topics, list) for topics in created.values()):
        raise FailoverFileError(path, f"{_NOT_A_FAILOVER_FILE}: what was created is no list for each cluster")
    if not all(isinstance(topic, str) for topics in created.values() for topic in topics):
        raise FailoverFileError(path, f"{_NOT_A_FAILOVER_FILE}: a topic in it is no text")
    return {cluster: tuple(topics) for cluster, topics in created.items()}
