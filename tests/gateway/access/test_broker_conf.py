"""The configuration of a region's brokers, from the settings of its access daemon."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.access.config import AccessSettings
from gateway.access.daemon import write_broker_conf
from waybill.settings import SettingsError, parse

SETTINGS = """
region = "eu"
[broker]
rules_file = "rules"
revocation_file = "lists"
password_file = "passwords"
guard_secret_file = "secret"
guard_socket = "/run/guard.sock"
{process}
[broker.server]
conf_file = "{folder}/devices.conf"
folder = "/var/lib/queues"
bounds = {{ max_packet_mb = {packet_mb} }}
tls = {tls}
[registry]
tenants = ["acme"]
service_url = "pulsar+ssl://pulsar:6651"
unsigned = true
[authority]
folder = "pki"
"""
TLS = '{ ca = "ca.pem", certificate = "certificate.pem", key = "key.pem" }'
PID_FILE = 'pid_file = "/run/pid"'


def settings(folder: Path, packet_mb: int = 8, process: str = PID_FILE, tls: str = TLS) -> AccessSettings:
    text = SETTINGS.format(folder=folder, packet_mb=packet_mb, process=process, tls=tls)
    return parse(AccessSettings, text, "access.toml")


def test_a_configuration_follows_its_settings_and_is_written_only_when_it_changes(tmp_path: Path) -> None:
    file = tmp_path / "devices.conf"
    assert write_broker_conf(settings(tmp_path)) == [file]
    assert {"listener 8883", "crlfile lists", "require_certificate true"} <= set(file.read_text().splitlines())
    assert write_broker_conf(settings(tmp_path)) == []
    assert write_broker_conf(settings(tmp_path, packet_mb=4)) == [file]
    assert f"max_packet_size {4 << 20}\n" in file.read_text()
    # The key's path is no secret; who may not read the rules need not read this either.
    assert file.stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize(
    ("process", "tls", "said"),
    [("pid = 7", TLS, "pid_file"), (PID_FILE, '{ ca = "ca.pem" }', "a server has a certificate")],
)
def test_a_broker_that_could_not_start_so_is_refused(tmp_path: Path, process: str, tls: str, said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        settings(tmp_path, process=process, tls=tls)
