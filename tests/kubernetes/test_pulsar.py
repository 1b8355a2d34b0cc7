"""Pulsar on a real cluster, with what the topology needs, and what the doctor says there."""

import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

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


@pytest.fixture(scope="module", autouse=True)
def pulsar(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A region's Pulsar and the centre's, with the topology of the local stack."""
    office = tmp_path_factory.mktemp("office")
    with running_cluster("gateway", "pulsar"):
        command = [sys.executable, "-m", "deploy.kubernetes.pulsar", NAMESPACE, str(office), "--without", "us"]
        subprocess.run(command, timeout=400, check=True)
        yield office
        helm("uninstall", "pulsar", "--wait")


def topology_command(name: str, *words: str) -> str:
    """What `waybill topology` prints in a pod; it must end with 0."""
    job = json.loads(kubectl("get", "job", "pulsar-topology", "-o", "json"))
    template = job["spec"]["template"] | {"metadata": {}}
    container = template["spec"]["containers"][0]
    container["args"] = ["topology", *words, *container["args"][2:]]
    spec = {"backoffLimit": 0, "template": template}
    kubectl(
        "apply", "-f", "-", given={"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": spec}
    )
    kubectl("wait", f"job/{name}", "--for=condition=complete", "--timeout=150s")
    return kubectl("logs", f"job/{name}")


def doctor() -> tuple[int, set[str]]:
    """Its exit status, and what is wrong without what this cluster's one storage class is warned of."""
    command = [sys.executable, "-m", "waybill", "kubernetes", "doctor", "--namespace", NAMESPACE, "--json"]
    program = ["--kubectl", LAYOUT.program("kubectl")]
    done = subprocess.run(
        [*command, *program],
        env=os.environ | {"KUBECONFIG": f"{LAYOUT.keys}/admin.conf"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    found = json.loads(done.stdout)["findings"]
    wrong = {f"{one['check']} {one['subject']}: {one['problem']}" for one in found if one["check"] != "storage"}
    return done.returncode, wrong


def test_clusters_replicate_and_keep_the_topology_through_a_killed_server() -> None:
    assert "16 of 16 links good; 2 of 2 clusters answered" in topology_command("verify", "verify")
    (server,) = pods("app=pulsar-eu")
    kill_processes(server)
    seconds_until(lambda: "True" not in ready(), 30)
    seconds_until(lambda: "True" in ready(), 150)
    assert topology_command("plan", "plan") == "nothing to change\n"


def ready() -> str:
    path = "jsonpath={.status.conditions[?(@.type=='Ready')].status}"
    return kubectl("get", "pod", "pulsar-eu-0", "-o", path)


def test_addresses_are_read_from_services(pulsar: Path) -> None:
    text = (pulsar / "topology.toml").read_text(encoding="utf-8")
    without = pulsar / "without.toml"
    without.write_text(text.partition("\n[clusters.eu.address]")[0] + "\n", encoding="utf-8")
    options = ["--topology", str(without), "--trust-file", "/etc/pulsar/tls/ca.pem"]
    command = [sys.executable, "-m", "waybill", "topology", "addresses", *options]
    services = kubectl("get", "services", "-o", "json")
    found = subprocess.run(command, input=services, capture_output=True, text=True, timeout=60, check=True).stdout
    assert tomllib.loads(without.read_text(encoding="utf-8") + found) == tomllib.loads(text)


def test_the_doctor_finds_nothing_wrong_until_something_is() -> None:
    seconds_until(lambda: doctor() == (0, set()), 60)
    labels = {"app": "waiting"}
    volume = {"name": "lost", "secret": {"secretName": "no-such-secret"}}
    spec = {"volumes": [volume], "containers": [{"name": "one", "image": "localhost/none:1"}]}
    template = {"metadata": {"labels": labels}, "spec": spec}
    made = {"replicas": 1, "selector": {"matchLabels": labels}, "template": template}
    given = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "waiting"}, "spec": made}
    kubectl("apply", "-f", "-", given=given)

    def wrong() -> str:
        code, found = doctor()
        assert code == 1
        return "\n".join(sorted(found))

    lost = "secrets deployment/waiting: Secret no-such-secret does not exist"
    seconds_until(lambda: lost in wrong() and "violates PodSecurity" in wrong(), 60)
    kubectl("delete", "deployment", "waiting")
    seconds_until(lambda: doctor() == (0, set()), 60)
