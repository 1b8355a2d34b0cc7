"""The process around the loop: a thread that ends takes it with it, and a signal ends it in good order."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator

import pytest

from deploy.local import free_port
from gateway import Service
from gateway.status import read_status
from tests.gateway.sides import FakeBroker
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
