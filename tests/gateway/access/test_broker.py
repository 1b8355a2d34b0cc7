"""The broker's process, which gets a signal only once it handles it, and its password, which is the guard's."""

import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway.access.broker import BrokerFiles, SessionGuard
from gateway.access.broker_log import BrokerLog, RefusedConnection, refused_connection
from gateway.access.config import AccessSettings, GuardedBroker
from gateway.access.daemon import write_broker_conf
from gateway.access.enrolment_service import enrolment_rules, name_at_enrolment
from gateway.errors import BrokerUnreachable, SessionNotEnded
from waybill.identity.claims import is_broker_password
from waybill.settings import SettingsError, parse

_IGNORES_NOTHING = "import sys; print(flush=True); sys.stdin.read()"
_HANDLES = "import signal, sys; signal.signal(signal.SIGHUP, lambda *_: None); " + _IGNORES_NOTHING


def files(folder: Path, pid: int, program: str, **more: Any) -> BrokerFiles:
    names = ("rules_file", "revocation_file", "password_file", "guard_socket", "guard_secret_file", "pid_file")
    (folder / "pid_file").write_text(f"{pid}\n")
    return BrokerFiles(GuardedBroker(program=program, **{name: folder / name for name in names}, **more), "eu", ())


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
        with pytest.raises(BrokerUnreachable, match="no signal is sent"):
            files(tmp_path, process.pid, "mosquitto").reload()
        assert process.poll() is None
        process.stdin.close() if process.stdin else None


def test_a_broker_whose_certificate_was_renewed_is_another_one_until_it_has_read_it(tmp_path: Path) -> None:
    tls = {name: tmp_path / f"{name}.pem" for name in ("ca", "certificate", "key")}
    server = {"conf_file": tmp_path / "conf", "folder": tmp_path, "tls": tls}
    broker = files(tmp_path, os.getpid(), Path("/proc/self/comm").read_text().strip(), server=server)
    before = broker.process()
    tls["certificate"].write_text("renewed")
    assert broker.process() != before
    former = signal.signal(signal.SIGHUP, lambda *_: None)
    try:
        assert broker.reload() == broker.process()
    finally:
        signal.signal(signal.SIGHUP, former)


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


SETTINGS = """
region = "eu"
[broker]
rules_file = "rules"
revocation_file = "lists"
password_file = "passwords"
guard_secret_file = "secret"
guard_socket = "/run/guard.sock"
pid_file = "/run/pid"
[broker.server]
conf_file = "{folder}/devices.conf"
folder = "/var/lib/queues"
bounds = {{ max_packet_mb = {packet_mb} }}
tls = {tls}
[registry]
tenants = ["acme"]
service_url = "pulsar+ssl://pulsar:6651"
unsigned = true
[authority]
folder = "pki"
"""
TLS = '{ ca = "ca.pem", certificate = "certificate.pem", key = "key.pem" }'


def settings(folder: Path, packet_mb: int = 8, tls: str = TLS) -> AccessSettings:
    text = SETTINGS.format(folder=folder, packet_mb=packet_mb, tls=tls)
    return parse(AccessSettings, text, "access.toml")


def test_a_configuration_follows_its_settings_and_is_written_only_when_it_changes(tmp_path: Path) -> None:
    file = tmp_path / "devices.conf"
    assert write_broker_conf(settings(tmp_path)) == [file]
    assert {"listener 8883", "crlfile lists", "require_certificate true"} <= set(file.read_text().splitlines())
    assert write_broker_conf(settings(tmp_path)) == []
    assert write_broker_conf(settings(tmp_path, packet_mb=4)) == [file]
    assert f"max_packet_size {4 << 20}\n" in file.read_text()
    # The key's path is no secret; who may not read the rules need not read this either.
    assert file.stat().st_mode & 0o777 == 0o640


def test_a_broker_that_could_not_start_so_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="a server has a certificate"):
        settings(tmp_path, tls='{ ca = "ca.pem" }')


BEGIN = "2026-11-23T15:05:25: "
NO_CERTIFICATE = f"{BEGIN}OpenSSL Error[0]: error:0A0000C7:SSL routines::peer did not return a certificate"
NOT_VERIFIED = f"{BEGIN}OpenSSL Error[0]: error:0A000086:SSL routines::certificate verify failed"


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (NO_CERTIFICATE, RefusedConnection.NO_CERTIFICATE),
        (NOT_VERIFIED, RefusedConnection.NOT_VERIFIED),
        (f"{BEGIN}Client claim@1 disconnected, not authorised.", RefusedConnection.NOT_AUTHORISED),
        (f"{BEGIN}OpenSSL Error[0]: error:0A00010B:SSL routines::wrong version number", RefusedConnection.TLS),
        (f"{BEGIN}OpenSSL Error[0]: error:0A000126:SSL routines::unexpected eof while reading", None),
        (f"{BEGIN}New connection from 127.0.0.1:46496 on port 27939.", None),
        (f"{BEGIN}New client connected from 127.0.0.1:1 as certificate verify failed (p2, c1, k10).", None),
        ("", None),
    ],
)
def test_a_line_says_why_a_connection_was_refused_or_nothing(line: str, reason: RefusedConnection | None) -> None:
    assert refused_connection(line) is reason


