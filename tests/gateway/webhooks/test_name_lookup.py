"""A name whose servers do not answer costs its time, and one thread."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from gateway.webhooks import signed_post as http_post
from gateway.webhooks.config import PostTimes
from gateway.webhooks.signed_post import NameLookup, post
from tests.waiting import PATIENCE

FOUND: list[tuple[Any, ...]] = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("203.0.113.9", 443))]


class SilentServers:
    """A resolver that hangs until it is let go."""

    def __init__(self) -> None:
        self.over, self.asked = threading.Event(), 0

    def __call__(self, host: str, port: int) -> list[tuple[Any, ...]]:
        self.asked += 1
        self.over.wait(30)
        return FOUND


@pytest.fixture
def silent() -> Iterator[SilentServers]:
    servers = SilentServers()
    yield servers
    servers.over.set()


def test_a_name_that_is_not_answered_ends_an_attempt_in_its_time(
    silent: SilentServers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_post, "addresses_of", NameLookup(silent))
    times = PostTimes(connect_s=0.2, read_s=1, total_s=1)
    began_s = time.monotonic()
    outcome = post("http://hooks.example/", {}, b"{}", times, None)
    assert (outcome.is_delivered, outcome.reason) == (False, "timeout")
    assert time.monotonic() - began_s < 2 * PATIENCE


def test_however_often_a_name_is_asked_for_it_keeps_one_thread_and_is_asked_anew_afterwards(
    silent: SilentServers,
) -> None:
    lookup = NameLookup(silent)
    for _ in range(20):
        with pytest.raises(TimeoutError):
            lookup("often.example", 443, 0.01)
    waiting = [one for one in threading.enumerate() if one.name == "looks up often.example"]
    assert (silent.asked, len(waiting)) == (1, 1)
    silent.over.set()
    assert lookup("often.example", 443, 10) == FOUND
    asked = silent.asked
    assert lookup("often.example", 443, 10) == FOUND
    assert silent.asked == asked + 1 or asked == 1


def test_a_name_that_is_nobodys_is_an_error_of_its_own() -> None:
    def nobody(_: str, __: int) -> list[tuple[Any, ...]]:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    with pytest.raises(socket.gaierror):
        NameLookup(nobody)("nobody.example", 443, 5)


def test_a_thread_that_cannot_be_started_is_an_error_of_this_attempt_and_not_of_later_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lookup = NameLookup(lambda _, __: FOUND)

    def full(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", full)
        with pytest.raises(OSError, match="no thread to look up hooks"):
            lookup("hooks.example", 443, 1.0)
    assert lookup("hooks.example", 443, 10.0) == FOUND
