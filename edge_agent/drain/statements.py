"""What the batches that are sent state of the head, and when a heartbeat states it alone. Pure: handed the time."""

from __future__ import annotations

from edge_agent.clock.statement import HeadStatement
from edge_agent.store.identity import RESTORED
from edge_agent.store.rebuild import CORRUPT
from waybill.record import Batch, Header, TooLarge, encode, read_header, with_statement


class Statements:
    """The latest statement, and when something was last stated to a region.

    `heartbeat_s`: a heartbeat is due when nothing was stated for so long. `timeout_s`: without an answer a heartbeat
    counts as lost after so long.
    """

    def __init__(self, device: str, heartbeat_s: float, timeout_s: float, now_s: float) -> None:
        self._device = device
        self._heartbeat_s = heartbeat_s
        self._timeout_s = timeout_s
        self._stated_s = now_s
        self._sent: HeadStatement | None = None
        self._under_way_since_s: float | None = None
        self.current: HeadStatement | None = None
        """What is true now; None: the agent does not know."""
        self.heartbeats = 0
        """Heartbeats that were sent since the agent started."""

    def put_on(self, data: bytes, now_s: float) -> bytes:
        """The encoded batch with what can be stated now; as it is if that is nothing."""
        header = read_header(data)
        current = self.current
        if current is None:
            return data
        # of a former epoch only where its end is declared: another machine may go on with a copy of it
        is_current = header.epoch == current.epoch
        if not is_current and not _has_declared_end(header):
            return data
        try:
            stated = with_statement(data, max(header.head, current.head * is_current), current.stated_us)
        except TooLarge:
            # a header that was as large as it may be
            return data
        if is_current:
            self._note(current, now_s)
        return stated

    def due_in(self, now_s: float) -> float | None:
        """Seconds until a heartbeat is due; None: it would state nothing new, or one is under way."""
        current, sent = self.current, self._sent
        if current is None or (
            sent is not None and sent.epoch == current.epoch and sent.stated_us >= current.stated_us
        ):
            return None
        due_s = self._stated_s + self._heartbeat_s
        if self._under_way_since_s is not None:
            due_s = max(due_s, self._under_way_since_s + self._timeout_s)
        return max(0.0, due_s - now_s)

    def take_heartbeat(self, now_s: float) -> tuple[int, bytes]:
        """The epoch and the bytes of the heartbeat that is due, which is under way from now on."""
        current = self.current
        assert current is not None, "only what can be stated is due"
        self._note(current, now_s)
        self._under_way_since_s = now_s
        self.heartbeats += 1
        return current.epoch, encode(Batch(self._device, current.epoch, current.head, stated_us=current.stated_us))

    def on_heartbeat_answered(self) -> None:
        """The heartbeat that was under way is not any more: the region has it, or nobody there takes it."""
        self._under_way_since_s = None

    def on_disconnected(self) -> None:
        """What was under way may be lost; the next one says the same and more."""
        self._under_way_since_s = None

    def _note(self, current: HeadStatement, now_s: float) -> None:
        self._sent, self._stated_s = current, now_s


def _has_declared_end(header: Header) -> bool:
    """Whether the head of an epoch was declared lost when the epoch was ended: nothing was or will be above it."""
    return any(one.last == header.head and one.reason in {CORRUPT, RESTORED} for one in header.tombstones)
