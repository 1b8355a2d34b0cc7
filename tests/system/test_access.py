"""Who may have a session, on real brokers: what the registry says is so within a second, in every region."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple, NoReturn

import httpx
import pytest

from deploy.local import PulsarCluster
from tests.identity.makers import active, change, operator, operators_file
from tests.system.access_region import AccessRegion, has_ended, new_root
from tests.system.own_pulsar import own_pulsar
from tests.waiting import PATIENCE, wait_until
from waybill.identity.authority_folder import AuthorityFolder
from waybill.identity.registry import DeviceEntry, resume, revoke, suspend
from waybill.identity.registry_messages import devices_topic, signed_by
from waybill.identity.registry_topic import RegistryPublisher
from waybill.identity.signatures import read_operator_key, write_operator
from waybill.pulsar.compacted_topic import CompactedTopicReader
from waybill.pulsar.pulsar_client import PulsarAccess

pytestmark = [pytest.mark.system, pytest.mark.own_servers]

CONNECT = b"\x10\x0d\x00\x04MQTT\x05\x02\x02\x58\x00\x00\x00"


@pytest.fixture(scope="module")
def pulsar(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PulsarCluster]:
    namespaces = ("fleet/reference", "fleet/access", "acme/registry", "zeta/registry")
    with own_pulsar("eu", tmp_path_factory.mktemp("access"), *namespaces) as cluster:
        yield cluster


class OperatorFiles(NamedTuple):
    key: Path
    trusted: Path


@pytest.fixture(scope="module")
def operator_files(tmp_path_factory: pytest.TempPathFactory) -> OperatorFiles:
    folder = tmp_path_factory.mktemp("operators")
    anna = operator("anna", tenants=("acme", "zeta"), kinds=("device",))
    write_operator(folder / "anna.key", anna)
    daemons = [operator(f"access@{region}", kinds=("enrolment",)) for region in ("eu", "us")]
    for one in daemons:
        write_operator(folder / f"{one.trusted.name}.key", one)
    return OperatorFiles(folder / "anna.key", operators_file(folder / "operators.toml", anna, *daemons))


class RegionMaker(NamedTuple):
    root: AuthorityFolder
    service_url: str
    admin_url: str
    operators: OperatorFiles

    def make(self, name: str, folder: Path) -> AccessRegion:
        folder.mkdir()
        # By whose clock the daemons are right.
        trust = f'admin_url = "{self.admin_url}"\noperators = "{self.operators.trusted}"\n'
        trust += f'key = "{self.operators.key.parent}/access@{name}.key"'
        return AccessRegion(name, folder, self.root, self.service_url, trust)


@pytest.fixture(scope="module")
def region_maker(
    pulsar: PulsarCluster, operator_files: OperatorFiles, tmp_path_factory: pytest.TempPathFactory
) -> RegionMaker:
    return RegionMaker(new_root(tmp_path_factory.mktemp("root")), pulsar.service_url, pulsar.admin_url, operator_files)


@pytest.fixture(scope="module")
def regions(region_maker: RegionMaker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[AccessRegion]]:
    folder = tmp_path_factory.mktemp("regions")
    made = [region_maker.make(name, folder / name) for name in ("eu", "us")]
    try:
        for region in made:
            region.start_broker()
        for region in made:
            region.start_daemon()
        # Each broker trusts the other's devices once it has the other's list.
        wait_until(lambda: all(len((region.status() or _none()).lists) == 2 for region in made), 30)
        yield made
    finally:
        for region in made:
            region.stop()


@pytest.fixture
def publish(pulsar: PulsarCluster, operator_files: OperatorFiles) -> Iterator[Callable[[DeviceEntry], str]]:
    sign = signed_by(read_operator_key(operator_files.key))
    with RegistryPublisher(pulsar.service_url, PulsarAccess(), sign=sign) as publisher:
        yield publisher.publish


def _none() -> NoReturn:
    raise AssertionError("no access daemon answers")


def test_a_revoked_device_loses_its_session_and_gets_no_other_one_in_any_region(
    regions: list[AccessRegion], publish: Callable[[DeviceEntry], str]
) -> None:
    eu, us = regions
    publish(active("acme", "stolen"))
    publish(active("acme", "other"))
    context, other = eu.certificate("acme", "stolen"), eu.connect(eu.certificate("acme", "other"))
    abroad = us.connect(context)
    session = eu.connect(context)
    began = time.monotonic()
    publish(revoke(active("acme", "stolen"), change()))
    assert has_ended(session)
    assert has_ended(abroad)
    assert time.monotonic() - began < 5 * PATIENCE  # a busy machine: the second is measured by `make bench-gateway`
    wait_until(lambda: eu.is_refused(context) and us.is_refused(context), 10)
    other.sendall(b"\xc0\x00")
    assert other.recv(10) == b"\xd0\x00", "nobody else notices"
    other.close()


@pytest.mark.nightly
def test_who_connected_before_the_revocation_and_sends_its_connect_after_it_has_no_session_that_lasts(
    regions: list[AccessRegion], publish: Callable[[DeviceEntry], str]
) -> None:
    eu, _ = regions
    publish(active("acme", "early"))
    context = eu.certificate("acme", "early")
    plain = socket.create_connection(("127.0.0.1", eu.port), 10)
    with context.wrap_socket(plain, server_hostname="127.0.0.1") as early:
        publish(revoke(active("acme", "early"), change()))
        wait_until(lambda: eu.is_refused(context), 20)
        # By then its session, which there was not, has been ended twice.
        next_s = time.monotonic() + 1.2
        wait_until(lambda: time.monotonic() > next_s)
        early.sendall(CONNECT)
        assert early.recv(4)[:1] == b"\x20"
        assert has_ended(early)


def test_what_was_revoked_while_the_daemon_was_away_is_so_at_its_start(
    regions: list[AccessRegion], publish: Callable[[DeviceEntry], str]
) -> None:
    eu, _ = regions
    context = eu.certificate("acme", "late")
    session = eu.connect(context)
    eu.kill_daemon()
    publish(revoke(active("acme", "late"), change()))
    session.sendall(b"\xc0\x00")
    assert session.recv(10) == b"\xd0\x00", "nobody is there who would end it"
    eu.start_daemon()
    assert has_ended(session)
    wait_until(lambda: eu.is_refused(context), 10)


def test_what_nobody_signed_lets_nobody_in_again_and_is_counted(
    regions: list[AccessRegion], pulsar: PulsarCluster, publish: Callable[[DeviceEntry], str]
) -> None:
    eu, _ = regions
    context, stolen = eu.certificate("acme", "forged"), active("acme", "forged")
    publish(suspend(stolen, change()))
    wait_until(lambda: eu.is_refused(context), 10)
    with RegistryPublisher(pulsar.service_url, PulsarAccess()) as stranger:
        stranger.publish(resume(suspend(stolen, change()), change()))
    wait_until(lambda: (eu.status() or _none()).entries_refused_by == {"unsigned": 1}, 10)
    assert eu.is_refused(context)
    # Compaction keeps the last message of a device: that has to be the one that holds.
    last: dict[str | None, str] = {}
    reader = CompactedTopicReader(
        pulsar.service_url,
        PulsarAccess(),
        devices_topic("acme"),
        lambda message: last.update({message.key: json.loads(message.body)["state"]}),
    )
    reader.start()
    wait_until(lambda: last.get("acme/forged") == "suspended", 10)
    reader.close()


@pytest.mark.nightly
def test_a_registry_that_was_lost_is_written_again_by_the_daemons(
    regions: list[AccessRegion], pulsar: PulsarCluster, publish: Callable[[DeviceEntry], str]
) -> None:
    eu, _ = regions
    context = eu.certificate("acme", "kept")
    publish(revoke(active("acme", "kept"), change()))
    wait_until(lambda: eu.is_refused(context), 10)
    eu.kill_daemon()
    topic = devices_topic("acme").replace("://", "/")
    httpx.delete(f"{pulsar.admin_url}/admin/v2/{topic}?force=true", timeout=30).raise_for_status()
    # Healthy only once the topic has it.
    eu.start_daemon()
    last: dict[str | None, str] = {}
    reader = CompactedTopicReader(
        pulsar.service_url,
        PulsarAccess(),
        devices_topic("acme"),
        lambda message: last.update({message.key: json.loads(message.body)["state"]}),
    )
    reader.start()
    wait_until(lambda: last.get("acme/kept") == "revoked", 20)
    reader.close()
    assert eu.is_refused(context)
