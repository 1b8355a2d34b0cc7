"""One trial: the servers of one device, its registration, fence and contracts, and what is observed of its records."""

from __future__ import annotations

import queue
import threading
import time
import tomllib
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pulsar
from paho.mqtt import client as mqtt
from paho.mqtt.enums import CallbackAPIVersion

from cloud_jobs.errors import CloudError
from cloud_jobs.reference.files import Signing, publish, read_reference
from deploy.demo.plan import DemoError
from deploy.demo.processes import ExpectedDevice, expect_devices
from deploy.local import (
    DaemonProcess,
    LocalStackError,
    MosquittoBroker,
    Server,
    StackState,
    http_health,
    stack_access,
    stack_operator,
    wait_all,
)
from deploy.local.stack_settings import agent_text
from deploy.trial.errors import TrialError
from deploy.trial.files import contracts_text, fence_text
from deploy.trial.ladder import AgentSeen, AlertRaised, Component, ComponentSeen
from deploy.trial.phone import PhoneListener
from deploy.trial.servers import HOST, POLL_S, TENANT, Place, TrialServers, TrialSettings
from deploy.trial.sources import Fix, Message, MessageReader, apart_m
from edge_agent.config import AgentSettings
from edge_agent.enrolment.certificates import certificate_folder
from edge_agent.mapping.parser import compile_mappings
from gateway.errors import AlertsUnread
from gateway.webhooks.config import NotifierSettings
from gateway.webhooks.intake import AlertTopic
from gateway.webhooks.tail import TailFilter, tail
from geo.alerts import Alert
from waybill.daemon.stack_daemons import read_daemons
from waybill.daemon.status_reader import StatusUnavailable, fetch_status
from waybill.identity.errors import IdentityError
from waybill.pulsar.pulsar_client import PulsarAccessError, close_quietly, open_pulsar_client
from waybill.settings import SettingsError, load

_SLOW_S: Final = 2.0
_LISTENS_S: Final = 30.0
_DAEMON_S: Final = 120.0
_MAX_MESSAGES: Final = 2_000
FENCE_M: Final = 300.0
_ELSEWHERE_M: Final = 2_000.0
"""A first fix so far from the expected place is of a device elsewhere, which gets the fence."""
_FAILURES: Final = (
    CloudError, DemoError, IdentityError, LocalStackError, SettingsError, TrialError, pulsar.PulsarException,
    PulsarAccessError, OSError,
)  # fmt: skip


