"""One canary process: its vehicle, its driver, its observers, and its status."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any, Final

import pulsar
import structlog

from deploy.local import DaemonProcess, MosquittoBroker, MosquittoSettings, PortBook, Server
from gateway.canary.checks import agent_settings, settings_toml
from gateway.canary.config import LAKE_HOPS, CanarySettings, Hop, WatchedCluster
from gateway.canary.lake_observers import MoneyObserver, RecordsObserver
from gateway.canary.probes import SentProbes, publish_probe
from gateway.canary.watch import (
    CanaryWatch,
    EventBook,
    EventOfProbe,
    Observer,
    ObserverThread,
    RecordOfProbe,
    records_of_batch,
)
from gateway.errors import CanaryError, ProbeCut
from geo.alerts import MalformedAlert, decode_alert
from waybill.daemon.durable_file import replace_durably
from waybill.daemon.service import run_components, serve_status
from waybill.daemon.status_reader import StatusUnavailable, fetch_status
from waybill.pulsar.pulsar_client import open_pulsar_client
from waybill.record import WireError

# The driver: sends one probe per period.

_LATE_MS: Final = 500
"""A period that began longer ago is skipped, as its fixes would be late."""
_PERIODS: Final = 2
"""A probe that begins after more periods waits for the clock to be corrected."""
_LOG = structlog.get_logger("canary")


class ProbeDriver:
    """Sends probes until `stop` is set. `publish` takes the number of a probe, and raises ProbeCut."""

    def __init__(
        self, watch: CanaryWatch, sent: SentProbes, publish: Callable[[int], None], stop: threading.Event
    ) -> None:
        self._watch, self._sent, self._publish, self._stop = watch, sent, publish, stop

    def run(self) -> None:
        period_s = self._watch.script.settings.period_s
        while not self._stop.is_set():
            number = self._next()
            left_s = self._watch.script.begins_ms(number) / 1000 - self._watch.clock()
            # the clock was set back since the last probe, and may be corrected meanwhile
            if left_s > _PERIODS * period_s:
                self._stop.wait(period_s)
            elif left_s <= 0 or not self._stop.wait(left_s):
                self.send(number)

    def send(self, number: int) -> None:
        self._sent.begin(number, self._watch.script.quarter_of(number))
        self._watch.send(number)
        try:
            self._publish(number)
        except ProbeCut as error:
            self._sent.cut()
            self._watch.drop(number, str(error))
            self._watch.metrics.cut.inc()
            _LOG.warning("a probe was cut", number=number, error=str(error))
        else:
            self._sent.end()
            self._watch.metrics.probes.inc()
            self._watch.metrics.last_s.set(self._watch.clock())

    def _next(self) -> int:
        """The next probe that was not begun, and that begins where the last one ended."""
        # after a pause, probes in between are skipped
        script, now_ms = self._watch.script, round(self._watch.clock() * 1000)
        number = self._sent.first_not_begun(script.number_at(now_ms - _LATE_MS) + 1)
        while not self._sent.may_follow(number):
            number = self._sent.first_not_begun(number + 1)
        return number


# Observers of Pulsar topics: batches in the region and at the centre, and alerts.

_TIMEOUT_S: Final = 10
_WAIT_MS: Final = 50
_AT_ONCE: Final = 1_000
"""The most messages of a partition in one look."""


class TopicReaders:
    """Readers of each partition of a topic, from its end on.

    After a failure they continue behind the last message. A new partition is read from its beginning.
    """

    def __init__(self, cluster: WatchedCluster, topic: str) -> None:
        self._cluster, self._topic = cluster, topic
        self._client: pulsar.Client | None = None
        self._readers: dict[str, Any] = {}
        self._last: dict[str, Any] = {}

    def read(self) -> Iterator[bytes]:
        """The messages that have arrived. Raises CanaryError."""
        try:
            self._open()
            for partition, reader in self._readers.items():
                # a reader without a connection reads nothing and raises nothing
                if not reader.is_connected():
                    raise CanaryError(f"{self._cluster.service_url} is not connected")
                yield from self._read(partition, reader)
        except (pulsar.PulsarException, ValueError, RuntimeError) as error:
            self.close()
            # an ended token shows as a time-out
            why = self._cluster.access.token_problem(time.time()) or f"{error}"
            raise CanaryError(f"{self._topic} at {self._cluster.service_url}: {why}") from error

    def close(self) -> None:
        client, self._client, self._readers = self._client, None, {}
        if client is not None:
            with suppress(pulsar.PulsarException, RuntimeError):
                client.close()

    def _open(self) -> None:
        if self._client is not None:
            return
        self._client = open_pulsar_client(self._cluster.service_url, self._cluster.access, timeout_s=_TIMEOUT_S)
        begin = pulsar.MessageId.earliest if self._last else pulsar.MessageId.latest
        for partition in self._client.get_topic_partitions(self._topic):
            start = self._last.get(partition, begin)
            self._readers[partition] = self._client.create_reader(partition, start)
        # messages that arrive while it is not connected are behind this, too
        self._last = dict.fromkeys(self._readers, begin) | self._last

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
        for data in self._readers.read():
            self._watch.show_records(self._hop, self._records(data))

    def close(self) -> None:
        self._readers.close()

    def _records(self, data: bytes) -> list[RecordOfProbe]:
        try:
            return records_of_batch(data, self._device)
        except WireError:
            return []  # not a batch of ours: the ingest puts it in quarantine


class AlertObserver(Observer):
    """Alerts at the canary's fence, as the centre receives them."""

    hops = (Hop.ALERT,)
    every_s = 0.02

    def __init__(self, watch: CanaryWatch, cluster: WatchedCluster) -> None:
        settings = watch.settings
        self._watch, self._sender, self._place = watch, (settings.tenant, settings.device), settings.name
        self._book = EventBook(watch.script, *self._sender)
        self._readers = TopicReaders(cluster, settings.alerts_topic)

    def look(self) -> None:
        for data in self._readers.read():
            try:
                alert = decode_alert(data)
            except MalformedAlert:
                continue
            # another device at this fence is no probe
            if (alert.tenant, alert.device) == self._sender and alert.place == self._place:
                self._show(EventOfProbe(alert.id, alert.event))

    def close(self) -> None:
        self._readers.close()

    def _show(self, shown: EventOfProbe) -> None:
        number = self._watch.script.number_at(shown.event.t_ms)
        item, fault = self._book.note(number, shown)
        if item is not None:
            self._watch.show(number, Hop.ALERT, [item])
        if fault:
            with self._watch.ledger() as ledger:
                ledger.judge(number, Hop.ALERT, fault)


