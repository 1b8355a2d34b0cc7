"""The order of acknowledgement through the loop: batch, Pulsar's receipt, the device's acknowledgement, PUBACK."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from gateway.service import Shutdown
from tests.gateway.sides import NOT_AUTHORIZED, FakeBroker, Published, Region, without_waiting
from tests.gateway.strategies import batch, settings, topic
from waybill.record import DeviceChannel, device_topic


@pytest.fixture
def region() -> Iterator[Region]:
    made = Region().connect()
    yield made
    made.close()


def receivers_of(heard: list[Published | int | None]) -> list[object]:
    """What the gateway sent: devices of acknowledgements, and message ids of PUBACKs, in their order."""
    return [it.device if isinstance(it, Published) else it for it in heard]


def test_nothing_is_sent_before_pulsar_s_receipt_and_then_the_device_hears_before_the_broker(region: Region) -> None:
    mid = region.broker.deliver(topic("d1"), batch("d1", 1, 3))
    region.until(lambda: region.pulsar.waiting)
    region.now_s += 100
    region.turn()
    assert region.broker.heard == []
    region.pulsar.answer()
    region.until(lambda: len(region.broker.heard) == 2)
    assert receivers_of(region.broker.heard) == ["d1", mid]
    assert region.broker.acks[0].ack.seqs.ranges == ((1, 3),)


def test_a_turn_that_follows_another_at_once_waits_a_moment_and_one_after_a_while_does_not(region: Region) -> None:
    waits: list[float] = []

    def noting(readers: list[Any], writers: list[Any], others: list[Any], wait_s: float) -> Any:
        if not readers:
            waits.append(wait_s)
        return without_waiting(readers, writers, others, wait_s)

    region.loop._select = noting
    region.loop.run_once()
    region.now_s += 0.0005
    region.loop.run_once()
    region.now_s += 0.1
    region.loop.run_once()
    assert waits == pytest.approx([0.002, 0.0015])


def test_receipts_in_another_order_release_nothing_past_a_batch_that_is_not_safe(region: Region) -> None:
    first, second, third = (region.broker.deliver(topic(f"d{n}"), batch(f"d{n}", 1, 1)) for n in (1, 2, 3))
    region.until(lambda: len(region.pulsar.waiting) == 3)
    region.pulsar.answer(2)
    region.until(lambda: len(region.broker.heard) == 1)
    region.pulsar.answer(1)
    region.until(lambda: len(region.broker.heard) == 2)
    region.turn()
    assert receivers_of(region.broker.heard) == ["d3", "d2"], "MQTT wants PUBACKs in the order of the messages"
    region.pulsar.answer(0)
    region.until(lambda: len(region.broker.heard) == 6)
    assert receivers_of(region.broker.heard)[2:] == ["d1", first, second, third]


def test_what_failed_is_sent_again_after_a_while_and_acknowledged_only_then(region: Region) -> None:
    region.broker.deliver(topic("d1"), batch("d1", 1, 3))
    region.until(lambda: region.pulsar.waiting)
    for attempt in range(1, 7):
        region.pulsar.answer(0, "Timeout")
        region.turn()
        assert region.pulsar.waiting == [], "not at once"
        region.until(lambda: region.pulsar.waiting, step_s=1)
        assert region.pulsar.sent == attempt + 1
        assert region.broker.heard == []
    region.pulsar.answer()
    region.until(lambda: len(region.broker.heard) == 2)
    assert region.status.pulsar_failures == 6


def test_a_full_window_takes_nothing_more_until_there_is_a_receipt() -> None:
    region = Region(mqtt={"receive_maximum": 2}).connect()
    for seq in range(1, 5):  # a broker that does not keep to the window
        region.broker.deliver(topic("d1"), batch("d1", seq, seq))
        region.until(lambda: len(region.pulsar.waiting) == seq)  # noqa: B023 - it is called at once
    region.broker.deliver(topic("d1"), batch("d1", 5, 5))
    region.turn(20)
    assert len(region.pulsar.waiting) == 4, "twice the window, and not one more"
    region.pulsar.answer()
    region.until(lambda: len(region.pulsar.waiting) == 4)
    assert region.broker.heard == [] or region.broker.acks[0].ack.seqs.ranges == ((1, 1),)
    region.close()


def test_while_the_broker_takes_no_more_acknowledgements_no_puback_overtakes_them() -> None:
    region = Region(FakeBroker(receive_maximum=1)).connect()
    mids = [region.broker.deliver(topic(f"d{n}"), batch(f"d{n}", 1, 1)) for n in (1, 2)]
    region.until(lambda: len(region.pulsar.waiting) == 2)
    region.pulsar.answer()
    region.pulsar.answer()
    region.until(lambda: len(region.broker.heard) == 2)
    region.now_s += 100
    region.turn()
    assert receivers_of(region.broker.heard) == ["d1", mids[0]]
    region.broker.answer(region.broker.acks[0])
    region.until(lambda: len(region.broker.heard) == 4)
    assert receivers_of(region.broker.heard)[2:] == ["d2", mids[1]]
    region.close()


def test_a_batch_that_comes_again_on_a_new_connection_joins_the_one_in_flight(region: Region) -> None:
    old = region.broker.deliver(topic("d1"), batch("d1", 1, 3))
    region.until(lambda: region.pulsar.waiting)
    region.broker.hang_up()
    region.until(lambda: region.broker.connections == 2 and region.broker.is_subscribed, step_s=1)
    region.pulsar.answer()  # of the batch that came on the connection that is gone
    region.turn()
    assert region.broker.pubacks == [], f"message id {old} means nothing any more"
    new = region.broker.deliver(topic("d1"), batch("d1", 1, 3))
    region.until(lambda: region.pulsar.waiting)
    again = region.broker.deliver(topic("d1"), batch("d1", 1, 3))
    region.until(lambda: region.status.batches_joined == 1, step_s=0.5)
    assert region.pulsar.sent == 2
    region.pulsar.answer()
    region.until(lambda: len(region.broker.pubacks) == 2)
    assert region.broker.pubacks == [new, again]


def test_a_producer_that_was_closed_is_opened_again_and_its_batches_are_sent_again(region: Region) -> None:
    region.broker.deliver(topic("d1"), batch("d1", 1, 3))
    region.until(lambda: region.pulsar.waiting)
    region.pulsar.is_up = False
    region.pulsar.answer(0, "AlreadyClosed")
    for _ in range(30):
        region.now_s += 1
        region.turn(2)
    assert (region.pulsar.sent, region.broker.heard) == (1, [])
    assert (region.status.healthy, region.status.in_flight) == (False, 1)
    region.pulsar.is_up = True
    region.until(lambda: region.pulsar.waiting, step_s=1)
    region.pulsar.answer()
    region.until(lambda: len(region.broker.heard) == 2)
    assert region.pulsar.opened == 2


def test_without_pulsar_the_broker_is_not_asked_for_anything() -> None:
    region = Region()
    region.pulsar.is_up = False
    for _ in range(60):
        region.now_s += 1
        region.turn(2)
    assert region.broker.connections == 0
    region.pulsar.is_up = True
    region.connect().close()


def test_a_refusal_is_published_only_when_its_dead_letter_is_safe(region: Region) -> None:
    mid = region.broker.deliver(topic("d2"), batch("d1", 1, 3))
    region.until(lambda: region.pulsar.waiting)
    assert region.pulsar.waiting[0].topic.endswith("/refused")
    region.turn()
    assert region.broker.heard == []
    region.pulsar.answer()
    region.until(lambda: len(region.broker.heard) == 2)
    assert (receivers_of(region.broker.heard), region.broker.acks[0].ack.refusal) == (["d2", mid], "wrong-device")
    assert region.pulsar.persisted("d2").ranges == ()


def test_a_broker_that_bars_acknowledgements_makes_the_gateway_unhealthy(region: Region) -> None:
    region.broker.deliver(topic("d1"), batch("d1", 1, 1))
    region.until(lambda: region.pulsar.waiting)
    region.pulsar.answer()
    region.until(lambda: region.broker.acks)
    region.broker.answer(region.broker.acks[0], NOT_AUTHORIZED)
    region.until(lambda: region.status.acks_refused == 1, step_s=0.5)
    assert "refused 1 of the last 1" in region.status.last_error


def test_asked_to_stop_it_finishes_what_it_took_and_then_ends(region: Region) -> None:
    region.broker.deliver(topic("d1"), batch("d1", 1, 3))
    region.until(lambda: region.pulsar.waiting)
    region.loop.stop()
    region.turn()
    region.now_s += 1
    region.turn()
    assert not region.loop.is_finished
    assert region.status.state == "stopping"
    region.broker.deliver(topic("d2"), batch("d2", 1, 1))  # the broker had sent it before it heard of it
    region.until(lambda: len(region.pulsar.waiting) == 2)
    region.pulsar.answer()
    region.pulsar.answer()
    region.until(lambda: region.loop.is_finished, step_s=0.05)
    region.until(lambda: len(region.broker.heard) == 4)
    assert receivers_of(region.broker.heard) == ["d1", "d2", 1, 2]
    region.loop.disconnect()
    assert region.loop.close() == 0


def test_a_stop_that_takes_too_long_acknowledges_nothing_that_is_not_safe(region: Region) -> None:
    region.broker.deliver(topic("d1"), batch("d1", 1, 3))
    region.until(lambda: region.pulsar.waiting)
    region.loop.stop()
    timeout_s = settings().stop_timeout_s
    region.now_s += 0.6 * timeout_s
    region.broker.deliver(topic("d2"), batch("d2", 1, 1))
    region.turn(8)
    assert len(region.pulsar.waiting) == 1, "the second half of the time is for what was taken"
    region.now_s += 0.5 * timeout_s
    assert region.loop.is_finished
    region.loop.disconnect()
    region.until(lambda: region.broker.heard)
    assert region.broker.heard == [None], "the connection ended, and nothing was acknowledged on it"
    assert region.loop.close() == 1


def test_settings_for_devices_are_published_one_file_a_turn_and_kept_by_the_broker(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("pushes")
    (folder / "fleet").mkdir()
    for number in range(20):
        (folder / "fleet" / f"d{number:02}.toml").write_text("[drain]\nwindow = 9\n" if number % 2 else "wrong")
    region = Region(push={"folder": folder, "unsigned": True}).connect()
    region.until(lambda: len(region.broker.acks) == 10)
    expected = [(device_topic("fleet", f"d{number:02}", DeviceChannel.CONFIG), True) for number in range(1, 20, 2)]
    assert [(it.topic, it.retain) for it in region.broker.acks] == expected
    region.loop.reload(settings().drain)
    region.until(lambda: len(region.broker.acks) == 20)
    region.close()


@pytest.mark.parametrize(
    ("after_s", "is_drained", "is_connected", "is_over"),
    [
        (0.1, True, True, False),
        (0.3, True, True, True),
        (0.3, False, True, False),
        (0.0, False, False, True),
        (10.0, False, True, True),
    ],
)
def test_a_stop_is_over_when_it_is_quiet_and_drained_or_nothing_more_can_be_done(
    after_s: float, is_drained: bool, is_connected: bool, is_over: bool
) -> None:
    shutdown = Shutdown(10)
    assert not shutdown.is_over(99, is_drained=True, is_connected=False)
    assert shutdown.try_take_message(99)
    shutdown.begin(100)
    assert shutdown.is_over(100 + after_s, is_drained=is_drained, is_connected=is_connected) == is_over
    assert shutdown.try_take_message(105)
    assert not shutdown.try_take_message(105.1)
