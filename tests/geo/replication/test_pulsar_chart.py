"""Values for Apache's chart of Pulsar, and addresses from Services."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from geo.replication.cli import app
from geo.replication.model import Topology
from geo.replication.pulsar_chart import MEANINGS, ledgers_gib
from waybill.settings import load

CLUSTERS = Path("deploy/local/topology.toml")
ISSUER = "https://keys.example"


def service(
    name: str, cluster: str, *, address: str = "10.96.0.7", ports: tuple[str, ...] = ("pulsarssl", "https")
) -> Any:
    return {
        "metadata": {"name": name, "namespace": "messaging", "labels": {"component": "broker", "cluster": cluster}},
        "spec": {"clusterIP": address, "ports": [{"name": one, "port": 6651 + at} for at, one in enumerate(ports)]},
    }


SERVICES = [
    service("pulsar-eu-broker-headless", "eu", address="None"),
    service("pulsar-eu-broker", "eu"),
    service("pulsar-us-broker", "us"),
    service("pulsar-hq-broker", "hq"),
    service("plain", "hq", ports=("pulsar", "http")),
    {"metadata": {"name": "kubernetes", "namespace": "default"}, "spec": {"ports": [{"port": 443}]}},
]


def located(services: object = SERVICES) -> Any:
    given = json.dumps({"items": services})
    return CliRunner().invoke(app, ["addresses", "--topology", str(CLUSTERS), "--trust-file", "/ca.pem"], input=given)


@pytest.fixture
def topology(tmp_path: Path) -> Path:
    """The local stack's topology with addresses from Services."""
    found = located()
    assert not found.exit_code, found.output
    file = tmp_path / "topology.toml"
    file.write_text(CLUSTERS.read_text(encoding="utf-8") + found.stdout, encoding="utf-8")
    return file


def test_addresses_are_those_of_services_that_brokers_are_balanced_by(topology: Path) -> None:
    address = load(Topology, topology).clusters["eu"].address
    assert address is not None
    assert address.service_url == "pulsar+ssl://pulsar-eu-broker.messaging.svc.cluster.local:6651"
    assert address.admin_url == "https://pulsar-eu-broker.messaging.svc.cluster.local:6652"
    assert address.trust_certs_file == "/ca.pem"


@pytest.mark.parametrize(
    ("services", "said"),
    [(SERVICES[:3], "cluster hq has no address"), ({"items": 1}, "not the output of `kubectl get services -o json`")],
)
def test_a_cluster_without_a_service_and_another_input_are_refused(services: object, said: str) -> None:
    found = located(services)
    assert (found.exit_code, found.stdout) == (1, "")
    assert said in found.stderr


def paths(values: dict[str, Any], above: str = "") -> list[str]:
    """Each key that is written; what stands below one with a meaning belongs to it."""
    found = []
    for key, value in values.items():
        path = f"{above}{key}"
        inner = isinstance(value, dict) and path not in MEANINGS
        found += paths(value, f"{path}.") if inner else [path]
    return found


def test_each_value_of_the_chart_has_a_meaning_and_is_documented(topology: Path) -> None:
    words = ["chart-values", "eu", "--issuer", ISSUER, "--topology", str(topology), "--offload-bucket", "older"]
    ran = CliRunner().invoke(app, words)
    assert not ran.exit_code, ran.output
    values = yaml.safe_load(ran.stdout)
    assert set(paths(values)) == set(MEANINGS)
    page = Path("docs/pulsar-chart.md").read_text(encoding="utf-8")
    assert not [key for key in MEANINGS if f"`{key}`" not in page]
    assert values["clusterName"] == "eu"
    assert {one for one in values["auth"]["superUsers"].values() if one} == {"operator", "replication-eu"}
    assert values["tls"]["broker"]["dnsNames"] == ["pulsar-eu-broker.messaging.svc.cluster.local"]
    conf = values["broker"]["configData"]
    assert conf["brokerClientAuthenticationParameters"] == "file:///pulsar/waybill/broker.token"
    assert (conf["managedLedgerDefaultWriteQuorum"], conf["managedLedgerDefaultAckQuorum"]) == ("3", "2")
    assert all(isinstance(value, str) for value in conf.values()), "a ConfigMap has text only"


def test_bookies_have_room_for_three_copies_of_what_the_topology_keeps(topology: Path) -> None:
    wanted = load(Topology, topology)
    # the centre has what all regions send
    assert ledgers_gib(wanted, "eu", 3) < ledgers_gib(wanted, "hq", 3)
    assert ledgers_gib(wanted, "hq", 6) == pytest.approx(ledgers_gib(wanted, "hq", 3) / 2, abs=1)


@pytest.mark.parametrize("words", [["xx", "--issuer", ISSUER], ["eu", "--issuer", "http://keys.example"]])
def test_values_need_an_address_and_keys_by_https(topology: Path, words: list[str]) -> None:
    assert CliRunner().invoke(app, ["chart-values", *words, "--topology", str(topology)]).exit_code == 1
