"""The bookkeeping of one vehicle's session: in order, bounded, and nothing is forgotten."""

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from simulator.messages import VehicleMessage
from simulator.publisher import SendQueue


def message(number: int) -> VehicleMessage:
    return VehicleMessage(0.0, "eu-0001", "vehicle/canary", str(number).encode())


def outbox(window: int = 4, room: int = 100) -> SendQueue:
    return SendQueue(window=window, room=room, retry_s=1.0, now_s=0.0)


def send_all(box: SendQueue, now_s: float, first: int = 0) -> dict[int, VehicleMessage]:
    gone: dict[int, VehicleMessage] = {}
    for name, (number, said) in enumerate(box.sendable(now_s), start=first):
        box.sent(name, number, said)
        gone[name] = said
    return gone


@given(seed=st.integers(0, 10_000), window=st.integers(1, 20), count=st.integers(0, 60))
def test_everything_is_kept_once_and_in_order_whatever_is_refused(seed: int, window: int, count: int) -> None:
    """A refused message waits, is sent again, and only one is under way until somebody listens again."""
    rng, box = Random(seed), outbox(window)
    for number in range(count):
        box.put(message(number), 0.0)
    kept: list[VehicleMessage] = []
    now_s, name, under_way = 0.0, 0, {}
    for _ in range(2000):
        for number, said in box.sendable(now_s):
            box.sent(name, number, said)
            under_way[name] = said
            name += 1
        assert box.under_way == len(under_way) <= window
        for answered in list(under_way):
            said = under_way.pop(answered)
            is_kept = rng.random() < 0.7
            box.on_answer(answered, kept=is_kept, now_s=now_s)
            if is_kept:
                kept.append(said)
        if box.empty:
            break
        now_s += 0.6
    assert box.empty
    assert box.kept == count
    assert sorted(kept, key=lambda said: int(said.payload)) == [message(number) for number in range(count)]


def test_a_refused_message_goes_first_after_a_pause() -> None:
    box = outbox()
    for number in range(3):
        box.put(message(number), 0.0)
    send_all(box, 0.0)
    box.on_answer(0, kept=False, now_s=0.0)
    assert box.never_answered
    assert send_all(box, 0.5) == {}
    assert list(send_all(box, 1.0).values()) == [message(0)]