def test_each_line_is_counted_once_when_it_is_whole(tmp_path: Path) -> None:
    file = tmp_path / "log"
    log = BrokerLog(file)
    log.read()
    assert not log.refused
    file.write_text(f"{NO_CERTIFICATE}\n{NOT_VERIFIED}")
    log.read()
    log.read()
    assert log.refused == {RefusedConnection.NO_CERTIFICATE: 1}
    with file.open("a") as more:
        more.write("\n")
    log.read()
    assert log.refused == {RefusedConnection.NO_CERTIFICATE: 1, RefusedConnection.NOT_VERIFIED: 1}


def test_whoever_left_or_has_too_many_subscriptions_is_a_suspect_until_it_is_back(tmp_path: Path) -> None:
    file = tmp_path / "log"
    connected = "New client connected from 127.0.0.1:1 as {0} (p5, c1, k60, u'{1}')."
    lines = [
        *(f"Client acme/{name} disconnected." for name in ("left", "back")),
        "Client acme/lost closed its connection.",
        connected.format("acme/back", "acme/back"),
        # The guard's own connections make nobody a suspect.
        connected.format("acme/ended", "access@eu"),
        "Client acme/ended disconnected.",
        "x7 Denied SUBSCRIBE from acme/greedy",
        "Client gateway@eu-1 disconnected.",
    ]
    file.write_text("".join(f"{BEGIN}{line}\n" for line in lines))
    log = BrokerLog(file)
    log.read()
    assert [log.take_suspect() for _ in range(4)] == ["acme/greedy", "acme/lost", "acme/left", None]
    assert log.refused == {RefusedConnection.SUBSCRIPTIONS: 7}


@pytest.mark.parametrize("end", ["\u2028", "\x85", "\x0b", "\r"])
def test_a_topic_forges_no_other_line(tmp_path: Path, end: str) -> None:
    file = tmp_path / "log"
    denied = f"Denied PUBLISH from zeta/bus-1 (d0, q1, r0, m7, 'x{end}{NOT_VERIFIED}{end}', ... (8 bytes))"
    file.write_text(f"{BEGIN}{denied}\n", newline="")
    log = BrokerLog(file)
    log.read()
    assert not log.refused


@pytest.mark.parametrize(
    ("topic", "count"),
    [("acme/bus-1/ack", 2), ("acme/bus-1/batch", 2), ("zeta/bus-1/batch", 0), ("acme/bus-1/config", 0)],
)
def test_a_device_that_publishes_as_another_one_is_counted(tmp_path: Path, topic: str, count: int) -> None:
    file = tmp_path / "log"
    file.write_text(f"{BEGIN}x2 Denied PUBLISH from zeta/bus-1 (d0, q1, r0, m7, 'waybill/1/{topic}', ... (8 bytes))\n")
    log = BrokerLog(file)
    log.read()
    assert log.refused[RefusedConnection.FORGED] == count


Broker = Callable[[bytes], SessionGuard]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    """A guard of a broker that gives one answer, and ends the connection."""
    path, threads = tmp_path / "sock", []

    def answering(answer: bytes) -> SessionGuard:
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(path))
        listener.listen()

        def serve() -> None:
            with listener, listener.accept()[0] as connection:
                connection.recv(1024)
                connection.sendall(answer)

        threads.append(thread := threading.Thread(target=serve))
        thread.start()
        return SessionGuard(path, "access@eu", "secret")

    yield answering
    for thread in threads:
        thread.join(10)


@pytest.mark.parametrize("reason", [0x86, 0x87])
def test_a_broker_that_has_another_password_is_named_with_user_and_settings(broker: Broker, reason: int) -> None:
    guard = broker(bytes([0x20, 3, 0, reason, 0]))
    with pytest.raises(BrokerUnreachable, match=r"refuses access@eu at .*sock.*broker\.guard_secret_file") as raised:
        guard.end("acme/bus-1")
    assert not isinstance(raised.value, SessionNotEnded), "it is so of every device"


@pytest.mark.parametrize("flag", [0, 1])
def test_who_was_there_is_known_though_the_broker_hears_no_farewell(broker: Broker, flag: int) -> None:
    assert broker(bytes([0x20, 3, flag, 0, 0])).end_and_report("acme/bus-1") is bool(flag)


def test_a_broker_that_is_away_is_not_reached(tmp_path: Path) -> None:
    with pytest.raises(BrokerUnreachable):
        SessionGuard(tmp_path / "none", "access@eu", "secret").end("acme/bus-1")


def test_nobody_who_signs_names_guesses_what_the_daemon_is_called_at_the_enrolment_broker() -> None:
    names = {name_at_enrolment("eu", secret) for secret in ("one", "another")}
    assert len(names) == 2
    for name in names:
        assert re.fullmatch(r"access@eu-[0-9a-f]{16}", name)
    assert name_at_enrolment("eu", "one") in names, "after each start the same"


def test_a_claim_may_write_its_own_requests_and_read_their_answers_and_nothing_else() -> None:
    assert enrolment_rules("access@eu-0f") == (
        "user access@eu-0f\ntopic read waybill/enrol/1/+/request\ntopic write waybill/enrol/1/+/answer\n"
        "topic read factory/waybill/enrol/1/+/request\ntopic write factory/waybill/enrol/1/+/answer\n"
        "pattern write waybill/enrol/1/%u/request\npattern read waybill/enrol/1/%u/answer\n"
        "pattern write factory/waybill/enrol/1/%u/request\npattern read factory/waybill/enrol/1/%u/answer\n"
    )
