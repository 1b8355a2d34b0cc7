"""When a query reads carefully: after a run that ended within a batch or a look ahead, for some batches.

A message that ends the native client ends the Spark worker that reads it, or the driver that looks ahead. Neither can
tell afterwards. But a batch that was planned by another process than this one did not complete; and while the driver
looks ahead there is a file, which stays when its process ends within.
"""

import hashlib
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import structlog

from cloud_jobs.pulsar_source.options import PulsarOptions

_log = structlog.get_logger(__name__)

CAREFUL_BATCHES = 20
"""How many batches are read carefully after a run that did not end in order."""


class Caution:
    """Whether the next batch is to be read carefully. One query in one process."""

    def __init__(self, options: PulsarOptions) -> None:
        self._note = _note_of(options)
        self._looked = False
        self._left = 0

    def planning(self, *, replayed: bool) -> bool:
        """A batch is planned; True when it is to be read carefully."""
        if replayed:
            self._begin("a batch was planned and did not complete")
        careful = self._left > 0
        self._left -= careful
        return careful

    @contextmanager
    def looking_ahead(self) -> Iterator[bool]:
        """The driver looks ahead within; True when it is to do so carefully."""
        if not self._looked:
            self._looked = True
            if self._note.exists():
                self._begin("a look ahead ended its process")
        try:
            # Not flushed to the disk: it has to outlive a process, not a machine, and costs 0.1 ms a batch.
            self._note.touch(mode=0o600)
        except OSError as error:
            _log.warning("look_ahead_not_noted", path=str(self._note), error=str(error))
        try:
            yield self._left > 0
        finally:
            with suppress(OSError):
                self._note.unlink(missing_ok=True)

    def _begin(self, why: str) -> None:
        _log.warning("reading_carefully", why=why, batches=CAREFUL_BATCHES)
        self._left = CAREFUL_BATCHES


def _note_of(options: PulsarOptions) -> Path:
    # A query that ended before its first batch has no id that outlives it; its subscription is its own.
    read = [*(cluster.service_url for cluster in options.all_clusters()), str(options.subscription)]
    read += [*map(str, options.topics), str(options.topics_pattern)]
    mark = hashlib.sha256("\n".join(read).encode()).hexdigest()[:16]
    folder = options.failover_file.parent if options.failover_file else Path(tempfile.gettempdir())
    return folder / f"waybill-looking-ahead-{os.getuid()}-{mark}"
