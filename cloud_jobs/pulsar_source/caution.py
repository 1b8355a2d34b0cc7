"""When a query reads carefully: after a run that ended within a batch or a look ahead, for some batches.

A message that ends the native client ends the Spark worker that reads it, or the driver that looks ahead. Neither can
tell afterwards. But a batch that was planned by another process than this one did not complete; and of a look ahead a
file is left that only an orderly end removes.
"""

import os
import tempfile
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
        self._folder = options.failover_file.parent if options.failover_file else Path(tempfile.gettempdir())
        self._note: Path | None = None
        self._left = 0

    def planning(self, *, replayed: bool) -> bool:
        """A batch is planned; True when it is to be read carefully."""
        if replayed:
            self._begin("a batch was planned and did not complete")
        careful = self._left > 0
        self._left -= careful
        return careful

    def looking_ahead(self, query: str) -> bool:
        """The driver is about to look ahead; True when it is to do so carefully. Leaves a file at the first call."""
        if self._note is None:
            self._note = self._folder / f"waybill-looking-ahead-{query}"
            try:
                if self._note.exists():
                    self._begin("a look ahead did not end in order")
                replace_durably(self._note, f"{os.getpid()}\n".encode())
            except OSError as error:
                _log.warning("look_ahead_not_noted", path=str(self._note), error=str(error))
        return self._left > 0

    def close(self) -> None:
        """An orderly end."""
        if self._note is not None:
            self._note.unlink(missing_ok=True)
            self._note = None

    def _begin(self, why: str) -> None:
        _log.warning("reading_carefully", why=why, batches=CAREFUL_BATCHES)
        self._left = CAREFUL_BATCHES
