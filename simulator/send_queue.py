"""What one vehicle still has to send: pure bookkeeping, in order, with a bound on what is under way.

A broker may take a message and say that nobody subscribes to its topic (MQTT 5 reason 16): then nobody keeps it, so it
goes back to its place in the order and is sent again later. Until a first message got through, only one is under way.
"""

import heapq
from collections.abc import Iterator

from simulator.messages import VehicleMessage


class SendQueue:
    """The messages of one vehicle that its broker has not kept yet. Times are seconds of any clock that only runs on.

    `window`: how many may be under way at once. `room`: how many may wait here; `full` says when to hold back.
    """

    def __init__(self, *, window: int, room: int, retry_s: float, now_s: float) -> None:
        self._window, self._room, self._retry_s = window, room, retry_s
        self._waiting: list[tuple[int, VehicleMessage]] = []
        self._under_way: dict[int, tuple[int, VehicleMessage]] = {}
        self._open = False
        self._not_before_s = now_s
        self._count = 0
        self.last_progress_s = now_s
        self.kept = 0
        self.refused = 0

    @property
    def full(self) -> bool:
        """Whether no more may be put in: the caller waits."""
        return len(self._waiting) >= self._room

    @property
    def empty(self) -> bool:
        """Whether everything put in was kept by the broker."""
        return not self._waiting and not self._under_way

    @property
    def never_answered(self) -> bool:
        """Whether nobody was there to keep the message that was answered last."""
        return self.refused > 0 and not self._open

    @property
    def under_way(self) -> int:
        """How many messages were sent and not answered."""
        return len(self._under_way)

    def put(self, message: VehicleMessage, now_s: float) -> None:
        """Take the next message of the vehicle; never more than the bound."""
        assert not self.full, "the caller asks first whether there is room"
        # Until now there was nothing to do, and that is no lack of progress.
        if self.empty:
            self.last_progress_s = now_s
        heapq.heappush(self._waiting, (self._count, message))
        self._count += 1

    def sendable(self, now_s: float) -> Iterator[tuple[int, VehicleMessage]]:
        """The messages that may go now, with their numbers; the caller says `sent` before it takes the next."""
        while self._waiting and now_s >= self._not_before_s:
            if len(self._under_way) >= (self._window if self._open else 1):
                return
            yield heapq.heappop(self._waiting)

    def sent(self, name: int, number: int, message: VehicleMessage) -> None:
        """The message went out under the MQTT packet identifier `name`."""
        self._under_way[name] = (number, message)

    def on_answer(self, name: int, *, kept: bool, now_s: float) -> None:
        """The broker answered for packet `name`: it keeps the message, or nobody there wants it."""
        if name not in self._under_way:
            return
        number, message = self._under_way.pop(name)
        # Closed again by a refusal: while nobody subscribes, one message at a time finds that out.
        self._open = kept
        if kept:
            self.kept += 1
            self.last_progress_s = now_s
        else:
            self.refused += 1
            self._not_before_s = now_s + self._retry_s
            heapq.heappush(self._waiting, (number, message))
