"""A group has one answer, and a message counts as persisted only where that answer proves it."""

from collections.abc import Callable
from typing import Any, NamedTuple

import pulsar
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gateway.engine import Produce
from gateway.pulsar_producer import OK, GroupSender, SendResult
from tests.examples import examples

Callback = Callable[[Any, Any], None]


class MessageId(NamedTuple):
    place: int

    def batch_index(self) -> int:
        return self.place


class Client:
    """A producer of the client that notes what it is handed. `refuses`: payloads at which it raises."""

    def __init__(self) -> None:
        self.handed: list[tuple[bytes, Callback | None]] = []
        self.flushes = 0
        self.refuses: dict[bytes, Exception] = {}
        self._producer = self

    def send_async(self, message: Any, callback: Callback | None) -> None:
        payload = message.data()
        if payload in self.refuses:
            raise self.refuses[payload]
        self.handed.append((payload, callback))

    def flush_async(self, callback: None) -> None:
        assert callback is None
        self.flushes += 1

    def answer(self, index: int, result: pulsar.Result = pulsar.Result.Ok, number: int = -1) -> None:
        callback = [callback for _, callback in self.handed if callback is not None][number]
        callback(result, MessageId(index))


class Side:
    def __init__(self, *, max_messages: int = 100, max_bytes: int = 1000) -> None:
        self.client, self.results = Client(), list[SendResult]()
        self.sender = GroupSender(
            self.client, self.results.append, max_messages=max_messages, max_bytes=max_bytes, delay_s=0.005
        )

    def send(self, *tokens: int, size: int = 1) -> None:
        for token in tokens:
            self.sender.send(Produce(token, False, "d1", b"%d" % token * size, {"device": "d1"}))


def test_a_group_ends_with_its_number_of_messages_and_before_it_has_too_many_bytes() -> None:
    side = Side(max_messages=2)
    side.send(1, 2, 3)
    assert side.client.flushes == 1
    side = Side(max_bytes=10)
    side.send(1, 2, size=4)
    assert side.client.flushes == 0
    side.send(3, size=4)
    assert (side.client.flushes, [payload for payload, _ in side.client.handed]) == (1, [b"1111", b"2222"])


class Wire(Client):
    """Sends batches: one ends when it is ended, or by itself at any place; it is persisted as a whole or not at all.

    `answers`: what waits to be said of those that have a callback.
    """

    def __init__(self) -> None:
        super().__init__()
        self.fails, self.is_deaf = False, False
        self.persisted: set[bytes] = set()
        self.answers: list[Callable[[], None]] = []

    def flush_async(self, callback: None) -> None:
        if self.is_deaf:
            raise RuntimeError("no connection")
        self.end_batch()

    def end_batch(self, *, is_lost: bool = False) -> None:
        batch, self.handed = self.handed, []
        is_lost = is_lost or self.fails
        result = pulsar.Result.Timeout if is_lost else pulsar.Result.Ok
        if not is_lost:
            self.persisted.update(payload for payload, _ in batch)
        for place, (_, answer) in enumerate(batch):
            if answer is not None:
                message_id = MessageId(place if len(batch) > 1 else -1)
                self.answers.append(lambda answer=answer, about=message_id: answer(result, about))  # type: ignore[misc]


MESSAGES = ("send", "refused")
WHAT_MAY_HAPPEN = ("send",) * 6 + ("refused", "turn", "flush", "split", "lost", "lost", "fails", "is_deaf", "answer")


def happen(side: Side, wire: Wire, number: int, event: str, answered: int) -> None:
    """`refused`: a message that the client does not take. `answered`: which of the answers that wait."""
    if event in MESSAGES:
        if event == "refused":
            wire.refuses[b"%d" % number] = pulsar.AlreadyClosed("closed")
        side.send(number)
    elif event == "turn":
        side.sender.flush_due(number / 1000)
    elif event == "flush":
        side.sender.flush()
    elif event in ("split", "lost"):
        wire.end_batch(is_lost=event == "lost")
    elif event != "answer":
        setattr(wire, event, not getattr(wire, event))
    elif wire.answers:
        wire.answers.pop(answered % len(wire.answers))()


@given(st.lists(st.tuples(st.sampled_from(WHAT_MAY_HAPPEN), st.integers(0, 9)), max_size=60))
@example([("send", 0), ("send", 0), ("lost", 0), ("send", 0)])
@settings(max_examples=examples(200), deadline=None)
def test_each_message_has_one_result_whatever_happens_and_ok_only_where_it_is_persisted(
    events: list[tuple[str, int]],
) -> None:
    side, wire = Side(max_messages=4, max_bytes=12), Wire()
    side.sender._producer = wire
    for number, (event, answered) in enumerate(events):
        happen(side, wire, number, event, answered)
    side.sender.flush()
    wire.end_batch()
    for answer in wire.answers:
        answer()
    pairs = [(token, result) for tokens, result in side.results for token in tokens]
    assert sorted(token for token, _ in pairs) == [n for n, (event, _) in enumerate(events) if event in MESSAGES]
    assert {b"%d" % token for token, result in pairs if result == OK} <= wire.persisted
    if not {"refused", "split", "lost", "fails", "is_deaf"} & {event for event, _ in events}:
        assert all(result == OK for _, result in pairs)
    assert not side.sender._under_way
