"""One canary process: its vehicle, its driver, its observers, and its status."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

import pulsar
import structlog

from deploy.canary.checks import agent_settings, settings_toml
from deploy.canary.config import LAKE_HOPS, CanarySettings, Hop, WatchedCluster
from deploy.canary.errors import CanaryError, NotLookedAt, ProbeCut
from deploy.canary.lake_observers import MoneyObserver, RecordsObserver
from deploy.canary.ledger import HopColour
from deploy.canary.probes import SentProbes, publish_probe
from deploy.canary.watch import (
    CanaryWatch,
    EventBook,
    EventOfProbe,
    Observer,
    ObserverThread,
    RecordOfProbe,
    records_of_batch,
)
from deploy.local import DaemonProcess, MosquittoBroker, MosquittoSettings, PortBook, Server
from geo.alerts import MalformedAlert, decode_alert
from waybill.daemon.durable_file import replace_durably
from waybill.daemon.status_reader import StatusUnavailable, fetch_status
from waybill.daemon.status_server import HttpAnswer, Routes, StatusServer, json_answer, metrics_answer
from waybill.pulsar.pulsar_client import open_pulsar_client
from waybill.record import WireError

# The driver: sends and stores one probe per period.

_LATE_MS: Final = 500
"""A period that began so long ago is passed over: its fixes would be published late."""
_PERIODS: Final = 2
"""The next probe but one begins sooner than in so many."""
_LOG = structlog.get_logger("canary")


class ProbeDriver:
    """Sends probes until `stop` is set. `publish` takes the number of a probe, and raises ProbeCut."""

    def __init__(
        self, watch: CanaryWatch, sent: SentProbes, publish: Callable[[int], None], stop: threading.Event
    ) -> None:
        self._watch, self._sent, self._publish, self._stop = watch, sent, publish, stop

    def run(self) -> None:
        """Sends one probe after the other."""
        period_s = self._watch.script.settings.period_s
        while not self._stop.is_set():
            number = self._next()
            left_s = self._watch.script.begins_ms(number) / 1000 - self._watch.clock()
            # behind what was sent by a clock that was set back since, which may be set right meanwhile
            if left_s > _PERIODS * period_s:
                self._stop.wait(period_s)
            elif left_s <= 0 or not self._stop.wait(left_s):
                self.send(number)

    def send(self, number: int) -> None:
        """Sends one probe: on disk before it begins, and when it has ended."""
        try:
            # in this order: what is killed in between was cut, and is known to be
            self._sent.begin(number, self._watch.script.quarter_of(number))
            self._watch.send(number)
            self._publish(number)
            self._sent.end()
        except (ProbeCut, OSError) as error:
            self._watch.drop(number, str(error))
            self._watch.metrics.on_probe(self._watch.clock(), is_whole=False)
            _LOG.warning("a probe was cut", number=number, error=str(error))
            # of a full disk: in memory it was cut, and what is on disk says nothing else
            with suppress(OSError):
                self._sent.cut()
        else:
            self._watch.metrics.on_probe(self._watch.clock(), is_whole=True)

    def _next(self) -> int:
        """The next probe that is still to begin, where the last one ended, and that was not begun before."""
        # not the next one that is planned: after a pause the ones between are passed over
        script, now_ms = self._watch.script, round(self._watch.clock() * 1000)
        number = self._sent.first_not_begun(script.number_at(now_ms - _LATE_MS) + 1)
        while not self._sent.may_follow(number):
            number = self._sent.first_not_begun(number + 1)
        return number


# Observers of Pulsar topics: batches in the region and at the centre, and alerts.

_TIMEOUT_S: Final = 10
_WAIT_MS: Final = 50
_AT_ONCE: Final = 1_000
"""So many messages of a partition are taken by one look."""


class TopicReaders:
    """Readers of each partition of a topic, from its end on; they leave no trace on the broker.

    After a failure they begin again behind the message that was read last; a partition that came meanwhile is read from
    its beginning.
    """

    def __init__(self, cluster: WatchedCluster, topic: str) -> None:
        self._cluster, self._topic = cluster, topic
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
        if self._client is not None:
            return
        self._client = open_pulsar_client(self._cluster.service_url, self._cluster.access, timeout_s=_TIMEOUT_S)
        begin = pulsar.MessageId.earliest if self._last else pulsar.MessageId.latest
        for partition in self._client.get_topic_partitions(self._topic):
            start = self._last.get(partition, begin)
            self._readers[partition] = self._client.create_reader(partition, start)
        # what comes while it is not connected is behind this, too
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


# The canary's vehicle: Mosquitto and an agent, restarted when they end.

_ASK_S: Final = 2.0


class CanaryVehicle:
    """Broker and agent in the canary's folder. `settings`: those of the agent."""

    def __init__(self, settings: CanarySettings) -> None:
        folder = settings.folder.absolute()
        folder.mkdir(parents=True, exist_ok=True)
        ports = PortBook(folder / "ports.json")
        self._broker: MosquittoBroker | None = None
        if settings.broker.port is None:
            self._broker = MosquittoBroker(
                settings.device, folder / "broker", settings=MosquittoSettings(), ports=ports
            )
        self.broker_port = settings.broker.port or (self._broker.port if self._broker else 0)
        self._status_port = ports.port("edge-agent")
        self.settings = agent_settings(settings, broker_port=self.broker_port, status_port=self._status_port)
        self._agent = DaemonProcess.python(
            "edge-agent", "edge_agent", ["run", "--config", str(folder / "agent.toml")], folder / "agent"
        )
        self._file = folder / "agent.toml"
        self._servers: list[Server] = [one for one in (self._broker, self._agent) if one is not None]

    @property
    def has_sent_before(self) -> bool:
        """Whether there is a buffer of an earlier run."""
        return any(self._buffer.glob("buffer.db*"))

    def start(self) -> None:
        """Starts the broker, waits for it, and starts the agent. Raises LocalStackError, OSError."""
        replace_durably(self._file, settings_toml(self.settings).encode(), mode=0o600)
        if self._broker is not None:
            self._broker.start()
            # an agent without its broker would wait by its own back-off
            self._broker.wait()
        self._agent.start()

    def is_listening(self) -> bool:
        """Whether the agent is connected to the vehicle's broker: from then on nothing that is published is lost."""
        try:
            answer = fetch_status("127.0.0.1", self._status_port, "status", timeout_s=_ASK_S)
        except StatusUnavailable:
            return False
        return answer.get("local_broker") is True

    def supervise(self) -> None:
        """Starts again what has ended; to be called once a second or so."""
        for server in self._servers:
            # a child that runs is left alone, however it fares: its hop says so
            if server.pid is None:
                _LOG.warning("ended", process=server.name, last=server.last_lines(3))
                server.stop()
                server.start()

    def stop(self) -> None:
        """Stops both, the agent first: it commits what it has taken."""
        for server in reversed(self._servers):
            server.stop()

    @property
    def _buffer(self) -> Path:
        return self.settings.buffer.path


