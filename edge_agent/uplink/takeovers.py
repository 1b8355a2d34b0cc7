"""Whether another client takes the session over again and again: an agent that was cloned with its id, and runs too."""

from __future__ import annotations

MANY = 3
"""So many connections in a row that the broker closed early are no accident."""


class Takeovers:
    """Counts connections that the broker closed before they lasted `lasting_s`; one that lasts so long ends the count.

    Most brokers do not say that they close a connection because another one has its client id. Pure: handed the time.
    """

    def __init__(self, device: str, lasting_s: float) -> None:
        self.lasting_s = lasting_s
        self._device = device
        self._count = 0
        self._connected_s: float | None = None

    @property
    def is_suspected(self) -> bool:
        """Whether it is time to say it, and to connect more seldom."""
        return self._count >= MANY

    def on_connected(self, now_s: float) -> None:
        """There is a new connection."""
        self._connected_s = now_s

    def on_alive(self, now_s: float) -> None:
        """To be called now and then while there is a connection."""
        if self._connected_s is not None and now_s - self._connected_s >= self.lasting_s:
            self._count = 0

    def on_closed(self, now_s: float) -> str:
        """The broker closed the connection; what there is to say of it, or ""."""
        self.on_alive(now_s)
        self._count += self._connected_s is not None
        self._connected_s = None
        if not self.is_suspected:
            return ""
        return (
            f"; the last {self._count} connections were closed within {self.lasting_s:g} s,"
            f" probably because another agent has the id {self._device!r}: each needs an id of its own"
        )