@dataclass(slots=True)
class Trial:
    """One device on the stack of `servers`, which were started."""

    servers: TrialServers
    is_watched: bool = True
    """Whether the agent's status is asked often: until the region has acknowledged."""
    _listens: threading.Event = field(default_factory=threading.Event)
    _place: Place | None = None
    _published: bool = False
    _places: queue.Queue[Place] = field(default_factory=lambda: queue.Queue(16))
    _is_registered: bool = False

    # Names and files.

    @property
    def settings(self) -> TrialSettings:
        return self.servers.settings

    @property
    def folder(self) -> Path:
        return self.servers.folder

    @property
    def config(self) -> Path:
        return self.folder / "agent.toml"

    @property
    def token_file(self) -> Path:
        return self.settings.token_file or self.folder / "token"

    @property
    def broker_port(self) -> int:
        return self.settings.port or self.servers.book.port("broker")

    def start(self) -> None:
        """Returns when the vehicle's broker and the agent are ready; the rest starts in threads.

        Raises TrialError, LocalStackError, SettingsError, OSError.
        """
        if self.settings.place is not None:
            self._place = self.settings.place
            self._places.put_nowait(self.settings.place)
        self._write_settings(self.servers.stack_addresses())
        self._run(self._region, Component.GATEWAY)
        self._run(self._alerts, Component.ALERTS)
        self._run(self._register, Component.AGENT)
        self._run(self._reference, Component.ALERTS)
        self._start_vehicle()
        self._run(self._poll_agent, Component.AGENT)

    def _run(self, work: Callable[[], None], component: Component) -> None:
        self.servers.run(work, component, _FAILURES)

    # The vehicle: broker, agent, and what is heard on the broker.

    def _write_settings(self, state: StackState) -> None:
        region = self.settings.region
        enrolment = state.address(f"enrolment-{region}", "url").rpartition(":")[2]
        preset = self.settings.preset
        head = f"# The agent of {TENANT}/{self.settings.device}, made by `waybill try`."
        text = agent_text(
            device=self.settings.device,
            tenant=TENANT,
            buffer=self.folder / "buffer",
            region=region,
            broker_port=self.broker_port,
            uplink_port=state.link(region).port,
            enrolment_port=int(enrolment),
            ca=self.settings.folder / "access" / "authority.pem",
            token_file=self.token_file,
            status_port=self.servers.book.port("agent"),
            mappings=f'[[mappings]]\nname = "sensors"\npreset = "{preset}"\n' if preset else "",
        )
        self.config.write_text(f"{head}\n{text}")
        self.config.chmod(0o640)

    def _start_vehicle(self) -> None:
        broker = MosquittoBroker(self.settings.device, self.folder / "broker", ports=self.servers.book)
        broker.port = self.broker_port
        self.servers.add(broker)
        agent = DaemonProcess.python(
            "edge-agent",
            "edge_agent",
            ["run", "--config", str(self.config)],
            self.folder / "agent",
            healthy_when=self._is_subscribed,
        )
        wait_all([broker])
        self.servers.add(agent)
        wait_all([agent], _DAEMON_S)

    def _is_subscribed(self) -> bool:
        """Whether the agent reads the vehicle's broker: what is published before would be lost."""
        try:
            return fetch_status(HOST, self.servers.book.port("agent"), "status", timeout_s=5)["local_broker"] is True
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
        wait_all([self.servers.add(listener.server(self.folder / "phone", self.broker_port))])

    def hear(self, reader: MessageReader) -> None:
        """Observes every message on the vehicle's broker; the first fix moves the fence. Raises OSError."""
        client = mqtt.Client(CallbackAPIVersion.VERSION2, client_id="waybill-try", protocol=mqtt.MQTTv5)

        def heard(_client: Any, _data: Any, message: mqtt.MQTTMessage) -> None:
            seen, fix = reader.heard(message.topic, bytes(message.payload), time.time_ns() // 1_000_000)
            self.servers.say(seen)
            if fix is not None:
                self._note_fix(fix)

        client.on_message = heard

        def connected(*_: object) -> None:
            client.subscribe("#", qos=0)

        hears = threading.Event()
        client.on_connect, client.on_subscribe = connected, lambda *_: hears.set()
        client.connect(HOST, self.broker_port)
        client.loop_start()
        self.servers.held.callback(client.loop_stop)
        self.servers.held.callback(client.disconnect)
        # what is sent before is not observed
        hears.wait(_LISTENS_S)

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
        while not self.servers.ended.wait(POLL_S if self.is_watched else _SLOW_S):
            try:
                status = fetch_status(HOST, self.servers.book.port("agent"), "status", timeout_s=5)
            except StatusUnavailable as error:
                self.servers.say(ComponentSeen(Component.AGENT, False, str(error)))
                continue
            self.servers.say(ComponentSeen(Component.AGENT, True))
            self.servers.say(
                AgentSeen(
                    head=status["head"],
                    acknowledged=status["acknowledged"],
                    uplink=str(status["uplink"]),
                    certificate_problem=str(status["certificate_problem"] or "") if self._is_registered else "",
                    uplink_problem=str(status["uplink_problem"] or ""),
                )
            )

    def _register(self) -> None:
        """Registers the device, unless it has a certificate or a token of its own."""
        held = certificate_folder(load(AgentSettings, self.config))
        if self.settings.token_file is None and (held is None or held.newest() is None):
            if not self.servers.wait_for_stack():
                return
            # without a certificate the device sends no batch, so nothing is missed
            self._subscribe_alerts()
            self._listens.wait(_LISTENS_S)
            self.token_file.unlink(missing_ok=True)
            device = ExpectedDevice((TENANT, self.settings.device), self.settings.region, self.token_file)
            expect_devices(self.settings.folder, [device], "to try it", by="waybill-try")
        elif not self.servers.wait_for_stack():
            return
        if self.settings.token_file is None:
            # until then the agent only misses its token
            self.servers.ended.wait(_TOKEN_S)
        self._is_registered = True

    # The region.

    def _region(self) -> None:
        """A gateway and an alert process, unless they run."""
        # while the stack makes topics and rights the gateway imports its code
        if not self.servers.wait_for_stack("connecting", "ready"):
            return
        self.servers.say(ComponentSeen(Component.GATEWAY, False))
        config = self.settings.folder / f"gateway-{self.settings.region}.toml"
        gateway = self._daemon("gateway", config, ["run"])
        if not self.servers.wait_for_stack():
            return
        self.servers.say(ComponentSeen(Component.STACK, True))
        self._wait_healthy(gateway, Component.GATEWAY)
        self._run(self._poll_gateway, Component.GATEWAY)

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
        self.servers.say(ComponentSeen(Component.ALERTS, False))
        file = self.settings.folder / f"alerts-{self.settings.region}.toml"
        self._wait_healthy(self._daemon("alerts", file, ["alerts", "run"]), Component.ALERTS)

    def _daemon(self, name: str, config: Path, command: list[str]) -> Server | None:
        """A daemon of the gateway package with these settings; None if one answers already."""
        port = int(tomllib.loads(config.read_text())["status"]["port"])
        is_healthy = http_health(f"http://{HOST}:{port}/health")
        if is_healthy():
            return None
        arguments = [*command, "--config", str(config)]
        daemon = DaemonProcess.python(name, "gateway", arguments, self.folder / name, healthy_when=is_healthy)
        return self.servers.add(daemon)

    def _wait_healthy(self, server: Server | None, component: Component) -> None:
        if server is not None:
            wait_all([server], _DAEMON_S)
        self.servers.say(ComponentSeen(component, True))

    def _poll_gateway(self) -> None:
        while not self.servers.ended.wait(1.0):
            for one in read_daemons(self.settings.folder):
                if one.program == "fleet-gateway run" and Path(one.config).stem == f"gateway-{self.settings.region}":
                    self.servers.say(ComponentSeen(Component.GATEWAY, not one.is_wrong, one.problem, one.next))

    # Reference data and the centre.

    def _reference(self) -> None:
        """Publishes contracts, and the fence as soon as its place is known and again when it moves."""
        reference, since = self.folder / "reference", datetime.now(UTC)
        month = since.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
        contracts = contracts_text(self.settings.account, (TENANT, self.settings.device), self.settings.region, month)
        if not self.servers.wait_for_stack():
            return
        state, access = self.servers.stack_addresses(), stack_access(self.settings.folder, "publisher")
        urls = [state.address("pulsar-hq", "service_url")]
        signing, is_first = Signing(stack_operator(self.settings.folder).key, "waybill try"), True
        while not self.servers.ended.is_set():
            try:
                place = self._places.get(timeout=POLL_S)
            except queue.Empty:
                continue
            reference.mkdir(exist_ok=True)
            (reference / "contracts.toml").write_text(contracts)
            # earlier trials had fences here, too
            fence = fence_text(self.settings.account, place, FENCE_M, priority=int(time.time()) // 60)
            (reference / "fences.geojson").write_text(fence)
            publish(urls, read_reference([reference]), access, signing=signing)
            if is_first:
                self._alert_process()
            is_first = False

    def _alerts(self) -> None:
        """Says the alerts of the device, until the trial ends."""
        if not self.servers.wait_for_stack():
            return
        settings = load(NotifierSettings, self.settings.folder / "notifier.toml")
        source, region = settings.pulsar, self.settings.region
        client = open_pulsar_client(source.service_url, source.access, timeout_s=30)
        topic = AlertTopic(settings.alerts_topic(TENANT, region), TENANT, is_verdicts=False)
        wanted = TailFilter(devices=(self.settings.device,), kinds=("enter",))
        try:
            raised = tail(client, [topic], wanted, lambda: not self.servers.ended.is_set())
            self._listens.set()
            for one in raised:
                if isinstance(one.said, Alert) and one.place == self.settings.account:
                    self.servers.say(AlertRaised(one.said.kind, (one.said.raised_ms - one.said.received_ms) / 1000))
        except AlertsUnread as error:
            raise TrialError(str(error)) from error
        finally:
            close_quietly(client)


_TOKEN_S: Final = 12.0
"""An agent that found no token tries again within this time."""