_TICK_S: Final = 1.0
_READY_S: Final = 60.0
"""So long the first probe waits for the vehicle and the readers of topics; then it is sent all the same."""
_STOP_S: Final = 10.0


def run_canary(settings: CanarySettings, stop: threading.Event) -> None:
    """Runs until `stop` is set. Raises CanaryError, LocalStackError, OSError."""
    watch = CanaryWatch(settings)
    vehicle = CanaryVehicle(settings)
    sent = SentProbes(settings.folder / "sent-probes.json", has_sent_before=vehicle.has_sent_before)
    with ExitStack() as held:
        held.enter_context(_status(settings, watch))
        held.callback(vehicle.stop)
        vehicle.start()
        observers = [ObserverThread(one, watch, stop) for one in _observers(watch, sent)]
        publish = partial(publish_probe, watch.script, settings.device, port=vehicle.broker_port, stop=stop)
        driving = threading.Thread(
            target=_drive,
            args=(watch, vehicle, ProbeDriver(watch, sent, publish, stop), stop),
            name="driver",
            daemon=True,
        )
        for observer in observers:
            observer.start()
        driving.start()
        _LOG.info("started", region=settings.region, device=f"{settings.tenant}/{settings.device}")
        try:
            while not stop.wait(_TICK_S):
                # without it nothing would be red: nothing is sent
                if not driving.is_alive():
                    raise CanaryError("the driver ended: see the log")
                vehicle.supervise()
                watch.count()
        finally:
            # also when a server of the vehicle raised: the threads end with it
            stop.set()
            driving.join(_STOP_S)
            for observer in observers:
                observer.join()
    _LOG.info("stopped")


