"""One trial: the servers that it starts beside the stack, and everything that it observes of one device's records."""

from __future__ import annotations

import json
import os
import queue
import secrets
import shutil
import signal
import socket
import threading
import time
import tomllib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import psutil
import pulsar
import structlog
from paho.mqtt import client as mqtt
from paho.mqtt.enums import CallbackAPIVersion

from cloud_jobs.config import CloudSettings
from cloud_jobs.errors import CloudError
from cloud_jobs.reference.files import Signing, publish, read_reference
from deploy.demo.plan import DemoError
from deploy.demo.processes import ExpectedDevice, expect_devices, has_buffer
from deploy.local import (
    DaemonProcess,
    LocalStackError,
    MosquittoBroker,
    PortBook,
    Server,
    StackNotRunning,
    StackState,
    http_health,
    stack_access,
    stack_operator,
    wait_all,
)
from deploy.local.cli import start_in_background, stop_running
from deploy.local.folder import claim, holder
from deploy.local.stack import DEFAULT_TOPOLOGY
from deploy.trial.files import agent_text, contracts_text, fence_text, one_region
from deploy.trial.ladder import (
    AgentSeen,
    AlertRaised,
    Component,
    ComponentSeen,
    FenceEntered,
    LineDrafted,
    Observation,
    RecordsStored,
)
from deploy.trial.phone import PhoneListener
from deploy.trial.sources import Fix, Message, MessageReader, Place, TrialError, apart_m
from edge_agent.config import AgentSettings
from edge_agent.enrolment.certificates import certificate_folder
from edge_agent.mapping.parser import compile_mappings
from gateway.errors import AlertsUnread, NoAnswer
from gateway.status import GatewayStatus
from gateway.status_answer import read_answer
from gateway.webhooks.config import NotifierSettings
from gateway.webhooks.intake import AlertTopic
from gateway.webhooks.tail import TailFilter, tail
from geo.alerts import Alert
from waybill.daemon.status_reader import StatusEndpoint, StatusUnavailable, fetch_status
from waybill.identity.errors import IdentityError
from waybill.pulsar.pulsar_client import PulsarAccessError, close_quietly, open_pulsar_client
from waybill.settings import SettingsError, load

TENANT: Final = "fleet"
HOST: Final = "127.0.0.1"
_POLL_S: Final = 0.2
_SLOW_S: Final = 2.0
_STACK_S: Final = 600.0
_STOP_S: Final = 90.0
_LISTENS_S: Final = 30.0
_ORDERLY_S: Final = 20.0
_CENTRE: Final = "centre"
_DAEMON_S: Final = 120.0
_MAX_SEEN: Final = 10_000
_MAX_MESSAGES: Final = 2_000
FENCE_M: Final = 300.0
_ELSEWHERE_M: Final = 2_000.0
"""A first fix so far from the expected place is of a device elsewhere, which gets the fence."""
_FAILURES: Final = (
    CloudError, DemoError, IdentityError, LocalStackError, SettingsError, TrialError, pulsar.PulsarException,
    PulsarAccessError, OSError,
)  # fmt: skip
_LOG = structlog.get_logger("waybill.try")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialSettings:
    """`port`: of the vehicle's broker; 0: a free one. `token_file`: a token that was issued before; None: the trial
    registers the device. `preset`: of the messages; "": native. `is_kept`: files stay. `place`: where the fence is
    made before the first fix is heard; None: around that fix.
    """

    folder: Path
    device: str
    region: str = "eu"
    port: int = 0
    token_file: Path | None = None
    preset: str = ""
    is_kept: bool = False
    place: Place | None = None

    @property
    def account(self) -> str:
        """The id of the account, its tariff and its fence: such ids have small letters."""
        return self.device.lower()


