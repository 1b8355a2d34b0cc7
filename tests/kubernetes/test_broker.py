"""A region's broker on a real cluster, with Pulsar: devices send, are revoked, and go on after a kill -9."""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kubernetes.real_cluster import (
    LAYOUT,
    NAMESPACE,
    helm,
    kill_processes,
    kubectl,
    pods,
    running_cluster,
    seconds_until,
)

pytestmark = pytest.mark.nightly

CHART = "deploy/helm/waybill-region"
IMAGE = "localhost/waybill-gateway:0.1.0"
BROKER, PULSAR = f"eu-broker.{NAMESPACE}.svc", f"pulsar-eu.{NAMESPACE}.svc.cluster.local"
VALUES: dict[str, Any] = {
    "region": "eu",
    "pulsar": {"serviceUrl": f"pulsar+ssl://{PULSAR}:6651", "adminUrl": f"https://{PULSAR}:8443"},
    "tenants": {"fleet": {}},
    "broker": {"outside": {"type": "NodePort"}},
    "alerts": {"enabled": True},
}
OPERATOR = f"""
service_url = "pulsar+ssl://{PULSAR}:6651"
admin_url = "https://{PULSAR}:8443"
regions = ["eu"]
tenants = ["fleet"]
operators = "/office/operators.toml"
key = "/office/anna.key"
[access]
token_file = "/office/fleet-operator-fleet.token"
tls_ca = "/office/root.pem"
"""
DEVICES = ("bus-1", "bus-2", "bus-3")
RESTRICTED = {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}
POD_SECURITY = {
    "runAsNonRoot": True,
    "runAsUser": 10001,
    "fsGroup": 10001,
    "seccompProfile": {"type": "RuntimeDefault"},
}
LIST = "/var/lib/fleet-broker/broker.crl"


