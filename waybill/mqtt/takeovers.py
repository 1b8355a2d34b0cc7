"""Whether another client takes the session over again and again: one that was cloned with its client id."""

from __future__ import annotations

__all__ = ["MANY", "Takeovers"]

MANY = 3
"""So many connections in a row that ended early are no accident."""


class Takeovers:
    """Counts connections that ended before they lasted `lasting_s`; one that lasts so long ends the count.

    Most brokers do not say that they close a connection because another one has its client id. `cause` is what is then
    probable, in words. Pure: handed the time.
    """

    def __init__(self, cause: str, lasting_s: float) -> None:
        self.lasting_s = lasting_s
        self._cause = cause
        self._count = 0
        self._connected_s: float | None = None

    @property
    def is_suspected(self) -> bool:
        """Whether it is time to say it, and to connect more seldom."""
        return self._count >= MANY

    @property
    def problem(self) -> str:
        """Why connections do not last; empty while it is not suspected."""
        if not self.is_suspected:
            return ""
        return f"the last {self._count} connections ended within {self.lasting_s:g} s, probably because {self._cause}"

    def has_lasted(self, now_s: float) -> bool:
        """Whether there is a connection, and it stands for long enough to count as good."""
        return self._connected_s is not None and now_s - self._connected_s >= self.lasting_s

    def on_connected(self, now_s: float) -> None:
        """There is a new connection."""
        self._connected_s = now_s

    def on_alive(self, now_s: float) -> None:
        """To be called now and then while there is a connection."""
        if self.has_lasted(now_s):
            self._count = 0

    def on_ended(self, now_s: float, *, is_unexplained: bool = True) -> None:
        """The connection, if there was one, ended. Where it is known why, nobody took the session over."""
        self.on_alive(now_s)
        if is_unexplained and self._connected_s is not None and not self.has_lasted(now_s):
            self._count += 1
        self._connected_s = None
