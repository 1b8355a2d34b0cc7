"""Who was not let in is counted once, whatever a client calls itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.access.broker_log import (
    BrokerLog,
    RefusedConnection,
    refused_connection,
)

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


def denied(topic: str, *, sender: str = "zeta/bus-1", count: str = "") -> str:
    return f"{BEGIN}{count}Denied PUBLISH from {sender} (d0, q1, r0, m7, '{topic}', ... (8 bytes))"


@pytest.mark.parametrize("end", ["\u2028", "\x85", "\x0b", "\r"])
def test_a_topic_forges_no_other_line(tmp_path: Path, end: str) -> None:
    file = tmp_path / "log"
    file.write_text(denied(f"x{end}{NOT_VERIFIED}{end}{denied('a/ack', sender='acme/bus-1')}") + "\n", newline="")
    log = BrokerLog(file)
    log.read()
    assert not log.refused
    assert [one.sender for one in log.last] == ["zeta/bus-1"]


def test_refused_publications_are_counted_by_kind_and_the_last_ones_kept(tmp_path: Path) -> None:
    file = tmp_path / "log"
    file.write_text("\n".join([denied(f"waybill/1/acme/{n}/ack", count="x2 ") for n in range(60)]) + "\n")
    log = BrokerLog(file)
    log.read()
    assert log.publications == {"ack": 120}
    assert [one.topic for one in log.last] == [f"waybill/1/acme/{n}/ack" for n in range(10, 60)]
