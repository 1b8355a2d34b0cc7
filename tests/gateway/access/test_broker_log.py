"""Who was not let in is counted once, whatever a client calls itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.access.broker_log import BrokerLog, RefusedConnection, refused_connection

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


def test_a_new_log_is_read_from_its_beginning(tmp_path: Path) -> None:
    file = tmp_path / "log"
    file.write_text(f"{NOT_VERIFIED}\n{NOT_VERIFIED}\n")
    log = BrokerLog(file)
    log.read()
    file.write_text(f"{NOT_VERIFIED}\n")
    log.read()
    assert log.refused == {RefusedConnection.NOT_VERIFIED: 3}


def test_a_line_without_end_does_not_stop_the_counting(tmp_path: Path) -> None:
    file = tmp_path / "log"
    file.write_text("x" * (2 << 20) + f"\n{NOT_VERIFIED}\n")
    log = BrokerLog(file)
    for _ in range(3):
        log.read()
    assert log.refused == {RefusedConnection.NOT_VERIFIED: 1}