# The canary's vehicle: Mosquitto and an agent, restarted when they end.

_ASK_S: Final = 2.0


class CanaryVehicle:
    """Broker and agent in the canary's folder. `settings`: those of the agent."""

    def __init__(self, settings: CanarySettings) -> None:
        folder = settings.folder.absolute()
        folder.mkdir(parents=True, exist_ok=True)
        ports = PortBook(folder / "ports.json")
        self._broker = MosquittoBroker(settings.device, folder / "broker", settings=MosquittoSettings(), ports=ports)
        self.broker_port = self._broker.port
        self._status_port = ports.port("edge-agent")
        self.settings = agent_settings(settings, broker_port=self.broker_port, status_port=self._status_port)
        self._agent = DaemonProcess.python(
            "edge-agent", "edge_agent", ["run", "--config", str(folder / "agent.toml")], folder / "agent"
        )
        self._file = folder / "agent.toml"
        self._servers: list[Server] = [self._broker, self._agent]

    def start(self) -> None:
        """Start the broker, then the agent. Raises LocalStackError, OSError."""
        replace_durably(self._file, settings_toml(self.settings).encode(), mode=0o600)
        self._broker.start()
        # an agent without its broker would wait by its own back-off
        self._broker.wait()
        self._agent.start()

    def is_listening(self) -> bool:
        """Whether the agent is connected to the vehicle's broker: from then on no message is lost."""
        try:
            answer = fetch_status("127.0.0.1", self._status_port, "status", timeout_s=_ASK_S)
        except StatusUnavailable:
            return False
        return answer.get("local_broker") is True

    def supervise(self) -> None:
        for server in self._servers:
            # whether a running child works is seen at its hop
            if server.pid is None:
                _LOG.warning("ended", process=server.name, last=server.last_lines(3))
                server.stop()
                server.start()

    def stop(self) -> None:
        """Stop both, the agent first, so that it commits what it has."""
        for server in reversed(self._servers):
            server.stop()


