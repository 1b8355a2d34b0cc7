"""A broker's log has whom it refused, all of them, and nothing of the messages."""

import getpass
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deploy.local.mosquitto import mosquitto_program
from tests.waiting import PATIENCE, wait_until
from waybill.identity.broker_conf import broker_log_lines, conf_text
from waybill.mqtt.broker_log import MAX_COUNTED, MAX_SUBSCRIPTIONS, LogFilter, ask_broker

MESSAGES = b"""Received PUBLISH from acme/a (d0, q1, r0, m1, 'waybill/1/acme/a/batch', ... (8 bytes))
Sending PUBACK to acme/a (m1, rc0)
Received SUBSCRIBE from gateway@eu-1
\t$share/secret/waybill/1/+/+/batch (QoS 1)
No will message specified.
"""
KEPT = b"New client connected from 127.0.0.1:1 as acme/a (p5, c1, k60, u'acme/a').\n"


def denied(number: int, sender: str = "zeta/b", channel: str = "ack") -> bytes:
    topic = f"waybill/1/acme/{number}/{channel}"
    return f"Denied PUBLISH from {sender} (d0, q1, r0, m{number}, '{topic}', ... (8 bytes))\n".encode()


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def counted(written: bytes) -> int:
    found = re.findall(r"^\S+: (?:x(\d+) )?Denied PUBLISH from ", written.decode(), re.MULTILINE)
    return sum(int(times or 1) for times in found)


def test_topics_beyond_those_of_a_connection_are_counted_without_their_names() -> None:
    lines = LogFilter(Clock())
    asked = b"Received SUBSCRIBE from acme/a\n" + b"\tsecret (QoS 1)\n" * MAX_SUBSCRIPTIONS
    assert lines.feed(asked) == b""
    assert lines.feed(KEPT + asked) == b"1970-01-01T00:00:00: " + KEPT
    written = lines.feed(asked) + lines.feed(b"", is_last=True)
    denied_line = b"Denied SUBSCRIBE from acme/a\n"
    assert written == b"1970-01-01T00:00:00: " + denied_line + b"1970-01-01T00:00:00: x31 " + denied_line


@given(st.lists(st.integers(min_value=1, max_value=300)))
def test_wherever_the_broker_s_writes_are_cut_the_log_is_the_same(sizes: list[int]) -> None:
    whole, cut, text = LogFilter(Clock()), LogFilter(Clock()), (MESSAGES + KEPT + denied(1)) * 3
    parts = []
    for size in sizes:
        parts.append(cut.feed(text[: len(text) if not text else size]))
        text = text[size:]
    assert b"".join(parts) + cut.feed(text) == whole.feed((MESSAGES + KEPT + denied(1)) * 3)


def test_many_senders_at_once_are_counted_too_in_lines_that_are_bounded() -> None:
    clock = Clock()
    lines = LogFilter(clock)
    written = lines.feed(b"".join(denied(1, f"zeta/{n}") for n in range(5 * MAX_COUNTED)))
    clock.now_s = 2.0
    written += lines.feed(b"")
    assert counted(written) == 5 * MAX_COUNTED
    assert written.count(b"\n") < 1.1 * MAX_COUNTED


def test_a_line_without_an_end_is_not_kept_in_memory() -> None:
    lines = LogFilter(Clock())
    for _ in range(100):
        lines.feed(b"x" * 10_000)
    assert lines.feed(b"\n" + KEPT).endswith(KEPT)


def test_a_program_is_who_was_started_and_its_last_lines_are_written(tmp_path: Path) -> None:
    log = tmp_path / "log"
    program = "import os, sys; print(os.getpid()); print('Sending x'); sys.exit(3)"
    command = [sys.executable, "-m", "waybill.mqtt.broker_log", str(log), sys.executable, "-c", program]
    started = subprocess.Popen(command, stderr=subprocess.PIPE)
    _, _ = started.communicate(timeout=30 * PATIENCE)
    assert started.returncode == 3
    (line,) = log.read_text().splitlines()
    assert line.endswith(f": {started.pid}")


COMMAND = [sys.executable, "-m", "waybill.mqtt.broker_log"]


def test_a_broker_behind_a_control_socket_is_told_of_and_reads_its_files(tmp_path: Path) -> None:
    log, conf, control = tmp_path / "log", tmp_path / "conf", tmp_path / "control"
    lines = [f"listener 0 {tmp_path}/socket", "allow_anonymous true", f"user {getpass.getuser()}", *broker_log_lines()]
    conf.write_text(conf_text(lines))
    control.write_text("left by a broker that was killed")
    command = [*COMMAND, "--control", str(control), str(log), mosquitto_program(), "-c", str(conf)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as broker:
        try:
            wait_until(lambda: log.exists() and b" running" in log.read_bytes(), 20)
            state = ask_broker(str(control))
            assert (state.program, state.is_ready) == ("mosquitto", True)
            assert b"Reloading config" not in log.read_bytes()
            assert ask_broker(str(control), reload=True) == state
            wait_until(lambda: b"Reloading config" in log.read_bytes(), 20)
            assert (
                subprocess.run([*COMMAND, "--ask", str(control)], check=False, stdout=subprocess.DEVNULL).returncode
                == 0
            )
        finally:
            broker.terminate()
        assert broker.stdout is not None
        assert broker.stdout.read() == log.read_bytes()
        assert b" terminating\n" in log.read_bytes()
        assert broker.wait(20) == 0
    with pytest.raises(ConnectionRefusedError):
        ask_broker(str(control), reload=True)
    assert subprocess.run([*COMMAND, "--ask", str(control)], check=False, stderr=subprocess.DEVNULL).returncode == 1


def test_a_program_that_a_signal_would_end_gets_none(tmp_path: Path) -> None:
    control = tmp_path / "control"
    program = [sys.executable, "-c", "import time; print(flush=True); time.sleep(60)"]
    with subprocess.Popen(
        [*COMMAND, "--control", str(control), "/dev/null", *program], stdout=subprocess.PIPE
    ) as broker:
        try:
            wait_until(control.exists, 20)
            assert not ask_broker(str(control), reload=True).is_ready
            assert broker.poll() is None
        finally:
            broker.terminate()
        assert broker.wait(20) == 128 + signal.SIGTERM
