"""`waybill device` of several devices at once: by one reading of the registry, and each by itself."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import pytest
from typer.testing import CliRunner

import waybill.identity.registry_session as registry_session_module
from tests.identity.registry_in_memory import InMemory
from tests.identity.test_device_cli import publishing
from waybill.identity.change_outcome import ChangeOutcome
from waybill.identity.device_cli import app
from waybill.identity.errors import SignatureFault, SignatureRefused
from waybill.identity.registry import DeviceEntry
from waybill.identity.registry_messages import DevicePublication


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(registry_session_module, "RegistrySession", InMemory)
    file = tmp_path / "operator.toml"
    file.write_text(
        'admin_url = "http://nowhere"\nservice_url = "pulsar://127.0.0.1:1"\nregions = ["eu"]\nunsigned = true\n'
        'tenants = ["acme"]\n'
    )
    return file


def publishes(monkeypatch: pytest.MonkeyPatch) -> list[DeviceEntry]:
    made: list[DeviceEntry] = []

    def published(_: object, entries: Iterable[DeviceEntry], *__: object, **___: object) -> ChangeOutcome:
        entries = tuple(entries)
        made.extend(entries)
        return ChangeOutcome(tuple(DevicePublication(one, "019e") for one in entries))

    monkeypatch.setattr(InMemory, "publish", published)
    return made


def test_of_several_devices_each_that_is_refused_is_named_and_the_others_are_done(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = publishes(monkeypatch)
    names = ["acme/bus-1", "acme/nobody", "acme/bus-2", "acme/bus-1"]
    command = ["suspend", *names, "--reason", "x", "--config", str(config)]
    done = CliRunner().invoke(app, command)
    assert (done.exit_code, [one.name for one in made]) == (6, ["acme/bus-1", "acme/bus-2"]), done.output
    assert [line.split(",")[0] for line in done.stdout.splitlines()] == [
        "acme/bus-1: suspended",
        "acme/bus-2: suspended",
    ]
    assert "the registry has no device acme/nobody" in done.stderr
    assert "1 refused, 2 done" in done.stderr
    said = json.loads(CliRunner().invoke(app, [*command, "--json"]).stdout)
    assert (said["result"], [one["device"] for one in said["refused"]]) == ("partly-refused", ["acme/nobody"])


def test_where_each_device_is_refused_nothing_is_published_and_each_is_named(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_right = SignatureRefused(SignatureFault.NO_RIGHT, "not for acme")
    monkeypatch.setattr(InMemory, "refusal", lambda *_: no_right)
    command = ["revoke", "acme/bus-1", "acme/nobody", "--reason", "x", "--config", str(config)]
    done = CliRunner().invoke(app, command)
    assert (done.exit_code, done.stderr.count("waybill device: ")) == (3, 2), done.output
    said = json.loads(CliRunner().invoke(app, [*command, "--json"]).stdout)
    assert (said["result"], len(said["refused"])) == ("refused", 2)


def test_of_very_many_names_that_are_not_known_the_nearest_is_looked_for_of_the_first(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[str] = []

    def nearest(_: object, name: str) -> str:
        looked.append(name)
        return ""

    monkeypatch.setattr(InMemory, "nearest", nearest)
    names = [f"acme/nobody-{number}" for number in range(300)]
    done = CliRunner().invoke(app, ["revoke", *names, "--reason", "x", "--config", str(config)])
    assert (done.exit_code, done.stderr.count("no device acme/nobody"), len(looked)) == (3, 300, 20)


def test_a_region_that_did_not_confirm_comes_before_a_device_that_was_refused(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publishing(monkeypatch, missing=("us",))
    done = CliRunner().invoke(app, ["revoke", "acme/bus-1", "acme/nobody", "--reason", "x", "--config", str(config)])
    assert (done.exit_code, "no device acme/nobody" in done.stderr) == (5, True), done.output
