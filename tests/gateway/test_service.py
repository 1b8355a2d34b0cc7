"""One bad message, one bad receipt or one dead thread: what the loop does about each."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from math import isnan
from pathlib import Path
from typing import Any

import pytest

from deploy.local import free_port
from gateway import Service, ThreadEnded
from gateway.dead_letters import MAX_ATTEMPTS
from gateway.mqtt_connection import PublishResult
from gateway.pulsar_producer import UNSENDABLE, Receipt
from gateway.push import PushQueue
from gateway.validation import Sender
from tests.gateway.strategies import batch, message, settings, topic


@pytest.fixture
def service() -> Iterator[Service]:
    """A gateway that was not started: it has no connection, so what it sends to Pulsar fails at once."""
    made = Service(settings(status={"port": free_port()}), lambda: settings().drain)
    hook = threading.excepthook
    yield made
    threading.excepthook = hook
    made._wake.close()


def deliveries(service: Service) -> list[Any]:
    return list(service._engine.in_flight)


def test_a_message_that_makes_the_handling_raise_is_a_dead_letter_and_the_next_is_served(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RecursionError("maximum recursion depth exceeded")

    with monkeypatch.context() as broken:
        broken.setattr(service._engine, "on_batch", fail)
        service._on_message(message(topic("d1"), b"poison", 1))
    service._on_message(message(topic("d2"), batch("d2", 1, 3), 2))
    poisoned, served = deliveries(service)
    assert poisoned.refusal.reason == "internal-error"
    assert "RecursionError" in poisoned.refusal.detail
    assert poisoned.payload == b"poison"
    assert served.refusal is None
    assert service._metrics.counts["internal_errors"] == 1


def test_a_config_result_of_eighty_thousand_brackets_is_counted_and_acknowledged(service: Service) -> None:
    service._on_message(message("waybill/1/fleet/d1/config-result", b"[" * 80_000, 1))
    assert service._metrics.counts["pushes_unknown"] == 1
    assert service._engine.release() == [1]


def test_a_config_result_on_a_topic_that_no_device_has_is_a_dead_letter(service: Service) -> None:
    service._on_message(message("waybill/1/fleet//config-result", b"{}", 1))
    (letter,) = deliveries(service)
    assert letter.refusal.reason == "bad-topic"


def test_a_receipt_whose_handling_raises_does_not_hold_up_the_others(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    for mid, device in ((1, "d1"), (2, "d2")):
        service._on_message(message(topic(device), batch(device, 1, 3), mid))
    first, second = (delivery.token for delivery in deliveries(service))
    answers = [Receipt(first, "Ok"), Receipt(second, "Ok")]
    monkeypatch.setattr(service._pulsar, "take_receipts", lambda: answers)
    owe = service._engine._queue_ack

    def fail_once(delivery: Any, now_s: float) -> None:
        if delivery.token == first:
            raise MemoryError("too many ranges")
        owe(delivery, now_s)

    monkeypatch.setattr(service._engine, "_queue_ack", fail_once)
    service._handle_receipts(1.0)
    assert deliveries(service) == []
    assert [tell.sender.device for tell in service._engine.take_due_acks(9.0, 10)] == ["d2"]
    assert service._engine.release() == [1, 2]
    assert service._metrics.counts["internal_errors"] == 1


def test_what_the_client_can_never_send_is_refused_and_a_dead_letter_it_cannot_send_is_given_up(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    service._on_message(message(topic("d1"), batch("d1", 1, 3), 1))
    (delivery,) = deliveries(service)
    monkeypatch.setattr(service._pulsar, "take_receipts", lambda: [Receipt(delivery.token, UNSENDABLE)])
    service._handle_receipts(1.0)
    assert delivery.refusal.reason == "not-for-pulsar"
    service._handle_receipts(2.0)
    assert deliveries(service) == []
    (tell,) = service._engine.take_due_acks(9.0, 10)
    assert (tell.ack.refused, tell.ack.seqs.ranges) == ("not-for-pulsar", ((1, 3),))
    assert service._engine.release() == [1]
    assert service._metrics.counts["dead_letters_not_kept"] == 1


def test_a_dead_letter_is_given_up_after_some_attempts_and_a_batch_never(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    service._on_message(message(topic("d1"), b"garbage", 1))
    service._on_message(message(topic("d2"), batch("d2", 1, 3), 2))
    tokens = [delivery.token for delivery in deliveries(service)]
    monkeypatch.setattr(service._pulsar, "take_receipts", lambda: [Receipt(token, "Timeout") for token in tokens])
    for _ in range(MAX_ATTEMPTS + 5):
        service._handle_receipts(1.0)
        for token in tokens:
            if token in service._engine.in_flight:
                service._engine.next_attempt(token)
    assert [delivery.sender.device for delivery in deliveries(service)] == ["d2"]


def test_a_client_that_cannot_send_a_message_says_so_instead_of_raising(service: Service) -> None:
    class Broken:
        def send_async(self, *_: object, **__: object) -> None:
            raise UnicodeEncodeError("utf-8", "\ud83d", 0, 1, "surrogates not allowed")

    service._on_message(message(topic("d1"), batch("d1", 1, 3), 1))
    assert [receipt.result for receipt in service._pulsar.take_receipts()] == ["NotConnected"]
    service._pulsar._batches = Broken()
    service._pulsar.send(service._engine.next_attempt(deliveries(service)[0].token))
    (receipt,) = service._pulsar.take_receipts()
    assert receipt.is_permanent


def test_a_thread_that_ends_takes_the_gateway_with_it(service: Service) -> None:
    def fail() -> None:
        raise ValueError("no more")

    threading.excepthook = service._on_thread_ended
    thread = threading.Thread(target=fail, name="pulsar-close")
    thread.start()
    thread.join()
    service._status_server = type("Serving", (), {"is_serving": True})()
    with pytest.raises(ThreadEnded, match="pulsar-close ended with ValueError: no more"):
        service._tick(1.0)


def test_every_device_that_sends_anything_is_heard_whatever_becomes_of_it(service: Service) -> None:
    for number in range(1000):
        service._on_message(message(topic(f"d{number}"), b"no batch", number + 1))
    assert service._metrics.counts["dead_letters_not_kept"] > 500
    assert service._status_now(0.0).devices_known == 1000
    service._on_message(message("waybill/1/fleet/other/config-result", b"{}", 1001))
    service._on_message(message("waybill/1/no body/x/batch", b"", 1002))
    assert service._status_now(0.0).devices_known == 1001


def listen(service: Service, from_s: float, to_s: float) -> None:
    for now_s in (from_s, to_s):
        service._listening.update(now_s, listens=True)
        service._silent_at_s = now_s
        service._update_silent(now_s)


def silent_of(service: Service) -> tuple[int | None, int | None, float]:
    status = service._status_now(time.monotonic())
    service._metrics.set_gauges(status)
    shown = service._metrics.registry.get_sample_value("waybill_gateway_devices_silent")
    assert shown is not None
    return service._status_holder.silent.count, status.devices_silent, shown


def test_who_is_silent_is_unknown_while_nobody_listens_and_known_again_with_the_next_connection(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    after_s = service._settings.status.silent_after_s
    service._devices.on_heard(Sender("fleet", "d1"), 0.0)
    service._update_silent(0.0)
    assert silent_of(service)[:2] == (None, None)
    assert isnan(silent_of(service)[2])
    monkeypatch.setattr(Service, "_is_connected", True)
    listen(service, 0.0, after_s - 1)
    assert silent_of(service)[:2] == (None, None), "it has not listened for long enough"
    listen(service, after_s - 1, after_s + 1)
    assert silent_of(service) == (1, 1, 1.0)
    with monkeypatch.context() as away:
        away.setattr(Service, "_is_connected", False)
        service._listening.update(after_s + 2, listens=False)
        service._update_silent(after_s + 2)
        assert service._status_holder.silent.listening_s is None
        assert silent_of(service)[:2] == (None, None)
    listen(service, after_s + 9_000, after_s + 9_000)
    assert silent_of(service) == (1, 1, 1.0), "a new connection ends no silence"
    service._on_message(message(topic("d1"), b"no batch", 1))
    listen(service, after_s + 9_000, after_s + 9_001)
    assert silent_of(service) == (0, 0, 0.0)


def test_one_turn_of_the_loop_looks_at_one_file_of_settings_and_the_next_turn_comes_at_once(
    service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    timeouts_s: list[float] = []

    def select(*call: Any) -> tuple[list[Any], list[Any], list[Any]]:
        timeouts_s.append(call[3])
        return [], [], []

    monkeypatch.setattr("gateway.service.select.select", select)
    (tmp_path / "fleet").mkdir()
    for number in range(60):
        (tmp_path / "fleet" / f"d{number:02}.toml").write_text("[drain]\nwindow = 9\n" if number % 2 else "wrong")
    service._pushes = PushQueue(tmp_path)
    broker = service._mqtt = Taking()  # type: ignore[assignment]
    for turn in range(60):
        assert service._pushes.has_waiting
        service._tick_at_s = 60.0
        service._wait(0.0)
        service._send_acks(0.0)
        assert len(broker.topics) == (turn + 1) // 2
    service._wait(0.0)
    assert timeouts_s == [0.0] * 60 + [1.0]


class Taking:
    """A broker's side that takes everything."""

    free_slots, is_subscribed, socket, has_buffered, wants_write = 500, False, None, False, False

    def __init__(self) -> None:
        self.topics: list[str] = []

    def publish(self, topic: str, *_: object, **__: object) -> None:
        self.topics.append(topic)


@pytest.mark.parametrize(("name", "unheard"), [("ack", 1), ("config", 0)])
def test_settings_that_the_broker_keeps_for_a_device_are_no_acknowledgement_that_nobody_heard(
    service: Service, name: str, unheard: int
) -> None:
    service._on_publish_result(PublishResult(f"waybill/1/fleet/d1/{name}", "", has_no_subscriber=True))
    assert service._metrics.counts["acks_without_subscriber"] == unheard