@dataclass(slots=True)
class Trial:
    """Starts servers in threads; what they observe is in `seen`, bounded. `stop` ends what it started."""

    settings: TrialSettings
    seen: queue.Queue[Observation] = field(default_factory=lambda: queue.Queue(_MAX_SEEN))
    _book: PortBook = field(init=False)
    _servers: list[Server] = field(default_factory=list)
    _threads: list[threading.Thread] = field(default_factory=list)
    _ended: threading.Event = field(default_factory=threading.Event)
    _listens: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _held: ExitStack = field(default_factory=ExitStack)
    _place: Place | None = None
    _published: bool = False
    _places: queue.Queue[Place] = field(default_factory=lambda: queue.Queue(16))
    starts_stack: bool = False
    is_watched: bool = True
    """Whether the agent's status is asked often: until the region has acknowledged."""

    # Names and files.

    @property
    def folder(self) -> Path:
        """Of this device, in the stack's folder."""
        return self.settings.folder / "try" / self.settings.device

    @property
    def name(self) -> str:
        return f"{TENANT}/{self.settings.device}"

    @property
    def config(self) -> Path:
        return self.folder / "agent.toml"

    @property
    def token_file(self) -> Path:
        return self.settings.token_file or self.folder / "token"

    @property
    def broker_port(self) -> int:
        return self.settings.port or self._book.port("broker")

    # Life.

    def start(self) -> None:
        """Returns when the vehicle's broker and the agent are ready; the rest starts in threads.

        Raises TrialError, LocalStackError, OSError.
        """
        settings = self.settings
        if settings.port:
            check_port_free(settings.port)
        claim(settings.folder)
        settings.folder.chmod(0o700)
        self.folder.mkdir(parents=True, exist_ok=True)
        self._book = PortBook(self._ports_file)
        self.starts_stack = holder(settings.folder) is None
        self.say(ComponentSeen(Component.GATEWAY, False))
        if settings.place is not None:
            self._place = settings.place
            self._places.put_nowait(settings.place)
        self._run(self._centre)
        if self.starts_stack:
            self._run(self._stack)
        state = self._stack_addresses()
        self._write_settings(state)
        self._start_vehicle()
        self._run(self._region)
        self._run(self._register)
        self._run(self._reference)
        self._run(self._alerts)
        self._run(self._poll_agent)

    def stop(self) -> None:
        """Ends everything that this trial started, the newest first; a stack that ran before stays."""
        self._ended.set()
        with self._lock:
            servers = [*reversed(self._servers)]
        for server in servers:
            if server.name == _CENTRE and server.pid is not None:
                # without its JVM, which is of the same group: a micro-batch that is cut is read again one by one
                with suppress(ProcessLookupError):
                    os.kill(server.pid, signal.SIGTERM)
                _wait_for_end(server)
            server.stop()
        self._held.close()
        ends_s = time.monotonic() + _STOP_S
        if self.starts_stack:
            self._stop_stack(ends_s)
        for thread in self._threads:
            thread.join(max(ends_s - time.monotonic(), 0.0))
        if not self.settings.is_kept:
            shutil.rmtree(self.folder, ignore_errors=True)
            self._ports_file.unlink(missing_ok=True)

    def _stop_stack(self, ends_s: float) -> None:
        """Also a stack that is only starting: its supervisor may not have the folder yet."""
        starting = next(one for one in self._threads if one.name == "stack")
        while time.monotonic() < ends_s and (starting.is_alive() or holder(self.settings.folder) is not None):
            with suppress(StackNotRunning, psutil.Error):
                stop_running(self.settings.folder)
            time.sleep(_POLL_S)

    @property
    def _ports_file(self) -> Path:
        return self.settings.folder / "try" / f"{self.settings.device}.ports.json"

    def _run(self, work: Callable[[], None]) -> None:
        def guarded() -> None:
            try:
                work()
            except _FAILURES as error:
                if not self._ended.is_set():
                    component = _COMPONENT_OF[work.__name__]
                    self.say(ComponentSeen(component, False, str(error), getattr(error, "command", "")))

        thread = threading.Thread(target=guarded, name=work.__name__.strip("_"), daemon=True)
        self._threads.append(thread)
        thread.start()

    def say(self, seen: Observation) -> None:
        with suppress(queue.Full):
            self.seen.put_nowait(seen)

    def _add(self, server: Server) -> Server:
        """Starts a server, unless the trial has ended meanwhile."""
        with self._lock:
            if self._ended.is_set():
                raise TrialError("the trial has ended")
            self._servers.append(server)
            server.start()
        return server

    def _until(self, is_true: Callable[[], bool], timeout_s: float, what: str) -> bool:
        """Whether it came true before the trial ended. Raises TrialError when the time is over."""
        ends_s = time.monotonic() + timeout_s
        while not self._ended.wait(_POLL_S):
            if is_true():
                return True
            if time.monotonic() > ends_s:
                raise TrialError(f"{what} after {timeout_s:.0f} s")
        return False

    # The stack.

    def _stack(self) -> None:
        self.say(ComponentSeen(Component.STACK, False))
        topology = self.settings.folder / "try" / "topology.toml"
        topology.write_text(one_region(DEFAULT_TOPOLOGY.read_text(), self.settings.region))
        start_in_background(self.settings.folder, ["--topology", str(topology)])
        self.say(ComponentSeen(Component.STACK, True))

    def _state(self) -> StackState | None:
        try:
            return StackState.load(self.settings.folder)
        except (LocalStackError, OSError):
            return None

    def _stack_addresses(self) -> StackState:
        """The addresses of the stack, which are known before it is ready."""
        region, found = self.settings.region, list[StackState]()

        def has_addresses() -> bool:
            state = self._state()
            if state is not None and any(one.name == f"enrolment-{region}" for one in state.servers):
                found.append(state)
            return bool(found)

        self._until(has_addresses, _STACK_S, "the stack has no addresses")
        if not found:
            raise TrialError("interrupted")
        return found[0]

    def _is_ready(self) -> bool:
        state = self._state()
        return state is not None and state.phase == "ready"

    def _wait_for_stack(self) -> bool:
        return self._until(self._is_ready, _STACK_S, "the stack is not ready")

    # The vehicle: broker, agent, and what is heard on the broker.

    def _write_settings(self, state: StackState) -> None:
        region = self.settings.region
        enrolment = state.address(f"enrolment-{region}", "url").rpartition(":")[2]
        text = agent_text(
            device=self.settings.device,
            tenant=TENANT,
            folder=self.folder,
            region=region,
            broker_port=self.broker_port,
            uplink_port=state.link(region).port,
            enrolment_port=int(enrolment),
            ca=self.settings.folder / "access" / "authority.pem",
            token_file=self.token_file,
            status_port=self._book.port("agent"),
            preset=self.settings.preset,
        )
        self.config.write_text(text)
        self.config.chmod(0o640)

    def _start_vehicle(self) -> None:
        broker = MosquittoBroker(self.settings.device, self.folder / "broker", ports=self._book)
        broker.port = self.broker_port
        self._add(broker)
        agent = DaemonProcess.python(
            "edge-agent",
            "edge_agent",
            ["run", "--config", str(self.config)],
            self.folder / "agent",
            healthy_when=self._is_subscribed,
        )
        wait_all([broker])
        self._add(agent)
        wait_all([agent], _DAEMON_S)
        assert has_buffer(self.config), "it answers with the state of its buffer"

    def _is_subscribed(self) -> bool:
        """Whether the agent reads the vehicle's broker: what is published before would be lost."""
        try:
            return fetch_status(HOST, self._book.port("agent"), "status", timeout_s=5)["local_broker"] is True
        except StatusUnavailable:
            return False

    def reader(self) -> MessageReader:
        """Reads messages as the agent with these settings does. Raises SettingsError."""
        settings = load(AgentSettings, self.config)
        parser = compile_mappings(settings.mappings)
        return MessageReader((*settings.intake.topics, *parser.filters), parser.parse)

    @property
    def token_command(self) -> str:
        """The way out of a token that is used or expired: a certificate that was given for it is not given twice."""
        return f"waybill try --folder {self.settings.folder}   # registers another device, with its own token"

    def open_listener(self, listener: PhoneListener) -> None:
        """Starts the phone's broker. Raises LocalStackError."""
        wait_all([self._add(listener.server(self.folder / "phone", self.broker_port))])

    def hear(self, reader: MessageReader) -> None:
        """Observes every message on the vehicle's broker; the first fix moves the fence. Raises OSError."""
        client = mqtt.Client(CallbackAPIVersion.VERSION2, client_id="waybill-try", protocol=mqtt.MQTTv5)

        def heard(_client: Any, _data: Any, message: mqtt.MQTTMessage) -> None:
            seen, fix = reader.heard(message.topic, bytes(message.payload), time.time_ns() // 1_000_000)
            self.say(seen)
            if fix is not None:
                self._note_fix(fix)

        client.on_message = heard

        def connected(*_: object) -> None:
            client.subscribe("#", qos=0)

        client.on_connect = connected
        client.connect(HOST, self.broker_port)
        client.loop_start()
        self._held.callback(client.loop_stop)
        self._held.callback(client.disconnect)

    def send(self, messages: Iterator[Message]) -> None:
        """Publishes messages to the vehicle's broker and waits for its receipts. Raises TrialError, OSError."""
        client = mqtt.Client(CallbackAPIVersion.VERSION2, client_id="waybill-try-source", protocol=mqtt.MQTTv5)
        client.connect(HOST, self.broker_port)
        client.loop_start()
        try:
            for count, message in enumerate(messages):
                assert count < _MAX_MESSAGES, "a track is bounded"
                sent = client.publish(message.topic, message.payload, qos=1)
                sent.wait_for_publish(_DAEMON_S)
                if not sent.is_published():
                    raise TrialError("the vehicle's broker accepts no messages")
        finally:
            client.disconnect()
            client.loop_stop()

    def _note_fix(self, fix: Fix) -> None:
        if self._place is not None and (self._published or apart_m(fix.place, self._place) < _ELSEWHERE_M):
            self._published = True
            return
        self._place, self._published = fix.place, True
        with suppress(queue.Full):
            self._places.put_nowait(fix.place)

    def _poll_agent(self) -> None:
        while not self._ended.wait(_POLL_S if self.is_watched else _SLOW_S):
            try:
                status = fetch_status(HOST, self._book.port("agent"), "status", timeout_s=5)
            except StatusUnavailable as error:
                self.say(ComponentSeen(Component.AGENT, False, str(error)))
                continue
            self.say(ComponentSeen(Component.AGENT, True))
            self.say(
                AgentSeen(
                    head=status["head"],
                    acknowledged=status["acknowledged"],
                    uplink=str(status["uplink"]),
                    certificate_problem=str(status["certificate_problem"] or "") if self._is_registered else "",
                    uplink_problem=str(status["uplink_problem"] or ""),
                )
            )

    _is_registered: bool = False

    def _register(self) -> None:
        """Registers the device, unless it has a certificate or a token of its own."""
        held = certificate_folder(load(AgentSettings, self.config))
        if self.settings.token_file is None and (held is None or held.newest() is None):
            if not self._wait_for_stack():
                return
            self.token_file.unlink(missing_ok=True)
            device = ExpectedDevice((TENANT, self.settings.device), self.settings.region, self.token_file)
            expect_devices(self.settings.folder, [device], "to try it", by="waybill-try")
        elif not self._wait_for_stack():
            return
        if self.settings.token_file is None:
            # until then the agent only misses its token
            self._ended.wait(_TOKEN_S)
        self._is_registered = True

    # The region.

    def _region(self) -> None:
        """A gateway and an alert process, unless they run."""
        if not self._wait_for_stack():
            return
        region, folder = self.settings.region, self.settings.folder
        self.say(ComponentSeen(Component.STACK, True))
        self._subscribe_alerts()
        # alerts are read from now on: none may be raised before
        self._listens.wait(_LISTENS_S)
        self.say(ComponentSeen(Component.GATEWAY, False))
        gateway = self._daemon("gateway", folder / f"gateway-{region}.toml", ["run"], "health")
        self._wait_healthy(gateway, Component.GATEWAY)
        self._run(self._poll_gateway)

    def _subscribe_alerts(self) -> None:
        """Makes the alert process's subscription before the first batch: a new one begins at the end of the topic."""
        region = self.settings.region
        stated = tomllib.loads((self.settings.folder / f"alerts-{region}.toml").read_text())["pulsar"]
        access = stack_access(self.settings.folder, f"alerts-{region}")
        client = open_pulsar_client(stated["service_url"], access, timeout_s=30)
        try:
            topic = f"persistent://{TENANT}/telemetry-{region}/batches"
            for partition in client.get_topic_partitions(topic):
                client.subscribe(partition, "alerts", pulsar.ConsumerType.Exclusive).close()
        except pulsar.ConsumerBusy:
            # an alert process has it
            return
        finally:
            close_quietly(client)

    def _alert_process(self) -> None:
        # it reads the fences when it starts, and then the batches: so the first entry is an alert
        self.say(ComponentSeen(Component.ALERTS, False))
        file = self.settings.folder / f"alerts-{self.settings.region}.toml"
        self._wait_healthy(self._daemon("alerts", file, ["alerts", "run"], "health"), Component.ALERTS)

    def _daemon(self, name: str, config: Path, command: list[str], path: str) -> Server | None:
        """A daemon of the gateway package with these settings; None if one answers already."""
        port = int(tomllib.loads(config.read_text())["status"]["port"])
        is_healthy = http_health(f"http://{HOST}:{port}/{path}")
        if is_healthy():
            return None
        arguments = [*command, "--config", str(config)]
        return self._add(DaemonProcess.python(name, "gateway", arguments, self.folder / name, healthy_when=is_healthy))

    def _wait_healthy(self, server: Server | None, component: Component) -> None:
        if server is not None and not self._until(server.check, _DAEMON_S, f"{component} is not ready"):
            return
        self.say(ComponentSeen(component, True))

    def _poll_gateway(self) -> None:
        config = self.settings.folder / f"gateway-{self.settings.region}.toml"
        endpoint = StatusEndpoint(port=tomllib.loads(config.read_text())["status"]["port"])
        while not self._ended.wait(1.0):
            try:
                status = read_answer(endpoint, "status", GatewayStatus, "no gateway")
                healthy, why = status.healthy, status.last_error
            except NoAnswer as error:
                healthy, why = False, str(error)
            command = f"fleet-gateway status --config {config}"
            self.say(ComponentSeen(Component.GATEWAY, healthy, "" if healthy else why, "" if healthy else command))

    # Reference data and the centre.

    def _reference(self) -> None:
        """Publishes contracts, and the fence as soon as its place is known and again when it moves."""
        reference, since = self.folder / "reference", datetime.now(UTC)
        month = since.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
        contracts = contracts_text(self.settings.account, (TENANT, self.settings.device), self.settings.region, month)
        if not self._wait_for_stack():
            return
        settings = load(CloudSettings, self.settings.folder / "publisher.toml")
        signing, is_first = Signing(stack_operator(self.settings.folder).key, "waybill try"), True
        while not self._ended.is_set():
            try:
                place = self._places.get(timeout=_POLL_S)
            except queue.Empty:
                continue
            reference.mkdir(exist_ok=True)
            (reference / "contracts.toml").write_text(contracts)
            # earlier trials had fences here, too
            fence = fence_text(self.settings.account, place, FENCE_M, priority=int(time.time()) // 60)
            (reference / "fences.geojson").write_text(fence)
            publish(settings.service_urls, read_reference([reference]), settings.access, signing=signing)
            if is_first:
                self._alert_process()
            is_first = False

    def _alerts(self) -> None:
        """Says the alerts of the device, until the trial ends."""
        if not self._wait_for_stack():
            return
        settings = load(NotifierSettings, self.settings.folder / "notifier.toml")
        source, region = settings.pulsar, self.settings.region
        client = open_pulsar_client(source.service_url, source.access, timeout_s=30)
        topic = AlertTopic(settings.alerts_topic(TENANT, region), TENANT, is_verdicts=False)
        wanted = TailFilter(devices=(self.settings.device,), kinds=("enter",))
        try:
            raised = tail(client, [topic], wanted, lambda: not self._ended.is_set())
            self._listens.set()
            for one in raised:
                if isinstance(one.said, Alert) and one.place == self.settings.account:
                    self.say(AlertRaised(one.said.kind, (one.said.raised_ms - one.said.received_ms) / 1000))
        except AlertsUnread as error:
            raise TrialError(str(error)) from error
        finally:
            close_quietly(client)

    def _centre(self) -> None:
        self.say(ComponentSeen(Component.CENTRE, False))
        events = self.folder / "centre.jsonl"
        events.unlink(missing_ok=True)
        events.touch(mode=0o600)
        words = [str(self.settings.folder), TENANT, self.settings.device, self.settings.account, str(events)]
        centre = self._add(DaemonProcess.python(_CENTRE, "deploy.trial.centre", words, self.folder / "centre"))
        with events.open(encoding="utf-8") as lines:
            while not self._ended.wait(_POLL_S):
                for line in lines:
                    self.say(_of_centre(json.loads(line)))
                if centre.pid is None and not self._ended.is_set():
                    raise TrialError(f"the jobs have ended; the log is {centre.log}", f"tail {centre.log}")


_TOKEN_S: Final = 12.0
"""An agent that found no token tries again within this time."""
_COMPONENT_OF: Final = {
    "_centre": Component.CENTRE,
    "_stack": Component.STACK,
    "_region": Component.GATEWAY,
    "_register": Component.AGENT,
    "_reference": Component.ALERTS,
    "_alerts": Component.ALERTS,
    "_poll_agent": Component.AGENT,
    "_poll_gateway": Component.GATEWAY,
}


def _of_centre(event: dict[str, Any]) -> Observation:
    match event["event"]:
        case "records":
            return RecordsStored(event["count"], event["newest"])
        case "entered":
            return FenceEntered(event["place"], event["entries"])
        case "draft":
            return LineDrafted(tuple(event["lines"]), event["net"], event["agrees"])
        case "unrated":
            return ComponentSeen(Component.BILL, False, event["why"])
        case "failed":
            return ComponentSeen(Component.CENTRE, False, event["why"])
        case name:
            return ComponentSeen(Component.CENTRE, name == "ready")


def _wait_for_end(server: Server) -> None:
    ends_s = time.monotonic() + _ORDERLY_S
    while server.pid is not None and time.monotonic() < ends_s:
        time.sleep(_POLL_S)


def new_device_name() -> str:
    return f"try-{secrets.token_hex(2)}"


def check_port_free(port: int) -> None:
    """Raises TrialError that names the process which has the port."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            owner = _listener(port)
            held = f" by {owner}" if owner else ""
            command = "waybill try   # without --port it takes a free one"
            raise TrialError(f"port {port} is taken{held}: {error.strerror}", command) from error


def _listener(port: int) -> str:
    with suppress(psutil.Error, OSError):
        for one in psutil.net_connections("tcp"):
            if one.status == psutil.CONN_LISTEN and one.laddr and one.laddr.port == port and one.pid:
                return f"{psutil.Process(one.pid).name()} (process {one.pid})"
    return ""
