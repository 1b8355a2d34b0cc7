"""When a query reads in isolation: after a run that ended within a batch or a look ahead, for some batches.

A message that ends the native client ends the Spark worker that reads it, or the driver that looks ahead, and nobody is
left who knows of it. But a batch that was planned by another process than this one did not complete; and while the
driver looks ahead there is a file, which stays when its process ends within.
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

ISOLATED_BATCHES = 20
"""How many batches are read in isolation after a run that did not end in order."""


class CrashGuard:
    """Whether the next batch is to be read in isolation. One query in one process."""

    def __init__(self, options: PulsarOptions) -> None:
        self._marker = _marker_path(options)
        self._marker_checked = False
        self._batches_left = 0

    def on_batch_planned(self, *, replayed: bool) -> bool:
        """A batch is planned; True when it is to be read in isolation."""
        if replayed:
            self._start_isolation("a batch was planned and did not complete")
        isolated = self._batches_left > 0
        self._batches_left -= isolated
        return isolated

    @contextmanager
    def mark_lookahead(self) -> Iterator[bool]:
        """The driver looks ahead within; True when it is to do so in isolation."""
        # Only the first time: later the file is this process's own.
        if not self._marker_checked:
            self._marker_checked = True
            if self._marker.exists():
                self._start_isolation("a look ahead ended its process")
        try:
            # Not flushed to the disk: it has to outlive a process, not a machine, and costs 0.1 ms a batch.
            self._marker.touch(mode=0o600)
        except OSError as error:
            _log.warning("the marker of the lookahead cannot be written", path=str(self._marker), error=str(error))
        try:
            yield self._batches_left > 0
        finally:
            with suppress(OSError):
                self._marker.unlink(missing_ok=True)

    def _start_isolation(self, reason: str) -> None:
        _log.warning("reading in isolation", reason=reason, batches=ISOLATED_BATCHES)
        self._batches_left = ISOLATED_BATCHES


def _marker_path(options: PulsarOptions) -> Path:
    # A query that ended before its first batch has no id that outlives it; its subscription is its own.
    read = [*(cluster.service_url for cluster in options.all_clusters()), str(options.subscription)]
    read += [*map(str, options.topics), str(options.topics_pattern)]
    mark = hashlib.sha256("\n".join(read).encode()).hexdigest()[:16]
    folder = options.failover_file.parent if options.failover_file else Path(tempfile.gettempdir())
    return folder / f"waybill-looking-ahead-{os.getuid()}-{mark}"
