"""Ports keep their names, a folder belongs to one stack, and other processes read what it says."""

import json
import os
import random
import socket
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from deploy.demo.plan import DemoSettings, plan_demo, write_topology
from deploy.local import (
    CuttableLink,
    LinkControlError,
    LocalStack,
    LocalStackError,
    PortBook,
    PulsarCluster,
    StackNotRunning,
    StackState,
    stack_access,
    stack_operator,
)
from deploy.local.credentials import LocalAuthority, StackCredentials
from deploy.local.folder import hold
from deploy.local.stack import DEFAULT_TOPOLOGY, with_addresses
from deploy.local.stack_state import ServerRecord
from geo.replication import Topology
from waybill.identity.signatures import read_operators
from waybill.identity.tokens import read_claims
from waybill.settings import SettingsError, load


def state() -> StackState:
    server = ServerRecord(
        name="pulsar-hq",
        state="healthy",
        pid=os.getpid(),
        log=Path("hq.log"),
        addresses={"service_url": "pulsar://127.0.0.1:1"},
    )
    link = CuttableLink(name="eu", port=2, target=3, control=4, secret="s")
    return StackState(supervisor=os.getpid(), phase="ready", servers=[server], links={"eu": link})


def test_a_name_keeps_its_port_for_the_next_book(tmp_path: Path) -> None:
    first = PortBook(tmp_path / "ports.json")
    ports = {name: first.port(name) for name in "abc"}
    assert len(set(ports.values())) == 3
    assert {name: first.port(name) for name in "abc"} == ports
    again = PortBook(tmp_path / "ports.json")
    assert {name: again.port(name) for name in "cba"} == ports


def test_a_port_that_somebody_took_is_not_given_again(tmp_path: Path) -> None:
    port = PortBook(tmp_path / "ports.json").port("a")
    with socket.create_server(("127.0.0.1", port)):
        assert PortBook(tmp_path / "ports.json", timeout_s=0.1).port("a") != port


def test_a_port_does_not_move_under_daemons_that_run(tmp_path: Path) -> None:
    port = PortBook(tmp_path / "ports.json").port("a")
    with socket.create_server(("127.0.0.1", port)):
        # its own process has it: the settings file is written again and stays right
        assert PortBook(tmp_path / "ports.json", timeout_s=0).kept("a") == port
        with pytest.raises(LocalStackError, match=f"port {port} of a is taken"):
            PortBook(tmp_path / "ports.json", timeout_s=0, is_pinned=lambda: True).port("a")
    assert PortBook(tmp_path / "ports.json", is_pinned=lambda: True).port("a") == port


CHOOSER = """
import sys
from pathlib import Path
from deploy.local import ports
ports._RANGE = int(sys.argv[2]), int(sys.argv[3])
book = ports.PortBook(Path(sys.argv[1]))
print(*(book.port(str(number)) for number in range(15)), flush=True)
sys.stdin.read()
"""