def _drive(watch: CanaryWatch, vehicle: CanaryVehicle, driver: ProbeDriver, stop: threading.Event) -> None:
    """Sends probes as soon as the agent listens and each topic is read."""
    topics = {Hop.REGION, Hop.CENTRE, Hop.ALERT} & {*watch.settings.watched}
    for _ in range(int(_READY_S)):
        if not (awaited := _awaited(watch, vehicle, topics)):
            break
        watch.hold(f"it waits until {awaited}, for {_READY_S:.0f} s at most")
        if stop.wait(1.0):
            return
    driver.run()


def _awaited(watch: CanaryWatch, vehicle: CanaryVehicle, topics: Collection[Hop]) -> str:
    """What the first probe waits for; "": nothing."""
    if not vehicle.is_listening():
        return "the vehicle's agent is connected to its broker"
    unread = [hop.value for hop in Hop if hop in topics and not watch.has_looked([hop])]
    return f"the topic of {', '.join(unread)} is read" if unread else ""


def _observers(watch: CanaryWatch, sent: SentProbes) -> Iterator[Observer]:
    """What looks at the hops that are watched."""
    settings, watched = watch.settings, {*watch.settings.watched}
    if settings.regional is not None and Hop.REGION in watched:
        yield BatchObserver(watch, Hop.REGION, settings.regional)
    if settings.centre is not None and Hop.CENTRE in watched:
        yield BatchObserver(watch, Hop.CENTRE, settings.centre)
    if settings.centre is not None and Hop.ALERT in watched:
        yield AlertObserver(watch, settings.centre)
    if watched & LAKE_HOPS:
        # the hops behind them need what they see
        yield RecordsObserver(watch)
    if watched & {Hop.USAGE, Hop.RATED}:
        yield MoneyObserver(watch, sent)


@contextmanager
def _status(settings: CanarySettings, watch: CanaryWatch) -> Iterator[None]:
    """Serves `/metrics`, `/status` and `/health` (200 while each watched hop is green; the others are named)."""
    if not settings.status.port:
        yield
        return
    routes: Routes = {
        "/metrics": lambda: metrics_answer(watch.metrics.registry),
        "/status": lambda: json_answer(watch.status().model_dump_json()),
        "/health": partial(health, watch),
    }
    try:
        server = StatusServer(settings.status.host, settings.status.port, routes)
    except OSError as error:
        where = f"{settings.status.host}:{settings.status.port}"
        raise CanaryError(f"status cannot be served at {where}: {error.strerror}; change [status]") from error
    with server:
        yield


def health(watch: CanaryWatch) -> HttpAnswer:
    """200 when each hop that is watched is green. What is not known is no health: 503, as for what is red."""
    status = watch.status(buckets=False)
    said = {
        "healthy": status.is_healthy,
        "region": status.region,
        "red": {one.hop: one.reason for one in status.hops if one.colour is HopColour.RED},
        "unknown": {one.hop: one.reason for one in status.hops if one.colour is HopColour.UNKNOWN},
    }
    return json_answer(json.dumps(said), is_good=status.is_healthy is True)
