"""A message is acknowledged once, when each of its deliveries has ended."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.webhooks.intake import AlertTopic, TakenMessage
from gateway.webhooks.notifier import OpenMessages

TOPIC = AlertTopic("topic", "acme", is_verdicts=False)


@given(st.lists(st.integers(0, 4), max_size=8), st.randoms(use_true_random=False))
def test_each_is_acknowledged_once_when_all_of_it_has_ended(counts: list[int], random: object) -> None:
    acknowledged: list[int] = []
    messages, numbers, left = OpenMessages(), iter(range(1000)), dict[int, int]()
    order: list[tuple[int, int]] = []
    for at, count in enumerate(counts):
        deliveries = [next(numbers) for _ in range(count)]
        message = TakenMessage(TOPIC, str(at), b"", lambda at=at: acknowledged.append(at))  # type: ignore[misc]
        messages.begin(message, deliveries)
        left[at] = count
        order += [(at, number) for number in deliveries]
    assert acknowledged == [at for at, count in enumerate(counts) if not count]
    random.shuffle(order)  # type: ignore[attr-defined]
    for at, number in order:
        assert at not in acknowledged
        messages.end(number)
        messages.end(number)
        left[at] -= 1
        assert (at in acknowledged) == (left[at] == 0)
    assert sorted(acknowledged) == sorted(range(len(counts)))
    assert len(messages) == 0
