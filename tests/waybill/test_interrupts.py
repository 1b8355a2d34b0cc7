"""Ctrl-C at a command whose cluster does not answer: it says so at once, and ends."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.waiting import PATIENCE

HANGS = """
import sys, threading, time
from waybill.commands import says_interrupt
never = threading.Event()
with says_interrupt("waybill device"):
    threading.Thread(target=never.wait, daemon=True).start()
    try:
        print("ready", flush=True)
        time.sleep(60)
    except KeyboardInterrupt:
        time.sleep(float(sys.argv[1]))
        print("closed")
        raise SystemExit(130)
"""


def test_an_interrupt_is_answered_at_once_and_what_hangs_is_not_waited_for() -> None:
    command = [sys.executable, "-c", HANGS, "1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        assert process.stderr.readline() == "\n"
        assert "waybill device: interrupted; closing connections" in process.stderr.readline()
        assert process.poll() is None, "it was said before everything was closed"
        assert process.stdout.read() == "closed\n"
        assert process.wait(20 * PATIENCE) == 130


def test_who_was_started_with_the_signal_ignored_goes_on() -> None:
    code = "import time; from waybill.commands import says_interrupt\nwith says_interrupt('x'):\n"
    code += "    print('ready', flush=True); time.sleep(0.5); print('done')"
    start = ["sh", "-c", 'trap "" INT; exec "$0" "$@"', sys.executable, "-c", code]
    with subprocess.Popen(start, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        os.kill(process.pid, signal.SIGINT)
        assert (process.stdout.read(), process.wait()) == ("done\n", 0)


@pytest.fixture
def silent_cluster() -> Iterator[str]:
    """Its connections are never accepted by anybody, and so never answered."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(50)
        yield f"127.0.0.1:{server.getsockname()[1]}"


def test_a_command_that_waits_for_a_cluster_ends_within_seconds(silent_cluster: str, tmp_path: Path) -> None:
    config = tmp_path / "operator.toml"
    config.write_text(
        f'admin_url = "http://{silent_cluster}"\nservice_url = "pulsar://{silent_cluster}"\nregions = ["eu"]\n'
        'tenants = ["acme"]\nunsigned = true\noperator = "bea"\n'
    )
    command = [sys.executable, "-m", "waybill", "device", "list", "-c", str(config)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert "reading the registry" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        began_s = time.monotonic()
        assert "interrupted; closing connections" in process.stderr.readline() + process.stderr.readline()
        assert time.monotonic() - began_s < 2 * PATIENCE
        assert process.wait(30 * PATIENCE) == 130
        assert process.stderr.read() == ""
        assert time.monotonic() - began_s < 15 * PATIENCE
