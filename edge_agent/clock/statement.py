"""How far the vehicle was heard, and what that lets the agent state of its head. Pure: handed the clocks.

A statement is made of the past: "every message up to then came in". It stands still while the vehicle's broker cannot
be heard, and while it still delivers what it kept.
"""

from __future__ import annotations

from typing import NamedTuple

QUIET_US = 5_000_000
"""A broker that delivers nothing for so long, though nothing waits for its acknowledgement, has kept nothing more."""


class HeadStatement(NamedTuple):
    """No record of the epoch with a seq above `head` has a device time before `stated_us`, or will have one."""

    epoch: int
    head: int
    stated_us: int


class HeardThrough:
    """Up to which moment of the monotonic clock all that the vehicle sent came in. Times in microseconds.

    `grace_us`: how much older than the moment at which it reached the broker the time of a message may be.
    """

    def __init__(self, grace_us: int) -> None:
        self._grace_us = grace_us
        self._is_connected = self._is_caught_up = False
        self._latest_us = self._kept_us = 0
        self.heard_us: int | None = None
        """None: not since the agent started, or since a message came too late for what was stated."""

    def on_connected(self, now_us: int, *, resumed: bool) -> None:
        """A connection to the vehicle's broker. `resumed`: it may have kept messages, and delivers those first."""
        self._is_connected, self._is_caught_up = True, not resumed
        self._latest_us = self._kept_us = now_us

    def on_disconnected(self) -> None:
        """What is sent from now on is not heard."""
        self._is_connected = False

    def on_message(self, now_us: int, age_us: int | None) -> None:
        """A message came. `age_us`: by its own time; None of one that has none, or that the broker would not keep."""
        self._latest_us = now_us
        if age_us is None:
            return
        self._kept_us = now_us
        if age_us > self._grace_us:
            # in order: behind a message that waited at the broker others wait
            self._is_caught_up = False
        elif not self._is_caught_up:
            # what reached the broker before this one was made came before it
            self.heard_us = max(self.heard_us or 0, now_us - max(age_us, 0))

    def on_redelivered(self, now_us: int) -> None:
        """A message came that is stored already: the broker is still busy with what it kept."""
        self._latest_us = self._kept_us = now_us

    def on_contradicted(self) -> None:
        """A message was older than what was stated: how far the vehicle was heard is unknown until it is caught up."""
        self._is_caught_up, self.heard_us = False, None

    def look(self, now_us: int, *, waits: bool) -> None:
        """All that the connection brought was taken. `waits`: something is not acknowledged, so the broker may wait."""
        if not self._is_connected:
            return
        is_quiet = not waits and now_us - self._latest_us >= QUIET_US
        # what has no time of its own gets that of its arrival, so only a message that has one could be too old: of a
        # broker that is still delivering what it kept, one would have come by now
        if is_quiet or now_us - self._kept_us >= self._grace_us:
            self._is_caught_up = True
        if self._is_caught_up:
            self.heard_us = now_us
