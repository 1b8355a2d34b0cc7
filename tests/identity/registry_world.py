"""A registry and regions in memory, in which anything may happen while a command runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from cloud_jobs.reference_cli import app as reference_app
from tests.identity.test_registry_session import Reader, Topic
from waybill.identity import registry_session
from waybill.identity.confirmations import encode_confirmation
from waybill.identity.device_cli import app as device_app
from waybill.identity.registry import DeviceEntry
from waybill.pulsar.compacted_topic import TopicMessage, TopicStanding


class World(Topic):
    """A registry, and regions that have in force what comes, but for those that are silent.

    `before`: of a device, what happens at its turn, before it is published. `silent_of`: devices of which eu is silent.
    """

    def __init__(self) -> None:
        super().__init__()
        self.before: dict[str, Callable[[], object]] = {}
        self.silent: set[str] = set()
        self.silent_of: set[str] = set()
        self.said: list[TopicMessage] = []
        self.hearers: list[Any] = []

    def publish(self, entry: DeviceEntry) -> str:
        self.before.pop(entry.name, lambda: None)()
        return self.confirmed(entry)

    def confirmed(self, entry: DeviceEntry) -> str:
        made = self.put(entry)
        for region in {"eu", "us"} - self.silent:
            if region == "us" or entry.name not in self.silent_of:
                self.confirm(region, entry.name, made)
        return made

    def confirm(self, region: str, name: str, publication_id: str) -> None:
        self.said.append(TopicMessage(None, encode_confirmation(region, [(name, publication_id)], 1.0), {}, 0))
        for hearer in self.hearers:
            hearer(self.said[-1])


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    made = World()

    class Publisher:
        newest: str | None = None

        def __init__(self, *_: object, **__: object) -> None: ...

        def publish(self, entry: DeviceEntry) -> str:
            return made.publish(entry)

        def close(self) -> None: ...

    class Confirmations:
        standing = TopicStanding(is_current=True, was_current=True)

        def __init__(self, _: str, __: object, ___: str, on_message: Any, *_____: object, **______: object) -> None:
            self._on_message, self.is_running = on_message, False

        def start(self) -> None:
            self.is_running = True
            made.hearers.append(self._on_message)
            for message in made.said:
                self._on_message(message)

        def close(self) -> None:
            made.hearers.remove(self._on_message)

    monkeypatch.setattr(registry_session, "RegistryReader", type("BoundReader", (Reader,), {"topic": made}))
    monkeypatch.setattr(registry_session, "RegistryPublisher", Publisher)
    monkeypatch.setattr(registry_session, "CompactedTopicReader", Confirmations)
    monkeypatch.setattr(registry_session, "check_clock", lambda *_: None)
    monkeypatch.setattr(registry_session, "_LOOK_S", 0.001)
    return made


Command = Callable[..., Result]


@pytest.fixture
def command(tmp_path: Path) -> Command:
    config = tmp_path / "operator.toml"
    config.write_text(
        'admin_url = "http://nowhere"\nservice_url = "pulsar://127.0.0.1:1"\nregions = ["eu", "us"]\n'
        'unsigned = true\noperator = "bea"\ntenants = ["acme"]\n'
    )

    def run(what: str, *arguments: object) -> Result:
        app, words = (reference_app, [what, "devices"]) if what in {"put", "history"} else (device_app, [what])
        reason = ["-m", "because"] if what != "history" else []
        more = [*map(str, arguments), *reason, "-c", str(config)]
        return CliRunner().invoke(app, [*words, *more], env={"COLUMNS": "300"})

    return run


@pytest.fixture
def put(command: Command, tmp_path: Path) -> Command:
    def run(text: str, *arguments: object) -> Result:
        file = tmp_path / "devices.toml"
        file.write_text(text)
        return command("put", file, "--wait", "0.05", *arguments)

    return run


def outcomes(done: Result) -> dict[str, str]:
    """Of each device what became of it, as programs hear it."""
    said = json.loads(done.stdout)["outcomes"]
    return {name.removeprefix("acme/"): one["outcome"] for name, one in said.items()}
