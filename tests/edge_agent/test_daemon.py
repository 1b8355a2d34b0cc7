"""What systemd and an operator see."""

import json
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from deploy.local import free_port
from edge_agent.agent import Agent, current_state
from edge_agent.config import AgentSettings
from edge_agent.errors import StoreForeign, StoreInUse
from edge_agent.inspection import exported_lines, read_status
from edge_agent.intake import intake_loop
from edge_agent.store.retention import drop_batch, oldest_rows
from edge_agent.text_tables import print_status
from tests.edge_agent.makers import DEVICE, WALL_MS, fill, missing_in, open_buffer, pending_record
from tests.edge_agent.process import AgentProcess
from tests.waiting import deadline_s, wait_until
from waybill.daemon.status_reader import fetch_status
from waybill.record import IntervalSet


def settings(folder: Path) -> AgentSettings:
    return AgentSettings.model_validate(
        {"device": {"id": DEVICE}, "uplinks": [{"region": "eu", "host": "127.0.0.1"}], "buffer": {"path": str(folder)}}
    )


def states(sock: socket.socket, seconds: float) -> str:
    sock.settimeout(seconds)
    return sock.recv(4096).decode()


def test_the_daemon_says_that_it_is_ready_that_it_lives_and_that_it_goes_also_with_an_unusable_uplink(tmp_path):
    missing = '[uplinks.tls]\nca = "/nowhere/ca.pem"\ncertificate = "/nowhere/device.pem"\nkey = "/nowhere/device.key"'
    agent = AgentProcess(tmp_path, free_port(), {"eu": free_port()}, tls=missing)
    agent.environment = {"NOTIFY_SOCKET": f"{tmp_path}/notify", "WATCHDOG_USEC": "400000"}
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(agent.environment["NOTIFY_SOCKET"])
        agent.start()
        try:
            assert states(sock, 20) == "READY=1"
            for _ in range(3):
                assert states(sock, 2.0).startswith("WATCHDOG=1\nSTATUS=no uplink"), "also without any broker"
            agent.signal(signal.SIGTERM)
            while (state := states(sock, 2.0)) != "STOPPING=1":
                assert state.startswith("WATCHDOG=1")
        finally:
            assert agent.stop() == 0


