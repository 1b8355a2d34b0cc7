"""Daemons register in the folder of a stack; who died is told from who stopped."""

import subprocess
import sys
from pathlib import Path

import pytest

from waybill.commands import stack_option
from waybill.daemon.stack_folder import MARK, STACK_VARIABLE, Registration, registered, registrations

DAEMON = """
import sys
from pathlib import Path
from waybill.daemon.stack_folder import registered
with registered("fleet-gateway run", Path(sys.argv[1]), "127.0.0.1", 9):
    print("runs", flush=True)
    sys.stdin.readline()
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    (tmp_path / MARK).touch()
    return tmp_path / "gateway-eu.toml"


def only(config: Path) -> Registration:
    (found,) = registrations(config.parent)
    return found


def test_a_killed_daemon_stays_as_one_that_does_not_run(config: Path) -> None:
    command = [sys.executable, "-c", DAEMON, str(config)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as daemon:
        assert daemon.stdout is not None
        assert daemon.stdout.readline() == "runs\n"
        assert only(config) == Registration("fleet-gateway run", str(config), daemon.pid, "127.0.0.1:9", True)
        daemon.kill()
    assert only(config).is_running is False
    assert only(config).command == f"fleet-gateway run --config {config}"


@pytest.mark.parametrize("ends", [SystemExit(0), KeyboardInterrupt(), None])
def test_a_daemon_that_stops_in_order_leaves_nothing(config: Path, ends: BaseException | None) -> None:
    try:
        with registered("fleet-gateway run", config):
            assert only(config).is_running
            if ends is not None:
                raise ends
    except (SystemExit, KeyboardInterrupt):
        pass
    assert registrations(config.parent) == []


def test_a_daemon_that_fails_leaves_why(config: Path) -> None:
    with pytest.raises(ValueError, match="no broker"), registered("fleet-gateway run", config):
        raise ValueError("no broker")
    assert (only(config).is_running, only(config).error) == (False, "ValueError: no broker")
    with registered("fleet-gateway run", config):
        assert (only(config).is_running, only(config).error) == (True, "")


def test_nothing_is_written_beside_settings_that_are_of_no_stack(tmp_path: Path) -> None:
    with registered("edge-agent run", tmp_path / "agent.toml"):
        assert [*tmp_path.iterdir()] == []


def test_a_second_process_with_the_same_settings_leaves_the_first_ones_file(config: Path) -> None:
    with registered("fleet-gateway run", config, "first", 1):
        with registered("fleet-gateway run", config, "second", 2):
            pass
        assert (only(config).status, only(config).is_running) == ("first:1", True)


def test_the_folder_of_a_stack_is_an_option_of_its_commands_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(STACK_VARIABLE, "before")
    assert stack_option("device", ["device", "list", "--folder", "a", "--json"]) == ["device", "list", "--json"]
    assert stack_option("cloud-jobs", ["usage", "--folder=b"]) == ["usage"]
    assert stack_option("pki", ["pki", "issue", "--folder", "c"]) == ["pki", "issue", "--folder", "c"]
    assert stack_option("device", ["device", "list", "--folder"]) == ["device", "list", "--folder"]
