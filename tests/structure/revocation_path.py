"""A revocation, followed while it happens: `waybill device revoke`, and the access daemon until the session has ended.

Doubles stand for Pulsar's connections, for the publisher of confirmations, and for the broker behind its socket.
"""

import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from unittest.mock import create_autospec

import pytest
from typer.testing import CliRunner

from gateway.access.broker import BrokerFiles, StepRunner
from gateway.access.config import AuthorityPlace, GuardedBroker
from gateway.access.core import AccessCore
from gateway.access.issued import IssuedReader
from gateway.access.loop import AccessLoop, ListIntake
from gateway.access.publisher import AccessPublisher
from gateway.access.registry_cache import RegistryCache
from gateway.access.revocation import OwnList
from gateway.access.status import AccessMetrics
from tests.identity.makers import active
from tests.identity.registry_world import operator_file, world_in_memory
from tests.structure.ways import modules_that_run
from waybill.identity.authority_folder import AuthorityFolder
from waybill.identity.device_cli import app
from waybill.identity.registry_messages import devices_topic
from waybill.identity.registry_topic import DeviceRegistry, EntryInForce
from waybill.pulsar.compacted_topic import TopicMessage, TopicStanding

DEVICE = "acme/a"
CURRENT = TopicStanding(is_current=True, was_current=True)
NOW = datetime.now(UTC) - timedelta(hours=1)
DAY = timedelta(days=1)
NOTHING_LEFT = bytes([0x20, 3, 0, 0, 0])
SESSION_WAS_THERE = bytes([0x20, 3, 1, 0, 0])


@contextmanager
def broker_socket(path: Path) -> Iterator[list[bytes]]:
    """A broker's socket that accepts each connection; yields the packets that came."""
    packets: list[bytes] = []
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection:
                    packets.append(connection.recv(1024))
                    connection.sendall(SESSION_WAS_THERE if len(packets) == 1 else NOTHING_LEFT)
                    connection.recv(16)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield packets
        server.shutdown(socket.SHUT_RDWR)
    thread.join()


class Region:
    """An access daemon's parts, with what is on disk, beside a broker that is this process."""

    def __init__(self, folder: Path) -> None:
        names = ("rules_file", "revocation_file", "password_file", "guard_socket", "guard_secret_file", "pid_file")
        (folder / "pid_file").write_text(f"{os.getpid()}\n")
        program = Path("/proc/self/comm").read_text().strip()
        files = BrokerFiles(GuardedBroker(program=program, **{name: folder / name for name in names}), "eu", ())
        root = AuthorityFolder.create_root(folder / "root", "root", now=NOW, lifetime=3000 * DAY)
        AuthorityFolder.create_regional(folder / "eu", root, "eu", now=NOW, lifetime=2000 * DAY)
        own, metrics = OwnList(AuthorityPlace(folder=folder / "eu"), {}), AccessMetrics([devices_topic("acme")])
        self.registry: DeviceRegistry[bool] = DeviceRegistry(lambda entry, _: entry.entry.may_connect)
        self.core = AccessCore(own.issuer, lambda name: self.registry.get(name) is True)
        self.cache = RegistryCache(folder / "cache", self.registry, None, lambda _: True)
        runner = StepRunner(files, files.open_guard(), create_autospec(AccessPublisher), metrics, own_list=own)
        issued, lists = create_autospec(IssuedReader, is_behind=False), create_autospec(ListIntake)
        issued.read_new.return_value = issued.read_waiting.return_value = []
        self.loop = AccessLoop(self.core, runner, lists, issued, metrics)

    def read(self, message: TopicMessage) -> None:
        """What the daemon does with a message of the registry's topic."""
        became = self.registry.take(message, None)
        assert isinstance(became, EntryInForce)
        self.loop.put(became.publication)
        self.cache.take(message, became)

    def turn_until(self, is_done: Callable[[], bool]) -> None:
        for _ in range(10):
            if not is_done():
                self.loop.put(CURRENT)
                self.loop.turn()
        assert is_done()


def modules_of_a_revocation(folder: Path) -> set[str]:
    """The modules of the product of which a function runs between the command and the end of the session."""
    former = signal.signal(signal.SIGHUP, lambda *_: None)
    try:
        with pytest.MonkeyPatch.context() as patch, broker_socket(folder / "guard_socket") as packets:
            world, region = world_in_memory(patch), Region(folder)
            world.put(active("acme", "a"))
            with closing(region.cache):
                region.read(world.messages[-1])
                region.turn_until(lambda: not region.loop.problem)
                packets.clear()

                def way() -> None:
                    words = ["revoke", DEVICE, "-m", "stolen", "--wait", "0.05", "-c", str(operator_file(folder))]
                    done = CliRunner().invoke(app, words)
                    assert done.exit_code == 0, done.output
                    region.read(world.messages[1])
                    region.turn_until(lambda: any(DEVICE.encode() in one for one in packets))

                return modules_that_run(way)
    finally:
        signal.signal(signal.SIGHUP, former)
