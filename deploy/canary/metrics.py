"""What a canary counts, for Prometheus. `docs/canaries.md` lists every metric."""

from __future__ import annotations

from collections.abc import Iterable
from math import nan
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from deploy.canary.hops import Hop
from deploy.canary.probe_at_hop import HopColour, HopCounts, HopState

__all__ = ["CanaryMetrics"]

_LATENCY_S: Final = (0.05, 0.1, 0.2, 0.3, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300)
_LABELS: Final = ("hop", "region")
_VALUE_OF: Final = {HopColour.GREEN: 1.0, HopColour.RED: 0.0, HopColour.UNKNOWN: nan}


class CanaryMetrics:
    """The metrics of one canary, in a registry of their own: labels are the hop and the region, and no device."""

    def __init__(self, region: str) -> None:
        self.registry = registry = CollectorRegistry()
        self._region = region
        self._state = Gauge("waybill_canary_hop_state", "1 green, 0 red, NaN unknown", _LABELS, registry=registry)
        self._level = Gauge(
            "waybill_canary_service_level",
            "Of the last hour: (consumed - delayed) / (consumed + lost); NaN: nothing was due",
            _LABELS,
            registry=registry,
        )
        self._counters = {
            name: Counter(metric, text, _LABELS, registry=registry)
            for name, metric, text in (
                ("consumed", "waybill_canary_consumed", "Items that came"),
                ("delayed", "waybill_canary_delayed", "Of these, items of probes that came too late"),
                ("lost", "waybill_canary_lost", "Items that did not come in time to be counted"),
                ("doubled", "waybill_canary_doubled", "Items that are there twice where each is there once"),
                ("wrong", "waybill_canary_wrong", "Items of probes that are not what they should be"),
                ("repeated", "waybill_canary_repeated", "Messages that came again, as they may"),
            )
        }
        self._latency = Histogram(
            "waybill_canary_latency_seconds",
            "From an item's device time to the hop",
            _LABELS,
            buckets=_LATENCY_S,
            registry=registry,
        )
        self._probes = Counter(
            "waybill_canary_probes", "Probes that were sent as a whole", ["region"], registry=registry
        )
        self._cut = Counter("waybill_canary_probes_cut", "Probes that were not", ["region"], registry=registry)
        for hop in Hop:
            self.set_hop(HopState(hop, HopColour.UNKNOWN), HopCounts(), None)

    def set_hop(self, state: HopState, news: HopCounts, level: float | None) -> None:
        """A hop as it is now, and what its counts have grown by."""
        labels = (state.hop.value, self._region)
        self._state.labels(*labels).set(_VALUE_OF[state.colour])
        self._level.labels(*labels).set(nan if level is None else level)
        for name, counter in self._counters.items():
            counter.labels(*labels).inc(getattr(news, name))

    def on_latencies(self, hop: Hop, values_s: Iterable[float]) -> None:
        """So long items took to a hop."""
        histogram = self._latency.labels(hop.value, self._region)
        for value_s in values_s:
            histogram.observe(value_s)

    def on_probe(self, *, is_whole: bool) -> None:
        """A probe was sent, or cut."""
        (self._probes if is_whole else self._cut).labels(self._region).inc()