@pytest.fixture(scope="module")
def office(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Pulsar, the region with all of its Secrets, and the pod `desk`, from which operators and devices act."""
    folder = tmp_path_factory.mktemp("office")
    with running_cluster("gateway", "pulsar"):
        command = [sys.executable, "-m", "deploy.kubernetes.pulsar", NAMESPACE, str(folder), "--without", "us"]
        subprocess.run(command, timeout=400, check=True)
        make_secrets(folder)
        helm("install", "eu", CHART, values=VALUES)
        names = ["office", *DEVICES]
        container = {
            "name": "desk",
            "image": IMAGE,
            "command": ["/opt/waybill/bin/python", "-c", "import time; time.sleep(100_000)"],
            "securityContext": RESTRICTED,
            "volumeMounts": [{"name": name, "mountPath": f"/{name}"} for name in names],
        }
        spec = {
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": 1,
            "securityContext": POD_SECURITY,
            "containers": [container],
            "volumes": [{"name": name, "secret": {"secretName": name}} for name in names],
        }
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "desk"}, "spec": spec}
        kubectl("apply", "-f", "-", given=pod)
        kubectl("wait", "--for=condition=Ready", "pod/desk", "pod/eu-broker-0", "--timeout=120s")
        kubectl("rollout", "status", "statefulset/eu-gateway", "--timeout=120s")
        for device in DEVICES:
            desk("device", "expect", f"fleet/{device}", "--region", "eu", "--by-hand", "-m", "new bus")
        yield folder


def make_secrets(folder: Path) -> None:
    """As docs/kubernetes.md says."""

    def waybill(*words: str) -> None:
        command = [sys.executable, "-m", "waybill", *words]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=False)
        assert not done.returncode, done.stdout + done.stderr

    def issue(name: str, out: str, *more: str) -> None:
        waybill("pki", "issue", name, "--region", "eu", "--out", f"tls/{out}", *more)

    waybill("pki", "init", "--name", "Acme root")
    waybill("pki", "region", "eu", "--servers", BROKER)
    issue("broker@eu", "waybill-broker", "--at", BROKER)
    issue("access@eu", "waybill-access-tls")
    for number in (0, 1):
        issue(f"gateway@eu-{number}", f"waybill-gateway-{number}")
    for device in DEVICES:
        issue(f"fleet/{device}", device)
    waybill("push", "key", "anna", "--tenant", "fleet", "--kind", "device")
    waybill("push", "key", "access@eu", "--tenant", "*", "--kind", "enrolment")
    (folder / "operator.toml").write_text(OPERATOR, encoding="ascii")
    tokens, pulsar_ca, authority = "tokens/tokens", "pki/pulsar-authority/root.pem", "pki/regions/eu"
    secrets = {
        "waybill-region": (f"pulsar-ca.pem={pulsar_ca}", f"gateway.token={tokens}/gateway-eu.token", "operators.toml"),
        "waybill-access": ("access.key=access@eu.key", f"access.token={tokens}/access-eu.token"),
        "waybill-alerts": (f"alerts.token={tokens}/alerts-eu.token",),
        "waybill-authority": (authority, f"{authority}/issued"),
        "office": ("operator.toml", "operators.toml", "anna.key", pulsar_ca, f"{tokens}/fleet-operator-fleet.token"),
    } | {path.name: (f"tls/{path.name}",) for path in (folder / "tls").iterdir() if "pulsar" not in path.name}
    for name, files in secrets.items():
        given = [(key, path) for key, _, path in (f"={one}".rpartition("=") for one in files)]
        words = [f"--from-file={key.strip('=')}{'=' if key else ''}{folder / path}" for key, path in given]
        kubectl("create", "secret", "generic", name, *words)


def desk(*words: str) -> str:
    return kubectl("exec", "desk", "--", "waybill", *words, "-c", "/office/operator.toml")


class Device:
    """A device in the pod `desk`; `log` gets what it says."""

    def __init__(self, name: str, log: Path) -> None:
        text = Path(__file__).with_name("device_in_pod.py").read_text(encoding="utf-8")
        self._log = log
        client = [LAYOUT.program("kubectl"), "--kubeconfig", f"{LAYOUT.keys}/admin.conf", "-n", NAMESPACE]
        words = ["/opt/waybill/bin/python", "-c", text, BROKER, "8883", f"/{name}", f"fleet/{name}"]
        with log.open("wb") as output:
            command = [*client, "exec", "-i", "desk", "--", *words]
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=output)

    @property
    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._log.read_text(encoding="ascii").split("\n")[:-1]]

    def read(self) -> dict[str, Any]:
        return (self.lines or [{"recorded": 0, "acknowledged": 0, "waits_from": 1, "connected": False}])[-1]

    @property
    def acknowledged(self) -> int:
        return int(self.read()["acknowledged"])

    def end(self) -> None:
        self._process.communicate(timeout=20)


@pytest.fixture
def bus(tmp_path: Path) -> Iterator[Callable[[str], Device]]:
    """Starts a device; it is acknowledged already."""
    started: list[Device] = []

    def start(name: str) -> Device:
        started.append(Device(name, tmp_path / name))
        seconds_until(lambda: started[-1].acknowledged > 0, 30)
        return started[-1]

    yield start
    for one in started:
        one.end()


def restarts() -> list[int]:
    """Of the containers of the broker's pod."""
    status = pods("app.kubernetes.io/component=broker")[0]["status"]
    return [one["restartCount"] for one in [*status["initContainerStatuses"], *status["containerStatuses"]]]


@pytest.mark.usefixtures("office")
def test_a_revoked_device_loses_its_session_and_another_goes_on(bus: Callable[[str], Device]) -> None:
    revoked, other = bus("bus-1"), bus("bus-2")
    assert "revoked" in desk("device", "revoke", "fleet/bus-1", "-m", "stolen")
    seconds_until(lambda: not revoked.read()["connected"], 10)
    before = revoked.acknowledged, other.acknowledged
    seconds_until(lambda: other.acknowledged > before[1] + 100, 20)
    assert not any(line["connected"] for line in revoked.lines[-10:])
    assert revoked.acknowledged == before[0]
    assert restarts() == [0, 0, 0]


@pytest.mark.usefixtures("office")
def test_what_a_device_records_while_the_brokers_pod_is_killed_is_acknowledged(bus: Callable[[str], Device]) -> None:
    device, before = bus("bus-2"), restarts()
    kill_processes(pods("app.kubernetes.io/component=broker")[0])
    killed_s = time.monotonic()
    seconds_until(lambda: not device.read()["connected"], 20)
    acknowledged = device.acknowledged
    seconds_until(lambda: device.acknowledged > acknowledged + 200, 60)
    print(f"acknowledged again after {time.monotonic() - killed_s:.1f} s")  # noqa: T201
    kubectl("wait", "--for=condition=Ready", "pod/eu-broker-0", "--timeout=60s")
    assert restarts() == [count + 1 for count in before]
    recorded = device.read()["recorded"]
    seconds_until(lambda: device.read()["waits_from"] > recorded, 30)
    # What the registry says is in force again: who was revoked stays out.
    seconds_until(lambda: '"healthy": true' in access_status(), 60)
    assert '"devices_closed": 1' in access_status()


@pytest.mark.usefixtures("office")
def test_the_brokers_container_has_neither_the_authoritys_key_nor_a_view_of_its_process() -> None:
    look = (
        "import pathlib; print(*pathlib.Path('/etc/waybill').glob('*')); print(*pathlib.Path('/proc').glob('[0-9]*'))"
    )
    seen = kubectl("exec", "eu-broker-0", "-c", "broker", "--", "/opt/waybill/bin/python", "-c", look).splitlines()
    assert set(seen[0].split()) == {"/etc/waybill/settings", "/etc/waybill/tls"}
    # Mosquitto, its log, and this look
    assert len(seen[1].split()) == 3


def test_a_renewed_certificate_is_read_without_a_restart(office: Path, bus: Callable[[str], Device]) -> None:
    device, restarted = bus("bus-2"), restarts()
    before = served_certificate()
    command = [sys.executable, "-m", "waybill", "pki", "issue", "broker@eu", "--region", "eu", "--at", BROKER]
    subprocess.run([*command, "--out", "tls/renewed"], cwd=office, timeout=60, check=True)
    given = [f"--from-file={office}/tls/renewed", "--dry-run=client", "-o", "json"]
    made = kubectl("create", "secret", "generic", "waybill-broker", *given)
    kubectl("apply", "-f", "-", given=json.loads(made))
    seconds_until(lambda: served_certificate() != before, 180)
    assert device.read()["connected"]
    assert restarts() == restarted


@pytest.mark.usefixtures("office")
def test_alert_processes_of_one_name_run_on_both_nodes_and_a_killed_one_comes_back() -> None:
    labels = "app.kubernetes.io/component=alerts"
    kubectl("rollout", "status", "deployment/eu-alerts", "--timeout=120s")
    before = pods(labels)
    assert {pod["spec"]["nodeName"] for pod in before} == {"n1", "n2"}
    kill_processes(before[0])

    def are_back() -> bool:
        containers = [pod["status"]["containerStatuses"][0] for pod in pods(labels)]
        return sorted((one["ready"], one["restartCount"]) for one in containers) == [(True, 0), (True, 1)]

    seconds_until(are_back, 60)
    # both own partitions again, which a standby does not
    look = "from urllib.request import urlopen; print(urlopen('http://127.0.0.1:9467/status').read().decode())"
    command = ["--", "/opt/waybill/bin/python", "-c", look]
    names = [pod["metadata"]["name"] for pod in pods(labels)]
    seconds_until(lambda: all(json.loads(kubectl("exec", name, *command))["partitions_held"] for name in names), 60)


@pytest.mark.usefixtures("office")
def test_an_eviction_that_leaves_no_gateway_is_refused() -> None:
    kubectl("rollout", "status", "statefulset/eu-gateway", "--timeout=120s")
    evict("eu-gateway-0")
    with pytest.raises(AssertionError, match="would violate the pod's disruption budget"):
        evict("eu-gateway-1")
    kubectl("rollout", "status", "statefulset/eu-gateway", "--timeout=120s")


def evict(pod: str) -> None:
    """As a drain does."""
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod, "namespace": NAMESPACE}}
    kubectl("create", "--raw", f"/api/v1/namespaces/{NAMESPACE}/pods/{pod}/eviction", "-f", "-", given=eviction)


def served_certificate() -> str:
    text = (
        "import socket, ssl; c = ssl.create_default_context(cafile='/bus-2/ca.pem')\n"
        f"with c.wrap_socket(socket.create_connection(('{BROKER}', 8883)), server_hostname='{BROKER}') as s:\n"
        " print(s.getpeercert()['serialNumber'])"
    )
    return kubectl("exec", "desk", "--", "/opt/waybill/bin/python", "-c", text)


def access_status() -> str:
    settings = "/etc/waybill/settings/access.toml"
    command = [LAYOUT.program("kubectl"), "--kubeconfig", f"{LAYOUT.keys}/admin.conf", "-n", NAMESPACE, "exec"]
    command += ["eu-broker-0", "-c", "access", "--", "fleet-gateway", "access", "status", "--json"]
    done = subprocess.run([*command, "--config", settings], capture_output=True, text=True, timeout=60, check=False)
    return done.stdout
