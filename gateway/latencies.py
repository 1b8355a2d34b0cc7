"""How long things take, as a histogram for Prometheus that costs little for each of them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate

from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector


class Latencies(Collector):
    """A histogram with these upper bounds of its buckets, ascending, in seconds. One thread observes, any may collect.

    The client library's own goes through its buckets one by one and takes two locks for each value.
    """

    def __init__(self, name: str, text: str, bounds_s: Sequence[float]) -> None:
        self._name, self._text, self._bounds_s = name, text, tuple(bounds_s)
        self._counts = [0] * (len(bounds_s) + 1)
        self._sum_s = 0.0

    def observe(self, values_s: Iterable[float]) -> None:
        """So long they took."""
        for value_s in values_s:
            self._counts[bisect_left(self._bounds_s, value_s)] += 1
            self._sum_s += value_s

    def collect(self) -> Iterator[HistogramMetricFamily]:
        """What was observed, as Prometheus has it: each bucket counts those below it, too."""
        names = [*map(str, map(float, self._bounds_s)), "+Inf"]
        buckets = list(zip(names, accumulate(self._counts), strict=True))
        yield HistogramMetricFamily(self._name, self._text, buckets=buckets, sum_value=self._sum_s)