def test_status_counts_what_waits_what_is_lost_and_a_seq_that_is_nowhere(tmp_path):
    buffer = open_buffer(tmp_path)
    for first in (1, 11, 21):
        fill(buffer, range(first, first + 10), 1 + first // 20)

    def change(connection, changes):
        for row in oldest_rows(connection, 2, 1):
            drop_batch(connection, row, buffer.database.owner_of(row.id), "quota", changes)

    buffer.edit(change)
    buffer.acknowledge(buffer.epoch, IntervalSet([(1, 5)]))
    buffer.prune_acknowledged()
    state = read_status(settings(tmp_path))
    assert (state["head"], state["depth_records"], state["tombstones_waiting"]) == (30, 15, 10)
    assert (state["gaps"], state["acknowledged"], state["counters"]["lost_quota"]) == (0, 5, 10)
    assert state["classes"]["position"]["records"] == 15
    assert state["oldest_age_s"] > 0
    buffer.database.writer.execute("DELETE FROM batches WHERE id & 65535 = 11")
    assert read_status(settings(tmp_path))["gaps"] == missing_in(buffer) == 10


def test_an_agent_with_a_buffer_of_another_version_ends_as_with_wrong_settings_and_is_not_restarted(tmp_path):
    buffer = open_buffer(tmp_path / "buffer")
    buffer.database.writer.execute("PRAGMA user_version = 3")
    buffer.close()
    # Each uplink makes two lines of one kind at the start, and what the log suppressed of them is said at the end.
    unusable = 'username = "u"\npassword_file = "/nowhere"\n[uplinks.tls]\nca = "/nowhere"'
    agent = AgentProcess(tmp_path, free_port(), {f"region-{number}": 1 for number in range(16)}, tls=unusable)
    run = [sys.executable, "-m", "edge_agent", "run", "--config", str(agent.config)]
    ended = subprocess.run(run, capture_output=True, text=True, check=False, timeout=60)
    assert (ended.returncode, "the buffer has version 3" in ended.stderr) == (78, True)
    assert "log lines suppressed" in ended.stderr.splitlines()[-1]


def test_what_a_device_kept_for_its_former_tenant_can_be_exported_from_a_folder_of_its_own(tmp_path):
    former = settings(tmp_path)
    buffer = open_buffer(tmp_path)
    fill(buffer, range(1, 4), 0)
    buffer.close()
    moved = former.model_copy(update={"device": former.device.model_copy(update={"tenant": "zeta"})})
    with pytest.raises(StoreForeign, match=r"belongs to default/eu-0001, and the settings name zeta/eu-0001"):
        read_status(moved)
    Agent(moved).stop()
    state = read_status(moved)
    assert state["depth_records"] == 0
    assert state["counters"]["foreign_archived"] == 1
    (tmp_path / "former").mkdir()
    (tmp_path / "buffer.foreign-1").rename(tmp_path / "former" / "buffer.db")
    lines = exported_lines(settings(tmp_path / "former"))
    assert [json.loads(line)["tenant"] for line in lines] == ["default"] * 3


@pytest.mark.parametrize("moment", ["the command line is not loaded yet", "the daemon is being loaded"])
def test_a_reload_that_is_asked_for_during_the_start_is_done_after_it(tmp_path, moment):
    agent = AgentProcess(tmp_path, free_port(), {"eu": free_port()}, "[status]\nport = 0")
    agent.start()
    ends_s = deadline_s(60)
    here = Path(f"/proc/{agent.pid}")

    def until(done):
        while not done():
            assert time.monotonic() < ends_s, agent.log.read_text()
            time.sleep(0.001)

    def holds_reloads_back():
        blocked = next(line for line in (here / "status").read_text().splitlines() if line.startswith("SigBlk"))
        return int(blocked.split()[1], 16) & 1 << (signal.SIGHUP - 1)

    until(holds_reloads_back)
    if moment == "the daemon is being loaded":
        until(lambda: b"edge_agent.daemon" in (here / "cmdline").read_bytes())
    agent.signal(signal.SIGHUP)
    until(lambda: "settings loaded" in agent.log.read_text())
    assert agent.stop(10) == 0


def test_status_says_first_whether_the_link_works_and_then_a_dozen_values_at_most(tmp_path, capsys):
    agent = Agent(settings(tmp_path))
    fill(agent.buffer, range(1, 11), 1)
    state = {**read_status(agent.settings), "running": True, "uptime_s": 7_500.0, **current_state(agent)}
    agent.stop()
    capsys.readouterr()
    print_status(state | {"uplink": "silent", "region": "eu", "reloads_refused": 1, "pushed_settings": "none"})
    headline, *rows = capsys.readouterr().out.splitlines()
    assert headline == "default/eu-0001: running for 2 h; connected to eu, which does not acknowledge"
    assert [one.split("│")[2].strip() for one in rows if "position" in one] == ["10"]
    assert any("refused reloads" in one and "1, see the log" in one for one in rows)
    assert sum(one.startswith("│") for one in rows) <= len(state["classes"]) + 12


def test_a_reload_with_a_buffer_that_cannot_be_opened_changes_nothing_and_is_counted(tmp_path):
    port = free_port()
    agent = AgentProcess(tmp_path, free_port(), {"eu": free_port()}, f"[status]\nport = {port}")
    right = agent.config.read_text()
    (tmp_path / "file").touch()
    agent.start()
    try:
        wait_until(lambda: "started" in agent.log.read_text(), 30)
        agent.config.write_text(right.replace(f"{tmp_path}/buffer", f"{tmp_path}/file/buffer"))
        agent.signal(signal.SIGHUP)
        wait_until(lambda: "the current ones stay" in agent.log.read_text(), 30)
        assert f"buffer.path: {tmp_path}/file/buffer cannot be used" in agent.log.read_text()
        status = fetch_status("127.0.0.1", port, "status", timeout_s=10)
        assert (status["running"], status["reloads_refused"]) == (True, 1)
        agent.config.write_text(right.replace(f"{tmp_path}/buffer", f"{tmp_path}/other"))
        agent.signal(signal.SIGHUP)
        wait_until(lambda: agent.log.read_text().count('"started"') == 2, 30)
        assert agent.status()["head"] == 0, "the other buffer is in use"
    finally:
        assert agent.stop(10) == 0


def test_an_agent_whose_commit_takes_longer_than_it_may_keeps_the_buffer_to_itself(tmp_path, monkeypatch):
    """What `reload` does then is to end the process; here the commit ends after all."""
    agent = Agent(settings(tmp_path))
    began, may_end = threading.Event(), threading.Event()

    def slow(_self: object) -> None:
        agent.buffer.commit([pending_record(1)], WALL_MS)
        began.set()
        assert may_end.wait(10)
        agent.buffer.commit([pending_record(2)], WALL_MS)

    monkeypatch.setattr(intake_loop.IntakeLoop, "_listen", slow)
    agent.start()
    assert began.wait(10)
    assert not agent.stop(0.05)
    with pytest.raises(StoreInUse):
        Agent(settings(tmp_path))
    may_end.set()
    assert agent.stop(10)
    again = Agent(settings(tmp_path))
    assert (again.buffer.head, again.buffer.epoch) == (2, agent.buffer.epoch)
    assert again.stop()
