"""A daemon serves its status, ends at a signal in order, and does not go on without one of its threads."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from types import SimpleNamespace

import httpx
import pytest
from prometheus_client import CollectorRegistry, Counter
from pydantic import BaseModel

from deploy.local import free_port
from waybill.daemon.errors import AddressTaken, ThreadEnded
from waybill.daemon.service import run_components, serve_status
from waybill.daemon.status_server import StatusServer, json_answer


class Status(BaseModel):
    healthy: bool | None = None


class Component:
    def __init__(self) -> None:
        self.is_running = False

    def start(self) -> None:
        self.is_running = True


@pytest.fixture
def registry() -> CollectorRegistry:
    made = CollectorRegistry()
    Counter("turns_total", "", registry=made).inc()
    return made


@pytest.fixture
def server(registry: CollectorRegistry) -> Iterator[StatusServer]:
    hook = threading.excepthook
    with serve_status(SimpleNamespace(host="127.0.0.1", port=0), registry, Status, lambda: True) as running:
        yield running
    threading.excepthook = hook


@pytest.mark.parametrize(
    ("healthy", "alive", "codes"),
    [(True, True, (200, 200)), (None, True, (503, 200)), (False, True, (503, 200)), (True, False, (503, 503))],
)
def test_health_is_good_only_when_it_is_known_and_the_threads_turn(
    registry: CollectorRegistry, healthy: bool | None, alive: bool, codes: tuple[int, int]
) -> None:
    endpoint, more = SimpleNamespace(host="127.0.0.1", port=free_port()), {"/more": lambda: json_answer("{}")}
    with serve_status(endpoint, registry, lambda: Status(healthy=healthy), lambda: alive, more):
        base = f"http://127.0.0.1:{endpoint.port}"
        assert tuple(httpx.get(f"{base}{path}").status_code for path in ("/health", "/alive")) == codes
        assert httpx.get(f"{base}/status").json() == {"healthy": healthy}
        assert "turns_total 1.0" in httpx.get(f"{base}/metrics").text
        assert [httpx.get(f"{base}{path}").status_code for path in ("/more", "/nothing")] == [200, 404]
        with pytest.raises(AddressTaken, match=f"{endpoint.port}"):
            serve_status(endpoint, registry, Status, lambda: True)


def test_a_signal_ends_it_after_its_components_ran(server: StatusServer) -> None:
    part, updates = Component(), list[float]()

    def turn(stop: threading.Event) -> None:
        assert part.is_running
        os.kill(os.getpid(), signal.SIGTERM)
        stop.wait(5)

    before = signal.getsignal(signal.SIGTERM)
    run_components([part], server, turn=turn, update=updates.append)
    assert len(updates) == 1
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_component_that_ends_and_a_thread_that_raises_end_it(server: StatusServer) -> None:
    part = Component()

    def end(_: threading.Event) -> None:
        part.is_running = False

    with pytest.raises(ThreadEnded, match="a thread of Component ended"):
        run_components([part], server, turn=end, update=lambda _: None)

    def fail() -> None:
        raise ValueError("no more")

    def break_a_thread(_: threading.Event) -> None:
        thread = threading.Thread(target=fail, name="reads")
        thread.start()
        thread.join()

    with pytest.raises(ThreadEnded, match="the thread reads ended with ValueError: no more"):
        run_components([Component()], server, turn=break_a_thread, update=lambda _: None)
