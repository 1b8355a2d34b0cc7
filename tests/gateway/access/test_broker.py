"""The broker's process, which gets a signal only once it handles it, and its password, which is the guard's."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from gateway.access.broker import BrokerFiles
from gateway.access.config import GuardedBroker
from gateway.errors import BrokerUnreachable
from waybill.identity.claims import is_broker_password

_IGNORES_NOTHING = "import sys; print(flush=True); sys.stdin.read()"
_HANDLES = "import signal, sys; signal.signal(signal.SIGHUP, lambda *_: None); " + _IGNORES_NOTHING


def files(folder: Path, pid: int, program: str) -> BrokerFiles:
    names = ("rules_file", "revocation_file", "password_file", "guard_socket", "guard_secret_file")
    return BrokerFiles(GuardedBroker(pid=pid, program=program, **{name: folder / name for name in names}), "eu", ())


@pytest.mark.parametrize(("code", "is_ready"), [(_IGNORES_NOTHING, False), (_HANDLES, True)])
def test_a_broker_that_is_still_starting_gets_no_signal_that_would_end_it(
    tmp_path: Path, code: str, is_ready: bool
) -> None:
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        name = Path(f"/proc/{process.pid}/comm").read_text().strip()
        broker = files(tmp_path, process.pid, name)
        if is_ready:
            assert broker.reload().pid == process.pid
        else:
            with pytest.raises(BrokerUnreachable, match="not ready"):
                broker.reload()
        with pytest.raises(BrokerUnreachable, match="gets no signal"):
            files(tmp_path, process.pid, "mosquitto").reload()
        assert process.poll() is None
        process.stdin.close() if process.stdin else None


def is_password_of_secret(folder: Path) -> bool:
    ((user, password),) = (line.split(":", 1) for line in (folder / "password_file").read_text().splitlines())
    return user == "access@eu" and is_broker_password((folder / "guard_secret_file").read_text(), password)


@pytest.mark.parametrize("lost", ["guard_secret_file", "password_file"])
def test_the_broker_has_the_password_of_the_guard_whichever_file_was_lost(tmp_path: Path, lost: str) -> None:
    broker = files(tmp_path, 2, "mosquitto")
    broker.open_guard()
    assert is_password_of_secret(tmp_path)
    (tmp_path / lost).unlink()
    broker.open_guard()
    assert is_password_of_secret(tmp_path)
