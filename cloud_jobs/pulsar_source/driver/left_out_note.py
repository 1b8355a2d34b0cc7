"""The file that names the topics which a query leaves out, for whoever looks at its health: which, why, since when."""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

import structlog

from waybill.daemon.bounded_file import read_bounded
from waybill.daemon.durable_file import replace_durably

_log = structlog.get_logger(__name__)
_VERSION = 1
_MAX_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class LeftOutTopic:
    """A topic that is left out; `since`: ISO 8601, UTC."""

    topic: str
    cluster: str
    reason: str
    since: str


def read_left_out(path: Path) -> tuple[LeftOutTopic, ...]:
    """What was noted last; none where nothing ever was. ValueError for a file that says something else."""
    try:
        document = json.loads(read_bounded(path, _MAX_BYTES))
        if document["version"] != _VERSION:
            raise ValueError(f"it has version {document['version']!r}, not {_VERSION}")
        return tuple(LeftOutTopic(**{key: str(value) for key, value in row.items()}) for row in document["topics"])
    except FileNotFoundError:
        return ()
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"{path}: {error}") from error


class LeftOutNote:
    """Keeps the file as things are; a topic that stays left out keeps its time over restarts. One thread."""

    def __init__(self, path: Path, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._path, self._now = path, now
        self._noted: tuple[LeftOutTopic, ...] | None = None

    def keep(self, cluster: str, reasons: Mapping[str, str]) -> None:
        """Writes which topics are left out and why, where that is not what the file says."""
        before = {one.topic: one for one in (self._read() if self._noted is None else self._noted)}
        now = self._now().isoformat(timespec="seconds")
        topics = tuple(
            LeftOutTopic(topic, cluster, reason, before[topic].since if topic in before else now)
            for topic, reason in sorted(reasons.items())
        )
        if topics == self._noted:
            return
        try:
            content = json.dumps({"version": _VERSION, "topics": [asdict(topic) for topic in topics]}, indent=1)
            self._path.parent.mkdir(parents=True, exist_ok=True)
            replace_durably(self._path, content.encode())
        except OSError as error:
            # The log names them too, and what waits for them is seen at the broker: no reason to stop the others.
            _log.warning("the topics left out cannot be noted", path=str(self._path), error=str(error))
        self._noted = topics

    def _read(self) -> tuple[LeftOutTopic, ...]:
        try:
            return read_left_out(self._path)
        except ValueError as error:
            _log.warning("the note of topics left out is written anew", error=str(error))
            return ()