def test_ports_that_are_chosen_and_not_used_yet_are_not_chosen_by_another_stack(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = random.randrange(20_000, 31_000)
    monkeypatch.setattr("deploy.local.ports._RANGE", (few, few + 50))
    command = [sys.executable, "-c", CHOOSER, str(tmp_path / "other.json"), str(few), str(few + 50)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        theirs = {int(port) for port in other.stdout.readline().split()}
        here = [PortBook(tmp_path / name) for name in ("a.json", "b.json")]
        ours = [{book.port(str(number)) for number in range(10)} for book in here]
        assert len(theirs | ours[0] | ours[1]) == 15 + 10 + 10
        assert PortBook(tmp_path / "other.json", timeout_s=0).port("0") not in theirs
        other.communicate("")
    (tmp_path / "again.json").write_text(json.dumps({str(port): port for port in theirs}))
    again = PortBook(tmp_path / "again.json")
    assert {again.port(str(port)) for port in theirs} == theirs, "who ended speaks for nothing"


def test_names_with_dots_get_their_addresses_and_a_topology_that_has_some_is_refused_before_anything_starts(
    tmp_path: Path,
) -> None:
    file = tmp_path / "topology.toml"
    file.write_text('centre = "hq.main"\n[clusters."hq.main"]\n[regions.eu]\ncluster = "hq.main"\n[tenants.fleet]\n')
    stack = LocalStack(tmp_path / "stack", topology=file)
    cluster = PulsarCluster("hq.main", tmp_path / "hq", ports=PortBook(tmp_path / "ports.json"), peers={})
    made = with_addresses(file, {"hq.main": cluster}, stack.links, tmp_path / "located.toml")
    address = made.clusters["hq.main"].address
    assert address is not None
    assert address.service_url == cluster.service_url
    with pytest.raises(LocalStackError, match=r"has addresses of hq\.main"):
        LocalStack(tmp_path / "stack", topology=tmp_path / "located.toml")


def test_a_port_that_gets_free_soon_is_kept(tmp_path: Path) -> None:
    """A server killed a moment ago holds its ports until the kernel has taken it apart."""
    port = PortBook(tmp_path / "ports.json").port("a")
    dying = socket.create_server(("127.0.0.1", port))
    end = threading.Timer(0.3, dying.close)
    end.start()
    assert PortBook(tmp_path / "ports.json", timeout_s=30).port("a") == port
    end.join()


def test_the_state_is_read_back_while_the_stack_runs(tmp_path: Path) -> None:
    with hold(tmp_path):
        state().save(tmp_path)
        read = StackState.load(tmp_path)
    assert read == state()
    assert read.address("pulsar-hq", "service_url") == "pulsar://127.0.0.1:1"
    assert read.link("eu").port == 2


def test_the_state_of_an_earlier_supervisor_is_not_that_of_the_one_that_starts(tmp_path: Path) -> None:
    with hold(tmp_path):
        state().model_copy(update={"supervisor": 1}).save(tmp_path)
        with pytest.raises(StackNotRunning):
            StackState.load(tmp_path)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"a": 0}', b'{"a": 65536}', b'{"a": "x"}', b"\xff"])
def test_a_book_of_ports_that_cannot_be_read_is_named_with_the_way_out(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "ports.json").write_bytes(content)
    with pytest.raises(LocalStackError, match="delete it, and new ports are chosen"):
        PortBook(tmp_path / "ports.json")


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"{}", b"\xff"])
def test_a_state_that_cannot_be_read_is_named_with_the_way_out(tmp_path: Path, content: bytes) -> None:
    with hold(tmp_path):
        (tmp_path / "stack.json").write_bytes(content)
        with pytest.raises(LocalStackError, match="waybill down"):
            StackState.load(tmp_path)


def test_an_unknown_link_is_named_with_the_known_ones() -> None:
    with pytest.raises(LinkControlError, match=r"link eur: no such link; this stack has eu"):
        state().link("eur")


def test_the_operator_stays_and_is_trusted_again_where_the_file_was_taken_away(tmp_path: Path) -> None:
    first = stack_operator(tmp_path)
    first.operators_file.unlink()
    assert stack_operator(tmp_path).key.key_id == first.key.key_id
    assert list(read_operators(first.operators_file).keys) == [first.key.key_id]


def test_a_file_of_trusted_keys_that_is_none_is_said_so(tmp_path: Path) -> None:
    (tmp_path / "operators.toml").write_text('centre = "hq"\n')
    with pytest.raises(SettingsError, match=r"operators\.toml"):
        stack_operator(tmp_path)


def test_the_demo_s_topology_takes_no_file_of_the_stack(tmp_path: Path) -> None:
    scenario = plan_demo(DemoSettings(vehicles=4)).scenario
    written = write_topology(tmp_path, scenario)
    stack_operator(tmp_path)
    assert {one.tenant for one in scenario.vehicles} <= set(load(Topology, written).operators)
    assert written.name != "topology.toml"


def credentials(folder: Path, topology: Topology, life_s: float = 600) -> StackCredentials:
    return StackCredentials(
        folder, LocalAuthority(folder / "access"), topology, PortBook(folder / "ports.json"), life_s
    )


def test_each_role_has_a_token_that_names_it_and_only_its_owner_reads_it(tmp_path: Path) -> None:
    made = credentials(tmp_path, load(Topology, DEFAULT_TOPOLOGY))
    assert {"operator", "jobs", "gateway-eu", "gateway-us", "access-eu", "replication-hq"} <= set(made.roles)
    for role in made.roles:
        file = made.access(role).token_file
        assert file is not None
        assert read_claims(file.read_text()).role == role
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
    with pytest.raises(ValueError, match="no role 'gateway-mars' in this stack; it has access-eu"):
        made.access("gateway-mars")


def test_another_process_finds_the_access_of_a_stack_by_its_folder(tmp_path: Path) -> None:
    made = credentials(tmp_path, load(Topology, DEFAULT_TOPOLOGY))
    assert stack_access(tmp_path, "jobs") == made.access("jobs")
