"""The local stack on real servers: started, found, interrupted, restarted, and clear about what failed."""

from __future__ import annotations

import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pulsar
import pytest
from paho.mqtt import client as mqtt
from paho.mqtt.enums import CallbackAPIVersion

from cloud_jobs.config import CloudSettings
from deploy.local import (
    DaemonProcess,
    LocalAuthority,
    LocalStack,
    MosquittoBroker,
    MosquittoSecurity,
    PulsarCluster,
    ServerFailed,
    StackInUse,
    StackNotRunning,
    StackState,
)
from tests.pulsar_clients import open_client
from tests.waiting import PATIENCE, wait_until
from waybill.settings import load

pytestmark = pytest.mark.system
own_servers = pytest.mark.own_servers

GB = 1024**3


def processes_of(folder: Path) -> list[str]:
    """Command lines of all living processes that name the folder."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            words = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if str(folder) in words:
            found.append(words)
    return found


class Up:
    """`waybill up` as a person runs it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = folder.with_suffix(".log")
        with self.log.open("wb") as log:
            command = [sys.executable, "-m", "waybill", "up", "--folder", str(folder)]
            self.process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)

    def phase(self) -> str:
        try:
            return StackState.load(self.folder).phase
        except StackNotRunning:
            return ""

    def has_servers(self) -> bool:
        try:
            return any(server.pid for server in StackState.load(self.folder).servers)
        except StackNotRunning:
            return False


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Up]:
    one = Up(tmp_path / "a stack")  # a space in its name, as people have them
    yield one
    if one.process.poll() is None:
        one.process.kill()
        one.process.wait(10 * PATIENCE)


@own_servers
@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.nightly), signal.SIGKILL]
)
def test_an_interrupted_start_leaves_no_process_behind(up: Up, number: signal.Signals) -> None:
    wait_until(up.has_servers, 60, said=up.log.read_text)
    assert any("PulsarStandaloneStarter" in words for words in processes_of(up.folder))
    up.process.send_signal(number)
    status = up.process.wait(60 * PATIENCE)
    assert status == (-signal.SIGKILL if number is signal.SIGKILL else 0), up.log.read_text()
    wait_until(lambda: not processes_of(up.folder), said=lambda: processes_of(up.folder))


@own_servers
@pytest.mark.nightly
def test_a_killed_stack_leaves_no_process_behind_and_starts_again_in_its_folder(up: Up) -> None:
    wait_until(lambda: up.phase() == "ready" or up.process.poll() is not None, 300, said=up.log.read_text)
    assert up.phase() == "ready", up.log.read_text()
    before = StackState.load(up.folder)
    up.process.kill()
    up.process.wait(10 * PATIENCE)
    wait_until(lambda: not processes_of(up.folder), said=lambda: processes_of(up.folder))

    def loses_a_server() -> None:
        with LocalStack(up.folder) as again:
            assert again.pulsar["hq"].service_url == before.address("pulsar-hq", "service_url")
            lost = again.brokers["eu"].pid
            assert lost is not None
            os.kill(lost, signal.SIGKILL)
            wait_until(lambda: again.brokers["eu"].pid is None, 30)
            again.check()

    with pytest.raises(ServerFailed):
        loses_a_server()
    # Who left it running finds out afterwards what ended it.
    with pytest.raises(StackNotRunning, match="the last one failed: server mosquitto-eu was ended by SIGKILL"):
        StackState.load(up.folder)


@pytest.mark.nightly
@own_servers
def test_a_stack_runs_in_the_background_until_it_is_stopped(tmp_path: Path) -> None:
    def waybill(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "waybill", *words, "--folder", str(tmp_path / "stack")]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=700)

    started = waybill("up", "--detach", "--lake", "s3")
    assert started.returncode == 0, started.stderr
    try:
        status = waybill("status", "--json")
        assert status.returncode == 0, status.stderr
        shown = json.loads(status.stdout)
        assert {server["name"] for server in shown["servers"]} >= {
            "pulsar-eu",
            "pulsar-us",
            "pulsar-hq",
            "mosquitto-eu",
            "s3",
        }
        where = next(server["addresses"] for server in shown["servers"] if server["name"] == "s3")
        assert where["bucket"] == "s3://lake"
        assert where["endpoint"].startswith("http://127.0.0.1:")
        jobs = load(CloudSettings, tmp_path / "stack/cloud.toml")
        assert (jobs.lake, jobs.object_store.endpoint) == ("s3://lake/lake", where["endpoint"])
        assert 0 < sum(shown["memory_bytes"].values()) < 3.5 * GB
        hq = next(server["process"]["pid"] for server in shown["servers"] if server["name"] == "pulsar-hq")
        os.kill(hq, signal.SIGSTOP)
        try:
            frozen = waybill("status")
        finally:
            os.kill(hq, signal.SIGCONT)
        assert frozen.returncode == 1
        assert "not answering" in next(line for line in frozen.stdout.splitlines() if line.startswith("pulsar-hq"))
        assert "stack: not ready; " in frozen.stdout
        second = waybill("up")
        assert second.returncode == 1
        assert "already runs" in second.stderr
    finally:
        stopped = waybill("down")
    assert stopped.returncode == 0, stopped.stderr
    wait_until(lambda: not processes_of(tmp_path / "stack"), 10)
    assert waybill("status").returncode == 3


def test_a_folder_that_is_in_use_is_refused_and_left_running(stack: LocalStack) -> None:
    with pytest.raises(StackInUse), LocalStack(stack.folder):
        pass
    stack.check()
    assert StackState.load(stack.folder).phase == "ready"


