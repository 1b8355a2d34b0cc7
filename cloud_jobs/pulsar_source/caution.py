"""When a query reads carefully: after a run that ended within a batch or a look ahead, for some batches.

A message that ends the native client ends the Spark worker that reads it, or the driver that looks ahead. Neither can
tell afterwards. But a batch that was planned by another process than this one did not complete; and of a look ahead a
file is left that only an orderly end removes.
"""

import hashlib
import os
import tempfile
from contextlib import suppress
from pathlib import Path

import structlog

from cloud_jobs.pulsar_source.options import PulsarOptions
from runtime import replace_durably

_log = structlog.get_logger(__name__)

CAREFUL_BATCHES = 20
"""How many batches are read carefully after a run that did not end in order."""


class Caution:
    """Whether the next batch is to be read carefully. One query in one process."""

    def __init__(self, options: PulsarOptions) -> None:
        self._note = _note_of(options)
        self._noted = False
        self._left = 0

    def planning(self, *, replayed: bool) -> bool:
        """A batch is planned; True when it is to be read carefully."""
        if replayed:
            self._begin("a batch was planned and did not complete")
        careful = self._left > 0
        self._left -= careful
        return careful

    def looking_ahead(self) -> bool:
        """The driver is about to look ahead; True when it is to do so carefully. Leaves a file at the first call."""
        if not self._noted:
            self._noted = True
            try:
                if self._note.exists():
                    self._begin("a look ahead did not end in order")
                replace_durably(self._note, f"{os.getpid()}\n".encode())
            except OSError as error:
                _log.warning("look_ahead_not_noted", path=str(self._note), error=str(error))
        return self._left > 0

    def close(self) -> None:
        """An orderly end."""
        if self._noted:
            with suppress(OSError):
                self._note.unlink(missing_ok=True)
            self._noted = False

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
