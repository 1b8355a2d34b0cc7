"""Observers of Pulsar's topics: batches in the region and at the centre, and alerts."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, Final

import pulsar

from deploy.canary.config import WatchedCluster
from deploy.canary.errors import NotLookedAt
from deploy.canary.hops import Hop
from deploy.canary.observer import Observer
from deploy.canary.shown_events import EventBook, EventOfProbe
from deploy.canary.shown_records import RecordOfProbe, records_of_batch
from deploy.canary.watch import CanaryWatch
from geo.alerts import MalformedAlert, decode_alert
from waybill.pulsar.pulsar_client import open_pulsar_client
from waybill.record import WireError

__all__ = ["AlertObserver", "BatchObserver", "TopicReaders"]

_TIMEOUT_S: Final = 10
_WAIT_MS: Final = 50
LOOK_S: Final = 5.0
"""So often is looked whether a topic got more partitions: what is read late there is in time after all."""
_AT_ONCE: Final = 1_000
"""So many messages of a partition are taken by one look."""


class TopicReaders:
    """Readers of each partition of a topic, from its end on; they leave no trace on the broker.

    After a failure they begin again behind the message that was read last. A partition that comes later is read from
    its beginning. `clock`: of a clock that only goes forward.
    """

    def __init__(self, cluster: WatchedCluster, topic: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._cluster, self._topic, self._clock = cluster, topic, clock
        self._looked_s, self._has_looked = 0.0, False
        self._client: pulsar.Client | None = None
        self._readers: dict[str, Any] = {}
        self._last: dict[str, Any] = {}

    def read(self) -> Iterator[bytes]:
        """The messages that are there now. Raises NotLookedAt."""
        try:
            self._open()
            for partition, reader in self._readers.items():
                # one that is not reads nothing, for ever, and raises nothing
                if not reader.is_connected():
                    raise NotLookedAt(f"{self._cluster.service_url} is not connected")
                yield from self._read(partition, reader)
        except (pulsar.PulsarException, ValueError, RuntimeError) as error:
            self.close()
            # a token that ended shows as a time-out
            why = self._cluster.access.token_problem(time.time()) or f"{error}"
            raise NotLookedAt(f"{self._topic} at {self._cluster.service_url}: {why}") from error

    def close(self) -> None:
        """Closes the connection."""
        client, self._client, self._readers = self._client, None, {}
        if client is not None:
            with suppress(pulsar.PulsarException, RuntimeError):
                client.close()

    def _open(self) -> None:
        if self._client is not None and self._clock() - self._looked_s < LOOK_S:
            return
        if self._client is None:
            self._client = open_pulsar_client(self._cluster.service_url, self._cluster.access, timeout_s=_TIMEOUT_S)
        self._looked_s = self._clock()
        # all of one that was not there by the first look came since
        begin = pulsar.MessageId.earliest if self._has_looked else pulsar.MessageId.latest
        for partition in self._partitions(self._client):
            start = self._last.get(partition, begin)
            self._readers[partition] = self._client.create_reader(partition, start)
            # what comes while it is not connected is behind this, too
            self._last.setdefault(partition, start)
        self._has_looked = True

    def _partitions(self, client: pulsar.Client) -> list[str]:
        """Those that are not read yet. Raises PulsarException."""
        try:
            return [one for one in client.get_topic_partitions(self._topic) if one not in self._readers]
        except pulsar.PulsarException:
            # those that are read go on; a cluster that is lost shows by them
            if self._readers:
                return []
            raise

    def _read(self, partition: str, reader: Any) -> Iterator[bytes]:
        for _ in range(_AT_ONCE):
            try:
                message = reader.read_next(_WAIT_MS)
            except pulsar.Timeout:
                return
            self._last[partition] = message.message_id()
            yield message.data()


class BatchObserver(Observer):
    """The canary's batches on the topic of its region, in one cluster."""

    every_s = 0.02

    def __init__(self, watch: CanaryWatch, hop: Hop, cluster: WatchedCluster) -> None:
        self.hops = (hop,)
        self._watch, self._hop, self._device = watch, hop, watch.settings.device
        self._readers = TopicReaders(cluster, watch.settings.batches_topic)

    def look(self) -> None:
        """See Observer."""
        for data in self._readers.read():
            self._watch.show_records(self._hop, self._records(data))

    def close(self) -> None:
        """See Observer."""
        self._readers.close()

    def _records(self, data: bytes) -> list[RecordOfProbe]:
        try:
            return records_of_batch(data, self._device)
        except WireError:
            return []  # not a batch of ours: the ingest puts it in quarantine


class AlertObserver(Observer):
    """Alerts at the canary's fence, as they are readable at the centre."""

    hops = (Hop.ALERT,)
    every_s = 0.02

    def __init__(self, watch: CanaryWatch, cluster: WatchedCluster) -> None:
        settings = watch.settings
        self._watch, self._sender, self._place = watch, (settings.tenant, settings.device), settings.name
        self._book = EventBook(watch.script, *self._sender)
        self._readers = TopicReaders(cluster, settings.alerts_topic)

    def look(self) -> None:
        """See Observer."""
        for data in self._readers.read():
            try:
                alert = decode_alert(data)
            except MalformedAlert:
                continue
            # the topic has everybody's; another device at this fence is no probe
            if (alert.tenant, alert.device) == self._sender and alert.place == self._place:
                self._show(EventOfProbe(alert.id, alert.event))

    def close(self) -> None:
        """See Observer."""
        self._readers.close()

    def _show(self, shown: EventOfProbe) -> None:
        number = self._watch.script.number_at(shown.event.t_ms)
        is_known = self._book.knows(number, shown)
        item, fault = self._book.note(number, shown)
        if is_known:
            self._watch.note_repeat(number, Hop.ALERT)
        elif item is not None:
            self._watch.show(number, Hop.ALERT, [item])
        if fault:
            self._watch.judge(number, Hop.ALERT, fault)
