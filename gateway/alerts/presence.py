"""The alert processes of a region and how much each holds, so that they share evenly, whoever comes or goes. Pure.

Each says every second how many partitions it holds. Whoever holds at least two more than another gives one back.
"""

from __future__ import annotations

import json
from typing import Any, Final

from telemetry import InvalidJson, parse_json

__all__ = ["PRESENT_S", "Presence", "decode_presence", "encode_presence"]

PRESENT_S: Final = 3.5
"""A process that has said nothing for so long is not there."""
REST_S: Final = PRESENT_S + 0.5
"""After we took or gave a partition none is given for so long: what is heard until then may be of before."""
# whoever may write to the topic could name any number
MAX_PROCESSES: Final = 1000
_MAX_BYTES: Final = 1000


class Presence:
    """Who is there besides us. `instance`: what distinguishes this start of this process from every other."""

    def __init__(self, instance: str) -> None:
        self.instance = instance
        self._heard: dict[str, tuple[float, int]] = {}
        self._rests_until_s = 0.0

    def on_changed(self, now_s: float) -> None:
        """We took a partition, or gave one."""
        self._rests_until_s = now_s + REST_S

    def note(self, instance: str, held: int, now_s: float) -> None:
        """A process said that it holds so many partitions."""
        if instance != self.instance and (instance in self._heard or len(self._heard) < MAX_PROCESSES):
            self._heard[instance] = now_s, held

    def others(self, now_s: float) -> list[int]:
        """How many partitions each of the others holds that is there."""
        # whoever was killed says nothing more, and must not be waited for
        self._heard = {name: one for name, one in self._heard.items() if now_s - one[0] < PRESENT_S}
        return [held for _, held in self._heard.values()]

    def comes_first(self, held: int, now_s: float) -> bool:
        """Whether nobody holds fewer than we do: a partition that is free is ours to take."""
        return held <= min(self.others(now_s), default=held)

    def is_to_give(self, held: int, now_s: float) -> bool:
        """Whether another process should have one of ours."""
        return now_s >= self._rests_until_s and held >= min(self.others(now_s), default=held) + 2


def encode_presence(instance: str, held: int) -> bytes:
    """What a process says of itself."""
    return json.dumps({"instance": instance, "held": held}).encode()


def decode_presence(data: bytes) -> tuple[str, int] | None:
    """Which process holds how many; None for what is no such message."""
    try:
        said: Any = parse_json(data, max_bytes=_MAX_BYTES)
    except InvalidJson:
        return None
    if not isinstance(said, dict) or type(said.get("instance")) is not str or type(said.get("held")) is not int:
        return None
    return said["instance"], said["held"]
