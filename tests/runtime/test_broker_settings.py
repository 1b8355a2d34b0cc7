"""One setting has one key and one meaning, in the agent and in the gateway."""

from __future__ import annotations

from pathlib import Path

import pytest

from waybill.daemon.tls import TlsSettings
from waybill.mqtt.broker_settings import BrokerSettings, is_this_machine, read_password, unusable_files
from waybill.settings import SettingsError, validate


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"host": "broker:1883"}, "host"),
        ({"host": "http://broker"}, "host"),
        ({"host": ""}, "host"),
        ({"password_file": "p"}, "together with username"),
        ({"tls": {"ca": "a", "key": "k"}}, "certificate and key belong together"),
    ],
)
def test_what_can_never_work_is_refused(settings: dict[str, object], problem: str) -> None:
    with pytest.raises(SettingsError, match=problem):
        validate(BrokerSettings, settings, "x")


def test_the_password_is_the_first_line_and_one_that_is_empty_or_missing_is_named(tmp_path: Path) -> None:
    file = tmp_path / "password"
    broker = BrokerSettings(username="u", password_file=file)
    assert "cannot be read" in next(unusable_files("mqtt", broker))
    file.write_text("\nsecret\n")
    assert list(unusable_files("mqtt", broker)) == ["mqtt.password_file: its first line is empty"]
    file.write_text("secret \nmore\n")
    assert list(unusable_files("mqtt", broker)) == []
    assert read_password(file) == "secret "


def test_files_of_tls_are_named_one_by_one(tmp_path: Path) -> None:
    tls = TlsSettings(ca=tmp_path / "ca", certificate=tmp_path / "c", key=tmp_path / "k")
    (tmp_path / "ca").write_text("no certificate")
    found = list(unusable_files("mqtt", BrokerSettings(tls=tls)))
    assert [line.partition(":")[0] for line in found] == ["mqtt.tls.certificate", "mqtt.tls.key"]
    only_ca = BrokerSettings(tls=TlsSettings(ca=tmp_path / "ca"))
    assert "mqtt.tls: certificates cannot be loaded" in next(unusable_files("mqtt", only_ca))


@pytest.mark.parametrize(
    ("host", "here"), [("127.0.0.1", True), ("::1", True), ("localhost", True), ("10.0.0.1", False), ("b", False)]
)
def test_this_machine_is_a_loopback_address_or_its_usual_name(host: str, here: bool) -> None:
    assert is_this_machine(host) is here
