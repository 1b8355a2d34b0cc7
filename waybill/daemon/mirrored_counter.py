"""A metric of type counter whose numbers somebody else counts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector, CollectorRegistry

__all__ = ["MirroredCounter"]


class MirroredCounter(Collector):
    """Shows what was counted elsewhere, since the start of the process. One thread sets, any may collect.

    A gauge would do for the numbers, but says to whoever reads it that they may fall, and `rate()` is not for it.
    """

    def __init__(self, name: str, text: str, labels: Sequence[str] = (), *, registry: CollectorRegistry) -> None:
        self._name, self._text, self._labels = name, text, tuple(labels)
        self._counts: dict[tuple[str, ...], float] = {} if labels else {(): 0.0}
        registry.register(self)

    def set(self, count: float, *labels: str) -> None:
        """So much was counted, of these values of the labels."""
        assert len(labels) == len(self._labels), "each label has a value"
        self._counts[labels] = count

    def collect(self) -> Iterator[CounterMetricFamily]:
        """All that was set."""
        family = CounterMetricFamily(self._name, self._text, labels=self._labels)
        for labels, count in [*self._counts.items()]:
            family.add_metric(labels, count)
        yield family
