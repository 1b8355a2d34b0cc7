"""Distinguishes a message that is never delivered from one that is late.

Some entries reach no consumer: the client drops what does not decompress and chunks whose rest never comes. As the last
entry of a range it would be waited for in vain. The broker says how far it has read for a cursor. What it has read can
still be on the way, for as long as a slow connection needs; so each look is followed by a question over that same
connection, whose answer comes behind all that was sent before it. Two such pairs, with nothing received after either,
prove it: one alone could be wrong if the connection broke between its two halves.
"""

import time
from collections.abc import Callable
from contextlib import suppress

import pulsar
import structlog

from cloud_jobs.pulsar_source.cluster.admin import SourceAdmin
from cloud_jobs.pulsar_source.errors import PulsarSourceError
from cloud_jobs.pulsar_source.options import PulsarOptions, SourceCluster
from cloud_jobs.pulsar_source.position import BEGINNING, LedgerPosition

_log = structlog.get_logger(__name__)
PROBE_PERIOD_S = 1.5
"""Silence after which the cluster is asked, and after which it is asked again."""

_PROBES = 2

Flush = Callable[[], object]
"""A question to the broker over a feed's own connection; a PulsarException when it is not answered in time."""


class ExhaustionProbe:
    """Whether a cursor (a subscription, or a reader by the name it was given) has got all there is up to a position."""

    def __init__(
        self,
        cluster: SourceCluster,
        options: PulsarOptions,
        topic: str,
        cursor: str,
        flush: Flush,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cluster = cluster
        self._options = options
        self._topic = topic
        self._cursor = cursor
        self._flush = flush
        self._clock = clock
        self._admin: SourceAdmin | None = None
        self._probed_s: float | None = None
        self._probes = 0
        self._upto = BEGINNING

    def close(self) -> None:
        """Gives the connection back."""
        if self._admin is not None:
            self._admin.close()
            self._admin = None

    def on_message(self) -> None:
        """Something came."""
        self._probed_s = None
        self._probes = 0

    def probe(self, upto: LedgerPosition) -> bool:
        """True when nothing up to the position will come; to be called after each receive that brought nothing.

        The receive between the last pair and the answer True is part of the proof.
        """
        if upto > self._upto:
            # What was proven of an earlier position says nothing of a later one.
            self._probes, self._upto = 0, upto
        if self._probes >= _PROBES:
            _log.warning("entries are never delivered", cluster=self._cluster.name, topic=self._topic, upto=str(upto))
            return True
        now_s = self._clock()
        if self._probed_s is None:
            self._probed_s = now_s
        if now_s - self._probed_s >= PROBE_PERIOD_S:
            self._probes = self._probes + 1 if self._is_beyond(upto) and self._is_flushed() else 0
            self._probed_s = self._clock()
        return False

    def _is_flushed(self) -> bool:
        try:
            self._flush()
        except pulsar.PulsarException:
            return False
        return True

    def _is_beyond(self, upto: LedgerPosition) -> bool:
        with suppress(PulsarSourceError):  # who does not answer proves nothing
            if self._admin is None:
                self._admin = SourceAdmin(self._cluster, self._options, self._options.call_timeout_s())
            read = self._admin.read_positions(self._topic)
            # The client makes a reader's name of the one that it is given.
            names = (name for name in read if name == self._cursor or name.startswith(f"{self._cursor}-reader-"))
            mine = [read[name] for name in names]
            # The position is the next entry to be read.
            return bool(mine) and all((at.ledger, at.entry) > (upto.ledger, upto.entry) for at in mine)
        return False
