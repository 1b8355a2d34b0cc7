"""What `waybill status` says of daemons and links: nothing that is wrong or unknown counts as ready."""

import json
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from deploy.local import CuttableLink, StackState
from deploy.local.cli import stack_problems
from deploy.local.folder import claim
from deploy.local.links import LinkState
from deploy.local.stack_state import ServerRecord
from waybill.daemon.stack_daemons import DaemonStatus, read_daemons
from waybill.daemon.stack_folder import registered
from waybill.daemon.status_server import StatusServer, json_answer

Runs = Callable[[str, str, object], None]


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[Runs]:
    """Starts a daemon with a settings file of the folder, which answers this."""
    claim(tmp_path)
    with ExitStack() as held:

        def start(program: str, file: str, health: object) -> None:
            (tmp_path / file).touch()
            routes = {"/health": lambda: json_answer(json.dumps(health), is_good=False)}
            server = held.enter_context(StatusServer("127.0.0.1", 0, routes))
            held.enter_context(registered(program, tmp_path / file, "127.0.0.1", server.port))

        yield start


def by_file(folder: Path) -> dict[str, DaemonStatus]:
    return {Path(one.config).name: one for one in read_daemons(folder)}


def test_a_daemon_says_itself_what_is_wrong(tmp_path: Path, runs: Runs) -> None:
    runs("fleet-gateway run", "gateway-eu.toml", {"healthy": False, "last_error": "no broker"})
    runs("edge-agent run", "agent-eu.toml", {"healthy": False, "buffer": "stores", "uplink": "not connected"})
    runs("fleet-gateway run", "gateway-us.toml", {"healthy": True, "last_error": ""})
    runs("edge-agent run", "agent-us.toml", {"healthy": None, "uplink": "unknown"})
    found = by_file(tmp_path)
    assert {name: (one.state, one.problem) for name, one in found.items()} == {
        "gateway-eu.toml": ("not healthy", "no broker"),
        "agent-eu.toml": ("not healthy", "uplink: not connected"),
        "gateway-us.toml": ("healthy", ""),
        "agent-us.toml": ("unknown", "uplink: unknown"),
    }
    assert found["gateway-eu.toml"].next == f"fleet-gateway status --config {tmp_path / 'gateway-eu.toml'}"
    assert found["agent-eu.toml"].next == f"edge-agent status --config {tmp_path / 'agent-eu.toml'}"


def test_a_daemon_that_does_not_answer_or_ended_is_wrong_and_one_that_was_never_started_is_not(tmp_path: Path) -> None:
    claim(tmp_path)
    for name in ("gateway-eu.toml", "gateway-us.toml", "agent-eu.toml"):
        (tmp_path / name).touch()
    with pytest.raises(ValueError, match="x"), registered("fleet-gateway run", tmp_path / "gateway-us.toml"):
        raise ValueError("x")
    with registered("fleet-gateway run", tmp_path / "gateway-eu.toml", "127.0.0.1", 1):
        found = by_file(tmp_path)
    assert {name: (one.state, one.is_wrong) for name, one in found.items()} == {
        "gateway-eu.toml": ("no answer", True),
        "gateway-us.toml": ("ended", True),
        "agent-eu.toml": ("not started", False),
    }
    assert found["gateway-us.toml"].next == f"fleet-gateway run --config {tmp_path / 'gateway-us.toml'}"


LINK = CuttableLink(name="eu", port=2, target=3, control=4, secret="s")


def state(phase: str = "ready", server: str = "healthy", asked_s: float = 100.0) -> StackState:
    one = ServerRecord(name="pulsar-hq", state=server, pid=1, log=Path("hq.log"), addresses={})
    return StackState.model_validate(
        {"supervisor": os.getpid(), "phase": phase, "asked_s": asked_s, "servers": [one], "links": {"eu": LINK}}
    )


@pytest.mark.parametrize(
    ("now", "link", "daemon", "what"),
    [
        (state(), LinkState(), "healthy", []),
        (state(), LinkState(), "not started", []),
        (state(), LinkState(), "unknown", []),
        (state(), LinkState(), "ended", ["fleet-gateway run gateway-eu.toml"]),
        (state(), LinkState(cut=True), "healthy", ["link eu"]),
        (state(), None, "healthy", ["link eu"]),
        (state(server="not answering"), LinkState(), "healthy", ["pulsar-hq"]),
        (state(phase="stopping"), LinkState(), "healthy", ["stack"]),
        (state(asked_s=1.0), LinkState(), "healthy", ["stack"]),
    ],
)
def test_each_part_that_does_not_work_is_a_problem_with_a_next_command(
    now: StackState, link: LinkState | None, daemon: str, what: list[str]
) -> None:
    given = DaemonStatus.model_validate(
        {"program": "fleet-gateway run", "config": "/s/gateway-eu.toml", "state": daemon, "next": "start"}
    )
    found = stack_problems(now, [given], {"eu": link}, Path("/s"), 105.0)
    assert [one.what for one in found] == what
    assert all(one.next for one in found)
