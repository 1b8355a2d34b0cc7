"""Ports keep their names, a folder belongs to one stack, and other processes read what it says."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from deploy.local import PortBook, StackInUse, StackNotRunning, StackState
from deploy.local.state import LinkRecord, ServerRecord, hold, is_held


def state() -> StackState:
    server = ServerRecord(
        name="pulsar-hq",
        kind="pulsar",
        state="healthy",
        pid=os.getpid(),
        log=Path("hq.log"),
        addresses={"service_url": "pulsar://127.0.0.1:1"},
    )
    link = LinkRecord(port=2, target=3, control=4)
    return StackState(pid=os.getpid(), phase="ready", started_s=0.0, servers=[server], links={"eu": link})


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
        assert PortBook(tmp_path / "ports.json").port("a") != port


def test_a_folder_belongs_to_one_stack_at_a_time(tmp_path: Path) -> None:
    assert not is_held(tmp_path)
    with hold(tmp_path):
        assert is_held(tmp_path)
        with pytest.raises(StackInUse, match="waybill down"), hold(tmp_path):
            pass
    assert not is_held(tmp_path)


def test_the_state_is_read_back_while_the_stack_runs(tmp_path: Path) -> None:
    with hold(tmp_path):
        state().save(tmp_path)
        read = StackState.load(tmp_path)
    assert read == state()
    assert read.address("pulsar-hq", "service_url") == "pulsar://127.0.0.1:1"
    assert read.link("eu").port == 2
    assert read.servers[0].memory_bytes > 0


def test_a_state_that_was_left_behind_is_not_a_running_stack(tmp_path: Path) -> None:
    state().save(tmp_path)
    with pytest.raises(StackNotRunning, match="waybill up"):
        StackState.load(tmp_path)


def test_an_unknown_server_is_named_with_the_known_ones() -> None:
    with pytest.raises(KeyError, match="it has pulsar-hq"):
        state().address("pulsar-dr", "service_url")
