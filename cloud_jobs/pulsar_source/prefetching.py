"""How many messages a consumer may hold ahead, so that it holds about `prefetchBytes` of what they unpack to.

The client counts its queue in messages, and a broker knows only what they have packed: 47 kB can be 1 GiB. So each
process remembers what the messages of a topic came to, and a consumer of a topic that is new to it begins with a few.
"""

from collections.abc import Sequence
from typing import Any

from cloud_jobs.pulsar_source.topics import split_partition

FIRST_QUEUE = 8
"""How many messages are held ahead of a topic that this process has not seen."""

_FAR = 4
_SAMPLES = 8
_MAX_TOPICS = 10_000


class Sizes:
    """What the messages of each topic come to when they are unpacked, as this process saw them."""

    def __init__(self) -> None:
        self._mean: dict[str, float] = {}

    def note(self, topic: str, messages: Sequence[Any]) -> None:
        """Native messages of a topic partition; growth counts at once, shrinkage by and by."""
        name = split_partition(topic)[0]
        sampled = messages[:: max(1, len(messages) // _SAMPLES)]
        mean = sum(message.length() for message in sampled) / len(sampled)
        if len(self._mean) >= _MAX_TOPICS and name not in self._mean:
            self._mean.clear()
        self._mean[name] = max(mean, (3 * self._mean.get(name, mean) + mean) / 4)

    def queue(self, topic: str, most: int, prefetch_bytes: int) -> int:
        """How many messages of a topic partition may be held ahead; `most`: by what they are packed."""
        mean = self._mean.get(split_partition(topic)[0])
        allowed = FIRST_QUEUE if mean is None else int(prefetch_bytes / max(1.0, mean))
        return min(most, max(1, allowed))

    @staticmethod
    def differ(queue: int, other: int) -> bool:
        """Whether two lengths of a queue are so far apart that a consumer is worth being opened again."""
        return queue >= _FAR * other or other >= _FAR * queue


SIZES = Sizes()
"""This process's."""
