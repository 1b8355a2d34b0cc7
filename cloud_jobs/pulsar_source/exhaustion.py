"""Tells a message that is never delivered from one that is late.

Some entries reach no consumer: the client drops what does not decompress and chunks whose rest never comes. As the last
entry of a range it would be waited for in vain. The broker says how far it has read for a cursor: when that is beyond
the range and still nothing has come, nothing will.
"""

import time
from collections.abc import Callable
from contextlib import suppress

import structlog

from cloud_jobs.pulsar_source.admin import Admin
from cloud_jobs.pulsar_source.errors import PulsarSourceError
from cloud_jobs.pulsar_source.options import Cluster, PulsarOptions
from cloud_jobs.pulsar_source.position import Position

_log = structlog.get_logger(__name__)
LOOK_PERIOD_S = 1.5
"""Silence after which the cluster is asked, and after which it is asked again."""


class Exhaustion:
    """Whether a cursor (a subscription, or a reader by the name it was given) has got all there is up to a position."""

    def __init__(
        self,
        cluster: Cluster,
        options: PulsarOptions,
        topic: str,
        cursor: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cluster = cluster
        self._options = options
        self._topic = topic
        self._cursor = cursor
        self._clock = clock
        self._admin: Admin | None = None
        self._looked_s: float | None = None
        self._beyond: Position | None = None

    def close(self) -> None:
        """Gives the connection back."""
        if self._admin is not None:
            self._admin.close()
            self._admin = None

    def heard(self) -> None:
        """Something came."""
        self._looked_s = None
        self._beyond = None

    def proven(self, upto: Position) -> bool:
        """True when the broker had read beyond `upto` at two looks, and nothing came between them or since."""
        now_s = self._clock()
        if self._looked_s is None:
            self._looked_s = now_s
        if now_s - self._looked_s < LOOK_PERIOD_S:
            return False
        self._looked_s = now_s
        before, self._beyond = self._beyond, upto if self._is_beyond(upto) else None
        if before is not None and before >= upto and self._beyond is not None:
            _log.warning("entries_never_delivered", cluster=self._cluster.name, topic=self._topic, upto=str(upto))
            return True
        return False

    def _is_beyond(self, upto: Position) -> bool:
        with suppress(PulsarSourceError):  # who does not answer proves nothing
            if self._admin is None:
                self._admin = Admin(self._cluster, self._options, self._options.call_timeout_s())
            read = self._admin.read_positions(self._topic)
            # The client makes a reader's name of the one that it is given.
            names = (name for name in read if name == self._cursor or name.startswith(f"{self._cursor}-reader-"))
            mine = [read[name] for name in names]
            # The position is the next entry to be read.
            return bool(mine) and all((at.ledger, at.entry) > (upto.ledger, upto.entry) for at in mine)
        return False
