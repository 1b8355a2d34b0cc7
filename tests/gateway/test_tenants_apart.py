"""What goes wrong with one tenant is its own: at the rates, in the window, towards Pulsar."""

import zlib
from collections.abc import Iterator
from typing import Any

import pytest

from gateway.engine import STUCK_S, NotSent, Produce
from tests.gateway.sides import FakePulsar, Region
from tests.gateway.strategies import batch, engine, topic
from waybill.record import RefusalReason

SERVICE = {"service_url": "pulsar://127.0.0.1:6650"}
TWO: dict[str, Any] = {"tenants": {"acme": {}, "kaze": {}}, "pulsar": SERVICE}


def test_what_is_above_the_rate_of_a_tenant_is_to_be_sent_again_and_the_other_tenant_is_served() -> None:
    made = engine(**TWO | {"tenants": {"acme": {"max_batches_per_s": 1}, "kaze": {}}})
    effects = [made.on_batch(topic(f"d{n}", "acme"), batch(f"d{n}", 1, 3), n, 0.0) for n in range(1, 9)]
    assert isinstance(effects[0], Produce)
    assert effects[-1] is NotSent.SLOW_DOWN
    assert isinstance(made.on_batch(topic("d1", "kaze"), batch("d1", 1, 3), 9, 0.0), Produce)
    made.on_persisted(effects[0].token, 0.1)
    answers = {one.sender.device: one.ack for one in made.take_due_acks(1.0, 100)}
    assert answers["d8"].refusal == RefusalReason.SLOW_DOWN
    assert answers["d8"].seqs.ranges == ((1, 3),)
    assert answers["d8"].pause_s > 0


def test_a_tenant_that_pulsar_does_not_take_keeps_its_share_and_the_other_goes_through() -> None:
    made = engine(**TWO)
    for mid in range(1, 9):  # the whole window
        assert isinstance(made.on_batch(topic("d1", "acme"), batch("d1", mid, mid), mid, 0.0), Produce)
    made.find_stuck(STUCK_S, {"kaze"})
    assert made.stuck == {"acme"}
    assert made.release() == list(range(1, 9)), "the broker may send what is behind them"
    assert made.has_room
    assert made.on_batch(topic("d1", "acme"), batch("d1", 9, 9), 9, 1.0) is NotSent.SLOW_DOWN
    other = made.on_batch(topic("d1", "kaze"), batch("d1", 1, 3), 10, 1.0)
    assert isinstance(other, Produce)
    made.on_persisted(other.token, 1.1)
    made.take_due_acks(1.2, 10)
    assert made.release() == [9, 10]


def test_the_dead_letters_of_one_tenant_leave_room_for_those_of_another_and_strangers_have_none() -> None:
    made = engine(**TWO)
    kept = [made.on_batch(topic(f"d{n}", "acme"), b"garbage", n, 0.0) for n in range(1, 300)]
    assert kept[-1] is NotSent.NOT_KEPT
    assert isinstance(made.on_batch(topic("d1", "kaze"), b"garbage", 300, 0.0), Produce)
    assert made.on_batch(topic("d1", "other"), batch("d1", 1, 3), 301, 0.0) is NotSent.NOT_KEPT


def test_what_is_refused_counts_for_the_rates_of_who_sent_it() -> None:
    rates = {"max_batches_per_s": 20, "device": {"max_batches_per_s": 2}}
    for device, what in (("d1", spoiled), ("d2", spoiled), ("d2", lambda device, n: batch(device, n, n))):
        made = engine(**TWO | {"tenants": {"acme": rates, "kaze": {}}})
        for mid in range(1, 100):
            made.on_batch(topic("d1", "acme"), what(device, mid), mid, 0.0)
        assert made.on_batch(topic("d1", "acme"), batch("d1", 1, 3), 100, 0.0) is NotSent.SLOW_DOWN
        assert isinstance(made.on_batch(topic("d3", "acme"), batch("d3", 1, 3), 101, 0.0), Produce), "of others none"


def spoiled(device: str, seq: int = 1) -> bytes:
    """A batch with a good header and checksum, and content that nobody can read."""
    good = batch(device, seq, seq)
    lengths = good[8:16]
    header = good[16 : 16 + int.from_bytes(lengths[:4])]
    content = bytes(len(good) - 16 - len(header))
    checksum = zlib.crc32(header + content, zlib.crc32(good[2:4] + lengths))
    return good[:4] + checksum.to_bytes(4) + lengths + header + content


class HalfAway(FakePulsar):
    missing = "acme"

    def create_producer(self, topic: str, **about: Any) -> Any:
        if f"//{self.missing}/" in topic:
            import pulsar  # noqa: PLC0415

            raise pulsar.TopicNotFound("no such namespace")
        return super().create_producer(topic, **about)


@pytest.fixture
def pulsar_side() -> HalfAway:
    return HalfAway()


@pytest.fixture
def region(pulsar_side: HalfAway) -> Iterator[Region]:
    made = Region(pulsar_side=pulsar_side, **TWO)
    yield made
    made.close()


def test_a_tenant_without_topics_is_named_tried_again_and_stops_no_other(region: Region, pulsar_side: HalfAway) -> None:
    region.connect()
    region.broker.deliver(topic("d1", "acme"), batch("d1", 1, 3))
    region.broker.deliver(topic("d1", "kaze"), batch("d1", 1, 3))
    region.until(lambda: region.pulsar.waiting)
    assert [one.topic for one in region.pulsar.waiting] == ["persistent://kaze/telemetry-eu/batches"]
    region.pulsar.answer()
    region.until(lambda: len(region.broker.pubacks) == 2, step_s=0.1)
    region.now_s += 2
    region.turn()
    assert not region.status.healthy
    assert region.status.last_error.startswith("Pulsar accepts nothing from acme: no producer from")
    assert region.status.tenants_stuck == ("acme",)
    pulsar_side.missing = "nobody"
    region.until(lambda: region.pulsar.waiting, step_s=0.5)
    assert region.pulsar.answer().topic == "persistent://acme/telemetry-eu/batches"
    region.until(lambda: region.status.healthy, step_s=0.5)
