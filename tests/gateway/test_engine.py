"""The gateway's engine by example."""

from __future__ import annotations

from gateway import Produce, Tell
from gateway.admission import Address, Refusal
from telemetry import Ack, IntervalSet
from tests.gateway.strategies import batch, engine, topic

D1 = Address("fleet", "d1")


def produced(order: Produce | None) -> Produce:
    assert order is not None
    return order


def test_a_batch_goes_to_pulsar_untouched_with_its_names_as_properties() -> None:
    payload = batch("d1", 1, 3)
    order = produced(engine().arrived(topic("d1"), payload, 7, 0.0))
    properties = {"tenant": "fleet", "device": "d1", "region": "eu", "epoch": "1"}
    assert order == Produce(order.token, refused=False, key="d1", payload=payload, properties=properties)


def test_nothing_is_told_or_released_before_pulsar_s_receipt() -> None:
    made = engine()
    produced(made.arrived(topic("d1"), batch("d1", 1, 3), 7, 0.0))
    assert made.due(99.0, 10) == []
    assert made.release() == []


def test_a_receipt_becomes_one_acknowledgement_and_then_a_puback() -> None:
    made = engine()
    order = produced(made.arrived(topic("d1"), batch("d1", 1, 3, lost=(5, 9)), 7, 0.0))
    made.persisted(order.token, 0.1)
    assert made.release() == []
    assert made.due(0.1, 10) == [Tell(D1, [Ack(1, IntervalSet([(1, 3), (5, 9)]))])]
    assert made.release() == [7]
    assert made.idle


def test_batches_of_one_device_share_an_acknowledgement_while_more_is_on_its_way() -> None:
    made = engine(acks={"interval_ms": 50})
    orders = [produced(made.arrived(topic("d1"), batch("d1", n, n), n, 0.0)) for n in (1, 2, 3)]
    made.persisted(orders[0].token, 0.0)
    made.persisted(orders[1].token, 0.01)
    assert made.due(0.02, 10) == []
    made.persisted(orders[2].token, 0.03)
    assert made.due(0.03, 10) == [Tell(D1, [Ack(1, IntervalSet([(1, 3)]))])]


def test_a_device_does_not_wait_longer_than_the_interval_for_the_rest() -> None:
    made = engine(acks={"interval_ms": 50})
    orders = [produced(made.arrived(topic("d1"), batch("d1", n, n), n, 0.0)) for n in (1, 2)]
    made.persisted(orders[1].token, 0.0)
    assert made.ledger.next_s == 0.05
    assert made.due(0.05, 10) == [Tell(D1, [Ack(1, IntervalSet([(2, 2)]))])]
    assert made.release() == [], "the first batch came first and is not safe yet"
    made.persisted(orders[0].token, 0.06)
    made.due(0.06, 10)
    assert made.release() == [1, 2]


def test_two_epochs_of_a_device_are_two_acknowledgements() -> None:
    made = engine()
    orders = [produced(made.arrived(topic("d1"), batch("d1", 1, 1, epoch=e), e, 0.0)) for e in (2, 1)]
    for order in orders:
        made.persisted(order.token, 0.0)
    one = IntervalSet([(1, 1)])
    assert made.due(0.0, 10) == [Tell(D1, [Ack(1, one), Ack(2, one)])]


def test_a_refused_batch_goes_to_the_refused_ones_and_its_sender_is_told_why() -> None:
    made = engine()
    payload = batch("d1", 1, 3)[:-1]
    order = produced(made.arrived(topic("d1"), payload, 7, 0.0))
    assert order.refused
    assert order.payload == payload
    assert order.properties["reason"] == "truncated"
    assert order.properties["topic"] == topic("d1")
    assert made.due(99.0, 10) == []
    made.persisted(order.token, 0.0)
    assert made.due(0.0, 10) == [Tell(D1, [Ack(refused="truncated")])]
    assert made.release() == [7]


def test_a_batch_that_pulsar_will_never_take_is_refused() -> None:
    made = engine()
    order = produced(made.arrived(topic("d1"), batch("d1", 1, 3), 7, 0.0))
    again = made.refused_by_pulsar(order.token, Refusal("too-large", "at most so many"))
    assert again.refused
    assert again.token == order.token
    made.persisted(order.token, 0.0)
    assert made.due(0.0, 10) == [Tell(D1, [Ack(1, IntervalSet([(1, 3)]), refused="too-large")])], "which it was"


