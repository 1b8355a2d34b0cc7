"""`waybill topology broker-conf`: what it prints, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from geo.replication.cli import app

TOPOLOGY = """
centre = "eu"
replication_role = "replication-{cluster}"
[clusters.eu.address]
service_url = "%s"
admin_url = "https://pulsar.eu.example:8443"
[clusters.us]
[tenants.acme]
[regions.eu]
cluster = "eu"
[roles.operator]
superuser = true
"""
SECURED = "pulsar+ssl://pulsar.eu.example:6651"
OPTIONS = ["--issuer", "https://keys.example", "--tls", "/etc/tls", "--token-file", "/etc/token"]


@pytest.mark.parametrize(
    ("url", "words", "said"),
    [
        (SECURED, ["us", *OPTIONS], "cluster us has no address"),
        (SECURED, ["xx", *OPTIONS], "cluster xx has no address"),
        ("pulsar://pulsar.eu.example:6650", ["eu", *OPTIONS], "must be pulsar+ssl:// and https://"),
        (SECURED, ["eu", *OPTIONS[:3], "tls", *OPTIONS[4:]], "whole paths"),
        (SECURED, ["eu", "--issuer", "http://keys.example", *OPTIONS[2:]], "an https:// address"),
    ],
)
def test_what_would_leave_a_broker_without_tls_or_files_is_refused(
    tmp_path: Path, url: str, words: list[str], said: str
) -> None:
    file = tmp_path / "topology.toml"
    file.write_text(TOPOLOGY % url)
    ran = CliRunner().invoke(app, ["broker-conf", *words, "--topology", str(file)])
    assert (ran.exit_code, ran.stdout) == (1, "")
    assert said in ran.stderr


def test_superusers_and_the_brokers_own_role_may_do_everything(tmp_path: Path) -> None:
    file = tmp_path / "topology.toml"
    file.write_text(TOPOLOGY % SECURED)
    ran = CliRunner().invoke(app, ["broker-conf", "eu", *OPTIONS, "--topology", str(file)])
    assert ran.exit_code == 0
    assert {"superUserRoles=operator,replication-eu", "brokerServicePortTls=6651", "webServicePort="} <= set(
        ran.stdout.splitlines()
    )
