"""Messages to one partition go in groups, and one answer of Pulsar's client holds for a whole group.

The client answers by a callback from a thread of its own, which waits for the interpreter twice for each; beside a busy
loop that took more time than all else. So only the last message of a group has one. A group is one batch on Pulsar's
wire, because nothing but the end of a group sends a batch: it is persisted as a whole or not at all. That it was one
batch is not believed but read from the answer, which has the place of the last message within its batch.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, Protocol

import _pulsar
import pulsar

OK = "Ok"
TOO_BIG = "MessageTooBig"
UNSENDABLE = "Unsendable"
"""The client cannot make a message of it."""
UNPROVEN = "Unproven"
"""Nothing is known of a message, as that of the last one of its group says nothing of it. It is sent again."""

BACKSTOP_MS = 1_000
"""What a group's end could not send, the client sends by itself after so long."""


class Message(Protocol):
    """What is sent: `token` names it in its receipt, the rest is Pulsar's."""

    @property
    def token(self) -> int: ...  # noqa: D102

    @property
    def key(self) -> str: ...  # noqa: D102

    @property
    def payload(self) -> bytes: ...  # noqa: D102

    @property
    def properties(self) -> dict[str, str]: ...  # noqa: D102


class SendResult(NamedTuple):
    """What became of messages that went together: the client's word, OK when all of them are persisted."""

    tokens: list[int]
    result: str


class GroupSender:
    """One partition's producer. `on_result` is called by the client's thread, or by the caller's.

    A group ends with `flush`, or when it has `max_messages` or would have more than `max_bytes`; with `flush_due` while
    no other is under way, and `delay_s` after it began at the latest: the busier Pulsar is, the larger are the groups.
    """

    def __init__(
        self,
        producer: Any,
        on_result: Callable[[SendResult], None],
        *,
        max_messages: int,
        max_bytes: int,
        delay_s: float,
    ) -> None:
        self._producer, self._on_result = producer, on_result
        self._max_messages, self._max_bytes, self._delay_s = max_messages, max_bytes, delay_s
        self._under_way: set[int] = set()
        self._number = 0
        self._due_s: float | None = None
        self._tokens: list[int] = []
        self._bytes = 0
        self._last: Message | None = None

    @property
    def is_connected(self) -> bool:
        """Whether there is a connection at this moment."""
        return bool(self._producer.is_connected())

    def send(self, message: Message) -> None:
        """Take a message into the group: it is handed to the client with the next one, or with the group's end."""
        size = len(message.payload)
        if self._bytes + size > self._max_bytes:
            self.flush()
        # One behind: only with the next one is it known that this is not the group's last, which has the callback.
        if self._last is not None and self._try_hand_over(self._last, None):
            self._tokens.append(self._last.token)
        self._last = message
        self._bytes += size
        if len(self._tokens) + 1 >= self._max_messages:
            self.flush()

    @property
    def due_s(self) -> float | None:
        """When the group ends at the latest; None while there is none."""
        return self._due_s if self._last is not None else None

    def flush_due(self, now_s: float) -> None:
        """End the group if no other is under way, or if it is old enough; to be called once a turn of the loop."""
        if self._last is None:
            return
        if self._due_s is None:
            self._due_s = now_s + self._delay_s
        # While an answer is awaited, the next group grows: so a busy gateway is cheap, and an idle one quick.
        if not self._under_way or now_s >= self._due_s:
            self.flush()

    def flush(self) -> None:
        """End the group: its messages leave now."""
        last, self._last = self._last, None
        if last is None:
            return
        tokens, self._tokens, self._bytes, self._due_s = self._tokens, [], 0, None
        self._number += 1
        self._under_way.add(self._number)
        if not self._try_hand_over(last, partial(self._on_answer, self._number, [*tokens, last.token])):
            self._under_way.discard(self._number)
            # Those before it left without a callback: nobody will say what became of them.
            if tokens:
                self._on_result(SendResult(tokens, UNPROVEN))
        # Where it raises, the client sends what it has by itself, later.
        with contextlib.suppress(RuntimeError, pulsar.PulsarException):
            self._producer._producer.flush_async(None)  # noqa: SLF001 - the public `flush` waits for the answer

    def _try_hand_over(self, message: Message, callback: Callable[[Any, Any], None] | None) -> bool:
        """Give it to the client; a message that the client does not take has its result at once."""
        try:
            # The public `send_async` takes three times as long to make a message.
            self._producer._producer.send_async(_made(message), callback)  # noqa: SLF001
        except pulsar.PulsarException as error:
            self._on_result(SendResult([message.token], type(error).__name__))
        except Exception:  # noqa: BLE001 - what the client cannot send, it cannot send the next time either
            self._on_result(SendResult([message.token], UNSENDABLE))
        else:
            return True
        return False

    def _on_answer(self, number: int, tokens: list[int], result: Any, message_id: Any) -> None:
        # First: the loop that the result wakes looks whether a group is under way. A set needs no lock for this.
        self._under_way.discard(number)
        # Behind it in its batch there is nothing, and before it as many as its place says: they are these, in a row.
        if result == pulsar.Result.Ok and len(tokens) > 1 and message_id.batch_index() < len(tokens) - 1:
            self._on_result(SendResult(tokens[:-1], UNPROVEN))
            tokens = tokens[-1:]
        self._on_result(SendResult(tokens, result.name))


def _made(message: Message) -> Any:
    """What the client sends. Raises TypeError for what it cannot be made of."""
    made = _pulsar.MessageBuilder().content(message.payload).properties(message.properties)
    # The client takes an empty key for none, and has no way to say so.
    return (made.partition_key(message.key) if message.key else made).build()
