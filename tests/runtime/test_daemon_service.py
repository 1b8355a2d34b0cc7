"""A daemon serves its status, ends at a signal in order, and does not go on without one of its threads."""

import os
import re
import select
import signal
import threading
import time
import tomllib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import httpx
import pytest
import structlog
from prometheus_client import CollectorRegistry, Counter
from pydantic import BaseModel

from deploy.local import free_port
from waybill.daemon.errors import AddressTaken, ThreadEnded
from waybill.daemon.logs import BURST, LineLimit
from waybill.daemon.process import close_within
from waybill.daemon.service import run_components, serve_status
from waybill.daemon.signals import WakeUp, handle_signals, raise_on_signals, stop_on_signals
from waybill.daemon.status_reader import StatusEndpoint
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
    with serve_status(StatusEndpoint.model_construct(port=0), registry, Status, lambda: True) as running:
        yield running
    threading.excepthook = hook


@pytest.mark.parametrize(
    ("healthy", "alive", "codes"),
    [
        (True, True, (200, 200, 200)),
        (None, True, (503, 200, 200)),
        (False, True, (503, 503, 200)),
        (True, False, (503, 503, 503)),
    ],
)
def test_health_is_good_only_when_it_is_known_and_the_threads_turn(
    registry: CollectorRegistry, healthy: bool | None, alive: bool, codes: tuple[int, int, int]
) -> None:
    endpoint, more = StatusEndpoint(port=free_port()), {"/more": lambda: json_answer("{}")}
    with serve_status(endpoint, registry, lambda: Status(healthy=healthy), lambda: alive, more):
        base = f"http://127.0.0.1:{endpoint.port}"
        assert tuple(httpx.get(f"{base}{path}").status_code for path in ("/health", "/ready", "/alive")) == codes
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


ROOT = Path(__file__).resolve().parents[2]
ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def handlers() -> list[object]:
    return [signal.getsignal(number) for number in ENDING]


@pytest.mark.parametrize(
    "handling",
    [
        lambda: handle_signals(ENDING, lambda number: pytest.fail(str(number))),
        stop_on_signals,
        lambda: raise_on_signals(ENDING, SystemExit(0)),
    ],
)
def test_the_former_handlers_are_back_afterwards_also_after_an_error(
    handling: Callable[[], AbstractContextManager[object]],
) -> None:
    before, inside = handlers(), list[object]()

    def fail_inside() -> None:
        with handling():
            inside.extend(handlers())
            raise LookupError

    with pytest.raises(LookupError):
        fail_inside()
    assert inside != before
    assert handlers() == before


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_sets_the_event_also_after_another_library_took_it(number: signal.Signals) -> None:
    with (
        stop_on_signals() as stop,
        handle_signals((number,), lambda _: pytest.fail("it was taken back")),
        stop_on_signals(stop) as same,
    ):
        assert same is stop
        signal.raise_signal(number)
        assert stop.wait(10)


def test_the_first_signal_raises_and_one_that_comes_while_everything_is_stopped_does_nothing() -> None:
    stopped = []

    def run() -> None:
        with raise_on_signals(ENDING, SystemExit(0)):
            try:
                signal.raise_signal(signal.SIGTERM)
            finally:
                signal.raise_signal(signal.SIGINT)
                stopped.append("in order")

    with pytest.raises(SystemExit):
        run()
    assert stopped == ["in order"]


def test_no_other_module_sets_a_handler() -> None:
    packages = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]
    setting = {
        str(path.relative_to(ROOT))
        for package in packages["root_packages"]
        for path in (ROOT / package).rglob("*.py")
        if re.search(r"\bsignal\.signal\b", path.read_text(encoding="utf-8"))
    }
    assert setting == {"waybill/daemon/signals.py"}


def is_awake(wake_up: WakeUp, timeout_s: float = 0.0) -> bool:
    return bool(select.select([wake_up.socket], [], [], timeout_s)[0])


def test_nothing_that_another_thread_hands_over_before_it_wakes_is_missed() -> None:
    wake_up, handed, taken = WakeUp(), [0], 0

    def hand_over() -> None:
        for number in range(1, 5001):
            handed[0] = number
            wake_up.wake()

    thread = threading.Thread(target=hand_over)
    thread.start()
    while taken < 5000:
        assert is_awake(wake_up, 30), f"asleep with {handed[0] - taken} waiting"
        wake_up.clear()
        taken = handed[0]
    thread.join()
    wake_up.close()


def test_signals_wake_and_are_collected_while_they_are_asked_for_and_then_go_to_whom_they_went_before() -> None:
    wake_up, before = WakeUp(), signal.getsignal(signal.SIGHUP)
    with wake_up.on_signals((signal.SIGHUP,)) as seen:
        os.kill(os.getpid(), signal.SIGHUP)
        assert is_awake(wake_up, 30)
        assert seen == {signal.SIGHUP}
    assert signal.getsignal(signal.SIGHUP) is before
    wake_up.close()


class LogClock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def lines(limit: LineLimit, count: int, **values: Any) -> list[Any]:
    passed = []
    for _ in range(count):
        try:
            passed.append(limit(None, "warning", {"event": "refused", **values}))
        except structlog.DropEvent:
            continue
    return passed


def test_a_flood_of_one_kind_is_cut_and_counted_and_other_kinds_pass() -> None:
    clock = LogClock()
    limit = LineLimit(clock)
    assert len(lines(limit, 3000)) == BURST
    assert limit(None, "warning", {"event": "subscribed"}) == {"event": "subscribed"}
    assert limit(None, "error", {"event": "refused"}) == {"event": "refused"}, "another level is another kind"
    clock.now_s = 1.0
    assert lines(limit, 5)[0]["suppressed"] == 3000 - BURST
    assert limit.take_suppressed() == {"warning refused": 4}
    assert limit.take_suppressed() == {}


def test_all_are_closed_at_once_and_one_that_hangs_is_left_when_the_time_is_over() -> None:
    closed, hangs = list[int](), threading.Event()
    began_s = time.monotonic()
    assert not close_within([lambda: closed.append(1), hangs.wait, hangs.wait, lambda: closed.append(2)], 0.2)
    assert (sorted(closed), 0.1 < time.monotonic() - began_s < 5) == ([1, 2], True)
    hangs.set()
    assert close_within([hangs.wait, lambda: closed.append(3)])
    assert closed[-1] == 3