_TURN_S: Final = 0.2
_READY_S: Final = 60
"""The longest wait of the first probe for the vehicle and the readers of topics."""
_STOP_S: Final = 10.0


class _DriverThread:
    """Sends probes as soon as the agent listens and each watched topic is read."""

    def __init__(self, watch: CanaryWatch, vehicle: CanaryVehicle, driver: ProbeDriver, stop: threading.Event) -> None:
        self._watch, self._vehicle, self._driver, self._stop = watch, vehicle, driver, stop
        self._topics = [hop for hop in (Hop.REGION, Hop.CENTRE, Hop.ALERT) if hop in watch.settings.watched]
        self._thread = threading.Thread(target=self._run, name="driver", daemon=True)

    @property
    def is_running(self) -> bool:
        return self._thread.is_alive()

    def start(self) -> None:
        self._thread.start()

    def join(self) -> None:
        self._thread.join(_STOP_S)

    def _run(self) -> None:
        for _ in range(_READY_S):
            unread = [hop.value for hop in self._topics if not self._watch.has_looked(hop)]
            if not unread and self._vehicle.is_listening():
                break
            waits_for = f"the topics of {', '.join(unread)}" if unread else "the vehicle's agent"
            self._watch.not_sent = f"waiting for {waits_for}, {_READY_S} s at most"
            if self._stop.wait(1.0):
                return
        self._driver.run()


def run_canary(settings: CanarySettings, stop: threading.Event) -> None:
    """Run until `stop` is set or a signal comes. Raises CanaryError, DaemonError, LocalStackError, OSError."""
    watch = CanaryWatch(settings)
    vehicle = CanaryVehicle(settings)
    sent = SentProbes(after_cut=any(vehicle.settings.buffer.path.glob("buffer.db*")))
    publish = partial(publish_probe, watch.script, settings.device, port=vehicle.broker_port, stop=stop)
    threads: list[ObserverThread | _DriverThread] = [
        *(ObserverThread(one, watch, stop) for one in _observers(watch, sent)),
        _DriverThread(watch, vehicle, ProbeDriver(watch, sent, publish, stop), stop),
    ]

    def update(_: float) -> None:
        vehicle.supervise()
        watch.update_metrics()

    with ExitStack() as held:
        server = held.enter_context(serve_status(settings.status, watch.metrics.registry, watch.status))
        held.callback(vehicle.stop)
        vehicle.start()
        _LOG.info("started", region=settings.region, device=f"{settings.tenant}/{settings.device}")
        try:
            if not stop.is_set():
                run_components(threads, server, turn=lambda ended: ended.wait(_TURN_S), update=update)
        finally:
            stop.set()
            for one in reversed(threads):
                if one.is_running:
                    one.join()
    _LOG.info("stopped")


def _observers(watch: CanaryWatch, sent: SentProbes) -> Iterator[Observer]:
    settings, watched = watch.settings, {*watch.settings.watched}
    if settings.regional is not None and Hop.REGION in watched:
        yield BatchObserver(watch, Hop.REGION, settings.regional)
    if settings.centre is not None and Hop.CENTRE in watched:
        yield BatchObserver(watch, Hop.CENTRE, settings.centre)
    if settings.centre is not None and Hop.ALERT in watched:
        yield AlertObserver(watch, settings.centre)
    if watched & LAKE_HOPS:
        # the hops behind it need its items
        yield RecordsObserver(watch)
    if watched & {Hop.USAGE, Hop.RATED}:
        yield MoneyObserver(watch, sent)
