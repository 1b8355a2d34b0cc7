"""Since when an acknowledgement is awaited, and the pause that a gateway may ask for. Pure."""

from __future__ import annotations


class AckWait:
    """Since when a region has not acknowledged: from the first batch sent after its last acknowledgement.

    Sending again and connecting again do not move it.
    """

    def __init__(self) -> None:
        self.waiting_since_s: float | None = None

    def on_sent(self, now_s: float) -> None:
        """A batch was sent."""
        if self.waiting_since_s is None:
            self.waiting_since_s = now_s

    def on_acked(self, now_s: float, *, more_in_flight: bool) -> None:
        """The region acknowledged something that was sent to it."""
        self.waiting_since_s = now_s if more_in_flight else None

    def reset(self) -> None:
        """Another region, or nothing is left that an answer could be about."""
        self.waiting_since_s = None


class Pause:
    """Silence that the gateway asked for: of everything but urgent records, and never longer than `most_s` in one go.

    After a pause something is sent before another one counts, so no number of requests makes it endless.
    """

    def __init__(self, max_s: float) -> None:
        self._max_s = max_s
        self._began_s = 0.0
        self._may_begin = True
        self.until_s = 0.0

    def request(self, now_s: float, pause_s: float) -> None:
        """The gateway asks for a pause from now on."""
        if not pause_s > 0:
            return
        if now_s >= self.until_s:
            if not self._may_begin:
                return
            self._may_begin = False
            self._began_s = now_s
        self.until_s = min(max(self.until_s, now_s + pause_s), self._began_s + self._max_s)

    def on_sent(self, now_s: float) -> None:
        """A batch was sent."""
        if now_s >= self.until_s:
            self._may_begin = True

    def left_s(self, now_s: float) -> float:
        """Seconds until it is over."""
        return max(0.0, self.until_s - now_s)
