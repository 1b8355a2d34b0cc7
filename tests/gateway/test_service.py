"""The process around the loop: a thread that ends takes it with it, and a signal ends it in good order."""

import os
import signal
import threading
from collections.abc import Iterator
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.exposition import generate_latest

from deploy.local import free_port
from gateway.metrics import Latencies
from gateway.service import BrokerLink, Service
from gateway.status import read_status
from tests.gateway.sides import FakeBroker, Region
from tests.gateway.strategies import settings
from waybill.daemon.errors import ThreadEnded


@pytest.fixture
def service() -> Iterator[Service]:
    """A gateway whose broker takes connections and says nothing, and without a Pulsar."""
    broker, hook = FakeBroker(), threading.excepthook
    mqtt = {"host": "127.0.0.1", "port": broker.port}
    unreachable = {"tenant": "fleet", "service_url": f"pulsar://127.0.0.1:{free_port()}", "operation_timeout_s": 1}
    made = settings(status={"port": free_port()}, mqtt=mqtt, pulsar=unreachable, log={"level": "error"})
    yield Service(made, lambda: made.drain)
    threading.excepthook = hook
    broker.close()


def after_the_first_turn(service: Service, monkeypatch: pytest.MonkeyPatch, act: object) -> None:
    """Calls `act` in the main thread when the loop has turned once."""
    run_once = service._loop.run_once

    def run_and_act() -> None:
        monkeypatch.setattr(service._loop, "run_once", run_once)
        run_once()
        act()  # type: ignore[operator]

    monkeypatch.setattr(service._loop, "run_once", run_and_act)


def test_a_thread_that_ends_takes_the_gateway_with_it(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise ValueError("no more")

    def end_a_thread() -> None:
        thread = threading.Thread(target=fail, name="pulsar-close")
        thread.start()
        thread.join()

    after_the_first_turn(service, monkeypatch, end_a_thread)
    with pytest.raises(ThreadEnded, match="pulsar-close ended with ValueError: no more"):
        service.run()


def test_a_gateway_that_never_had_a_connection_ends_at_a_signal_and_answers_until_then(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def ask_and_stop() -> None:
        seen.append(read_status(service._settings.status))
        os.kill(os.getpid(), signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    after_the_first_turn(service, monkeypatch, ask_and_stop)
    service.run()
    assert [(it.healthy, it.last_error.startswith(("opening Pulsar at", "no producer"))) for it in seen] == [
        (False, True)
    ]
    assert signal.getsignal(signal.SIGTERM) == before


def link() -> BrokerLink:
    mqtt = settings(mqtt={"host": "h", "backoff_max_s": 15, "connect_timeout_s": 5}).mqtt
    return BrokerLink("gateway-eu-1", mqtt, lambda: 1.0, 0.0)


def connect_for(made: BrokerLink, now_s: float, lasted_s: float, reason: str = "Session taken over") -> float:
    """Connect as soon as it is due; when it ended."""
    while not made.is_due(now_s):
        now_s += 0.1
    made.on_attempt(now_s)
    made.on_connected(now_s)
    made.on_ended(reason, now_s + lasted_s)
    return now_s + lasted_s


def test_connections_that_end_soon_slow_down_and_name_the_likely_reason() -> None:
    made, now_s = link(), 0.0
    began = []
    for _ in range(6):
        now_s = connect_for(made, now_s, 0.3)
        began.append(now_s)
    gaps = [after - before for before, after in pairwise(began)]
    assert gaps == sorted(gaps)
    assert gaps[-1] > 3
    assert "'gateway-eu-1'" in made.problem
    connect_for(made, now_s, 31.0, "gone")
    assert made.problem == "", "a connection that lasted"


@pytest.fixture
def region() -> Iterator[Region]:
    made = Region(FakeBroker(greets=False))
    yield made
    made.close()


def test_a_broker_that_does_not_answer_is_given_up_after_the_timeout_and_tried_again(region: Region) -> None:
    region.until(lambda: region.broker.connections == 1)
    region.now_s += 4.9
    region.turn()
    assert region.status.last_error == f"connecting to the MQTT broker at 127.0.0.1:{region.broker.port}"
    region.now_s += 1.1
    region.turn()
    region.now_s += 1
    region.turn()
    assert region.status.last_error == "the MQTT broker does not answer in time"
    region.broker.greets = True
    region.connect()
    assert region.broker.connections > 1
    assert region.status.healthy


BOUNDS_S = (0.002, 0.05, 1, 10)
SECONDS = st.sampled_from([0.0, 0.001, 0.002, 0.05, 0.5, 1.0, 10.0, 11.0]) | st.floats(0, 20)


def shown(registry: CollectorRegistry) -> list[str]:
    return [line for line in generate_latest(registry).decode().splitlines() if "_created" not in line]


@given(st.lists(SECONDS))
def test_it_shows_what_the_library_s_histogram_shows(values: list[float]) -> None:
    own, theirs = CollectorRegistry(), CollectorRegistry()
    latencies = Latencies("waiting_seconds", "How long", BOUNDS_S)
    own.register(latencies)
    histogram = Histogram("waiting_seconds", "How long", registry=theirs, buckets=BOUNDS_S)
    latencies.observe(values)
    for value in values:
        histogram.observe(value)
    assert shown(own) == shown(theirs)