@own_servers
def test_a_cluster_that_cannot_start_is_named_with_its_last_log_lines(tmp_path: Path) -> None:
    cluster = PulsarCluster("hq", tmp_path)
    with socket.create_server(("127.0.0.1", cluster.broker_port)):
        cluster.start()
        with pytest.raises(ServerFailed) as caught:
            cluster.wait(120)
    cluster.stop()
    assert caught.value.server == "pulsar-hq"
    assert any("Address already in use" in line for line in cluster.log.read_text().splitlines())
    assert caught.value.last_lines


@pytest.mark.nightly
@own_servers
def test_a_broker_that_cannot_start_is_named_with_its_last_log_lines(tmp_path: Path) -> None:
    broker = MosquittoBroker("eu", tmp_path)
    with socket.create_server(("127.0.0.1", broker.port)):
        broker.start()
        with pytest.raises(ServerFailed, match="server mosquitto-eu ended with exit status 1") as caught:
            broker.wait(20 * PATIENCE)
    broker.stop()
    assert any("Address already in use" in line for line in caught.value.last_lines)


@pytest.mark.nightly
@own_servers
def test_a_killed_cluster_has_its_messages_when_it_is_started_again(tmp_path: Path) -> None:
    cluster = PulsarCluster("hq", tmp_path)
    cluster.start()
    try:
        cluster.wait()
        client = open_client(cluster.service_url, cluster.access)
        producer = client.create_producer("persistent://public/default/kept")
        for number in range(100):
            producer.send(str(number).encode())
        client.close()
        cluster.kill()
        cluster.start()
        cluster.wait()
        client = open_client(cluster.service_url, cluster.access)
        reader = client.create_reader("persistent://public/default/kept", pulsar.MessageId.earliest)
        assert [int(reader.read_next(10_000).data()) for _ in range(100)] == list(range(100))
        client.close()
    except pulsar.PulsarException as error:  # what the broker did meanwhile: its folder is gone after the run
        error.add_note("\n".join(cluster.last_lines()))
        raise
    finally:
        cluster.stop()


def test_a_regional_broker_speaks_mqtt_5_over_its_link(stack: LocalStack) -> None:
    got: list[bytes] = []
    client = mqtt.Client(CallbackAPIVersion.VERSION2, protocol=mqtt.MQTTv5)
    files = stack.client_files("test-stack/device", "eu")
    assert files is not None
    client.tls_set(str(files.ca), str(files.certificate), str(files.key))
    client.on_message = lambda _client, _data, message: got.append(bytes(message.payload))
    client.on_connect = lambda one, *_: one.subscribe("waybill/1/test-stack/device/ack", qos=1)
    gateway = mqtt.Client(CallbackAPIVersion.VERSION2, protocol=mqtt.MQTTv5)
    own = stack.client_files("gateway@eu-2", "eu")
    assert own is not None
    gateway.tls_set(str(own.ca), str(own.certificate), str(own.key))
    subscribed = threading.Event()
    client.on_subscribe = lambda *_: subscribed.set()
    gateway.connect("127.0.0.1", stack.links["eu"].port)
    gateway.loop_start()
    client.connect("127.0.0.1", stack.links["eu"].port)
    client.loop_start()
    try:
        assert subscribed.wait(10 * PATIENCE)
        gateway.publish("waybill/1/test-stack/device/ack", b"hello", qos=1)
        wait_until(lambda: got == [b"hello"], 10)
    finally:
        for one in (client, gateway):
            one.disconnect()
            one.loop_stop()


def answers_client(port: int, context: ssl.SSLContext) -> bool:
    """Whether the broker answers an MQTT 3.1.1 CONNECT over TLS with a CONNACK of code 0."""
    try:
        with (
            socket.create_connection(("127.0.0.1", port), timeout=5) as plain,
            context.wrap_socket(plain, server_hostname="127.0.0.1") as secure,
        ):
            secure.sendall(b"\x10\x11\x00\x04MQTT\x04\x02\x00\x0a\x00\x05probe")
            return secure.recv(4) == b"\x20\x02\x00\x00"
    except OSError:
        return False


@pytest.mark.nightly
@own_servers
def test_a_broker_with_certificates_takes_only_clients_that_have_one(tmp_path: Path) -> None:
    authority = LocalAuthority(tmp_path / "certificates")
    security = MosquittoSecurity(tls=authority.server("broker@eu"))
    broker = MosquittoBroker("eu", tmp_path / "broker", security=security)
    broker.start()
    try:
        broker.wait()
        known = ssl.create_default_context(cafile=authority.file)
        stranger = ssl.create_default_context(cafile=authority.file)
        device = authority.client("fleet/eu-0001")
        known.load_cert_chain(device.certificate, device.key)
        assert answers_client(broker.port, known)
        assert not answers_client(broker.port, stranger)
    finally:
        broker.stop()


def test_a_daemon_of_ours_is_a_server_of_the_stack(stack: LocalStack, tmp_path: Path) -> None:
    daemon = DaemonProcess("sample", [sys.executable, "-c", "import time; time.sleep(60)"], tmp_path)
    stack.add(daemon)
    try:
        assert "sample" in {server.name for server in StackState.load(stack.folder).servers}
        with pytest.raises(ValueError, match="already has a server named sample"):
            stack.add(DaemonProcess("sample", ["true"], tmp_path))
    finally:
        stack.remove("sample")
    assert "sample" not in {server.name for server in StackState.load(stack.folder).servers}
    assert daemon.pid is None


def test_three_clusters_and_all_the_rest_stay_below_their_memory(stack: LocalStack) -> None:
    assert stack.memory_bytes < 3.5 * GB
