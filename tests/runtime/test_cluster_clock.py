"""Comparing our clock with a cluster's, by the date of an HTTP answer of whichever kind."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from email.utils import formatdate
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tokens import token_file
from waybill.pulsar import cluster_clock
from waybill.pulsar.cluster_clock import ClockDiffers, ClockUnknown, NotLetIn, check_clock, stated_moment_s
from waybill.pulsar.pulsar_client import PulsarAccess

NOBODY = PulsarAccess()


@contextmanager
def answering(answer: bytes) -> Iterator[str]:
    """An address where whoever asks gets these bytes."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(answer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}"
        thread.join(5)


def dated(seconds_off: float) -> bytes:
    return f"HTTP/1.1 403 Forbidden\r\ndate: {formatdate(time.time() + seconds_off, usegmt=True)}\r\n\r\n".encode()


def test_the_clock_of_a_cluster_is_that_of_its_first_host_that_answers() -> None:
    with answering(dated(0)) as url:
        check_clock(f"http://127.0.0.1:1,{url.removeprefix('http://')}", NOBODY)


@pytest.mark.parametrize(("off_s", "said"), [(-40 * 86_400, "ahead of"), (70, "behind")])
def test_a_clock_that_is_off_by_more_than_a_minute_may_not_and_hears_by_how_much(off_s: float, said: str) -> None:
    with answering(dated(off_s)) as url, pytest.raises(ClockDiffers, match=said) as differs:
        check_clock(url, NOBODY)
    assert differs.value.ahead_s == pytest.approx(-off_s, abs=3)


@pytest.mark.parametrize("date", [b"", b"Date: Sun, 06 Nov 1994 08:49:37 GMT\r\n"])
def test_who_is_not_taken_for_who_we_say_that_we_are_is_refused_whatever_the_date(tmp_path: Path, date: bytes) -> None:
    answer = b"HTTP/1.1 401 Unauthorized\r\n" + date + b"\r\n<html>"
    with answering(answer) as url, pytest.raises(NotLetIn, match="has ended, or another issuer signed it"):
        check_clock(url, NOBODY)
    access = PulsarAccess(token_file=token_file(tmp_path, "jobs", ends_in_s=-5))
    with answering(answer) as url, pytest.raises(NotLetIn, match=r"token of jobs in .* ended at"):
        check_clock(url, access)


def test_an_answer_that_never_ends_is_given_up_when_the_time_is_over() -> None:
    ours, theirs = socket.socketpair()
    theirs.sendall(b"HTTP/1.1 200 OK\r\n")
    with ours, theirs, pytest.raises((ClockUnknown, TimeoutError)):
        cluster_clock._head(ours, time.monotonic() + 0.1)


@given(st.binary(max_size=200).map(lambda rest: b"HTTP/1.1 200 OK\r\nDate: " + rest))
def test_whatever_answers_has_a_moment_or_none(head: bytes) -> None:
    try:
        assert isinstance(stated_moment_s(head), float)
    except ClockUnknown:
        return