def test_refusals_are_told_by_reason_and_epoch_beside_what_is_safe() -> None:
    made = engine()
    for epoch, first in ((1, 1), (1, 2001), (2, 1)):
        order = produced(made.arrived(topic("d1"), batch("d1", first, first + 999, epoch=epoch), 1, 0.0))
        made.refused_by_pulsar(order.token, Refusal("too-large", "at most so many"))
        made.persisted(order.token, 0.0)
    made.persisted(produced(made.arrived(topic("d1"), batch("d1", 5001, 5002), 1, 0.0)).token, 0.0)
    assert made.due(0.0, 10) == [
        Tell(
            D1,
            [
                Ack(1, IntervalSet([(5001, 5002)])),
                Ack(1, IntervalSet([(1, 1000), (2001, 3000)]), refused="too-large"),
                Ack(2, IntervalSet([(1, 1000)]), refused="too-large"),
            ],
        )
    ]


def test_an_answer_of_a_device_is_acknowledged_to_the_broker_in_its_turn() -> None:
    made = engine()
    order = produced(made.arrived(topic("d1"), batch("d1", 1, 3), 7, 0.0))
    made.heard(8)
    assert made.release() == []
    made.persisted(order.token, 0.0)
    made.due(0.0, 10)
    assert made.release() == [7, 8]


def test_a_batch_that_comes_again_while_it_is_in_flight_is_produced_once_and_released_twice() -> None:
    made = engine()
    payload = batch("d1", 1, 3)
    order = produced(made.arrived(topic("d1"), payload, 7, 0.0))
    assert made.arrived(topic("d1"), payload, 8, 0.0) is None
    made.persisted(order.token, 0.0)
    made.due(0.0, 10)
    assert made.release() == [7, 8]


def test_message_ids_of_a_lost_connection_are_never_acknowledged() -> None:
    made = engine()
    payload = batch("d1", 1, 3)
    order = produced(made.arrived(topic("d1"), payload, 7, 0.0))
    made.in_flight.renew()
    assert made.arrived(topic("d1"), payload, 1, 1.0) is None
    made.persisted(order.token, 1.0)
    made.due(1.0, 10)
    assert made.release() == [1]


def test_it_stops_taking_when_its_window_is_full_and_takes_again_when_there_is_room() -> None:
    made = engine(mqtt={"host": "h", "receive_maximum": 1})
    orders = [produced(made.arrived(topic("d1"), batch("d1", n, n), n, 0.0)) for n in (1, 2)]
    assert not made.taking
    made.persisted(orders[0].token, 0.0)
    assert made.taking


def test_it_stops_taking_when_too_many_bytes_wait() -> None:
    made = engine(mqtt={"host": "h", "max_in_flight_bytes": 1 << 20}, max_batch_bytes=5 << 20)
    made.arrived(topic("d1"), bytes(1 << 20), 1, 0.0)
    assert not made.taking


def test_an_overloaded_gateway_asks_for_a_pause_with_the_acknowledgement() -> None:
    made = engine(mqtt={"host": "h", "receive_maximum": 2}, drain={"overload_share": 0.6, "overload_pause_s": 4})
    orders = [produced(made.arrived(topic(f"d{n}"), batch(f"d{n}", 1, 1), n, 0.0)) for n in (1, 2)]
    made.persisted(orders[0].token, 2.0)
    made.persisted(orders[1].token, 2.0)
    pauses = {tell.device.device: tell.acks[0].pause_s for tell in made.due(2.0, 10)}
    assert pauses == {"d1": 4.0, "d2": 0.0}


def test_no_more_devices_are_told_than_the_broker_has_room_for() -> None:
    made = engine()
    for n in (1, 2, 3):
        made.persisted(produced(made.arrived(topic(f"d{n}"), batch(f"d{n}", 1, 1), n, 0.0)).token, 0.0)
    assert [tell.device.device for tell in made.due(0.0, 2)] == ["d1", "d2"]
    assert made.release() == [1, 2]
    assert [tell.device.device for tell in made.due(0.0, 2)] == ["d3"]
