"""The office of a proof's Pulsar clusters, and what the chart gets from it."""

import tomllib
from pathlib import Path

import pytest
from cryptography import x509

from deploy.kubernetes.pulsar.__main__ import ISSUER, office
from deploy.local.stack import DEFAULT_TOPOLOGY
from waybill.identity.tokens import read_claims


@pytest.fixture(autouse=True)
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pulsar's folder with nothing but a setting."""
    home = tmp_path / "cache" / "apache-pulsar-4.0.8"
    (home / "lib").mkdir(parents=True)
    (home / "conf").mkdir()
    (home / "conf/standalone.conf").write_text("clusterName=standalone\nzookeeper=1", encoding="ascii")
    monkeypatch.setenv("WAYBILL_CACHE", str(tmp_path / "cache"))


def test_an_office_has_addresses_tokens_and_certificates_of_the_services(tmp_path: Path) -> None:
    values = office("proof", tmp_path, DEFAULT_TOPOLOGY, frozenset({"us"}))
    assert values["clusters"].keys() == {"eu", "hq"}
    at = "pulsar-eu.proof.svc.cluster.local"
    topology = tomllib.loads((tmp_path / "topology.toml").read_text(encoding="utf-8"))
    assert topology["clusters"]["eu"]["address"]["service_url"] == f"pulsar+ssl://{at}:6651"
    files = values["secrets"]["pulsar-eu"]
    leaf = x509.load_pem_x509_certificate(files["certificate.pem"].encode())
    assert at in leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value.get_values_for_type(
        x509.DNSName
    )
    assert read_claims(files["broker.token"]).role == "replication-eu"
    assert read_claims((tmp_path / "tokens/tokens/gateway-eu.token").read_text(encoding="ascii")).issuer == ISSUER
    conf = dict(line.split("=", 1) for line in values["clusters"]["eu"]["conf"].splitlines())
    assert (conf["clusterName"], conf["advertisedAddress"], conf["brokerServicePort"]) == ("eu", at, "")
    assert values["clusters"]["eu"]["args"][-1] == at


def test_a_second_call_keeps_keys_and_certificates(tmp_path: Path) -> None:
    first, second = (office("proof", tmp_path, DEFAULT_TOPOLOGY, frozenset()) for _ in range(2))
    assert first == second
