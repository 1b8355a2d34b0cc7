"""A registry and regions in memory, in which anything may happen while a command runs."""

import json
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from waybill.identity import registry_session
from waybill.identity.confirmations import encode_confirmation
from waybill.identity.device_cli import app as device_app
from waybill.identity.registry import DeviceEntry
from waybill.identity.registry_messages import entry_body, tenant_of
from waybill.identity.registry_topic import DeviceRegistry, RegistryReader
from waybill.identity.signatures import ID_PROPERTY, next_publication_id
from waybill.pulsar.compacted_topic import TopicMessage, TopicStanding


class World:
    """A registry, and regions that have in force what comes, but for those that are silent.

    `before`: of a device, what happens at its turn, before it is published. `silent_of`: devices of which eu is silent.
    """

    def __init__(self) -> None:
        self.messages: list[TopicMessage] = []
        self.readers: list[Reader] = []
        self.newest: str | None = None
        self.before: dict[str, Callable[[], object]] = {}
        self.silent: set[str] = set()
        self.silent_of: set[str] = set()
        self.said: list[TopicMessage] = []
        self.hearers: list[Any] = []
        self.is_ended = True
        self.is_lost = False
        self.read_after: list[int] = []
        """How many messages there were when each reading began."""

    def put(self, entry: DeviceEntry) -> str:
        self.newest = next_publication_id(self.newest, round(time.time() * 1000), 7)
        self.messages.append(TopicMessage(entry.name, entry_body(entry), {ID_PROPERTY: self.newest}, 0))
        for reader in self.readers if not self.is_lost else ():
            reader.hear(self.messages[-1])
        return self.newest

    def publish(self, entry: DeviceEntry) -> str:
        self.before.pop(entry.name, lambda: None)()
        return self.confirmed(entry)

    def confirmed(self, entry: DeviceEntry) -> str:
        made = self.put(entry)
        for region in {"eu", "us"} - self.silent:
            if region == "us" or entry.name not in self.silent_of:
                self.confirm(region, entry.name, made)
        return made

    def confirm(self, region: str, name: str, publication_id: str, refused: str = "") -> None:
        ids = [(publication_id, refused)] if refused else []
        body = encode_confirmation(region, [] if refused else [(name, publication_id)], 1.0, ids)
        self.said.append(TopicMessage(None, body, {}, 0))
        for hearer in self.hearers:
            hearer(self.said[-1])

    def held(self) -> dict[str, DeviceEntry]:
        registry: DeviceRegistry[DeviceEntry] = DeviceRegistry(lambda made, _: made.entry)
        for message in self.messages:
            registry.take(message, None)
        return registry.all()

    @property
    def states(self) -> dict[str, str]:
        return {name.removeprefix("acme/"): str(entry.state) for name, entry in self.held().items()}


class Reader(RegistryReader[Any]):
    world: World

    def __init__(self, *arguments: Any, tenants: Collection[str], **more: Any) -> None:
        super().__init__(*arguments, tenants=tenants, **more)
        self.tenants = tenants

    @property
    def standing(self) -> TopicStanding:
        return TopicStanding(was_current=self.world.is_ended, problem="busy")

    def start(self) -> None:
        self.world.read_after.append(len(self.world.messages))
        self.world.readers.append(self)
        for message in self.world.messages:
            self.hear(message)

    def hear(self, message: TopicMessage) -> None:
        if (tenant := tenant_of(message.key or "")) in self.tenants:
            self._take(tenant, message)

    def close(self) -> None:
        if self in self.world.readers:
            self.world.readers.remove(self)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return world_in_memory(monkeypatch)


def world_in_memory(monkeypatch: pytest.MonkeyPatch) -> World:
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

    # The seams to a real cluster.
    monkeypatch.setattr(registry_session, "RegistryReader", type("BoundReader", (Reader,), {"world": made}))
    monkeypatch.setattr(registry_session, "RegistryPublisher", Publisher)
    monkeypatch.setattr(registry_session, "CompactedTopicReader", Confirmations)
    monkeypatch.setattr(registry_session, "check_clock", lambda *_: None)
    monkeypatch.setattr(registry_session, "_LOOK_S", 0.001)
    monkeypatch.setattr(registry_session, "_SILENCE_S", 0.05)
    return made


Command = Callable[..., Result]


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return operator_file(tmp_path)


def operator_file(folder: Path) -> Path:
    file = folder / "operator.toml"
    file.write_text(
        'admin_url = "http://nowhere"\nservice_url = "pulsar://127.0.0.1:1"\nregions = ["eu", "us"]\n'
        'unsigned = true\noperator = "bea"\ntenants = ["acme", "zeta"]\n'
    )
    return file


@pytest.fixture
def command(config: Path) -> Command:
    """A command of devices; what changes something has a reason."""

    def run(what: str, *arguments: object) -> Result:
        reason = [] if what in {"list", "show", "sign"} else ["-m", "because"]
        words = [what, *map(str, arguments), *reason, "-c", str(config)]
        return CliRunner().invoke(device_app, words, env={"COLUMNS": "300"})

    return run


@pytest.fixture
def put(command: Command, tmp_path: Path) -> Command:
    def run(text: str, *arguments: object) -> Result:
        file = tmp_path / "devices.toml"
        file.write_text(text)
        return command("put", file, "--wait", "0.05", *arguments)

    return run


def table(device: str, state: str, **more: str | int) -> str:
    keys = {"tenant": "acme", "device": device, "state": state} | more
    written = {name: value if isinstance(value, int) else f'"{value}"' for name, value in keys.items()}
    return "[[device]]\n" + "".join(f"{name} = {value}\n" for name, value in written.items())


def outcomes(done: Result) -> dict[str, str]:
    said = json.loads(done.stdout)["outcomes"]
    return {name.removeprefix("acme/"): one["outcome"] for name, one in said.items()}
