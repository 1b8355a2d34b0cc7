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
_VALUE_OF: Final = {HopColour.GREEN: 1.0, HopColour.RED: 0.0}
_COUNTERS: Final = (
    ("consumed", "waybill_canary_consumed_items_total", "Items that came"),
    ("delayed", "waybill_canary_delayed_items_total", "Of these, items of probes that were whole after the limit"),
    ("lost", "waybill_canary_lost_items_total", "Items that were at the hop before and did not come"),
    ("not_reached", "waybill_canary_not_reached_items_total", "Items that never came to the hop before"),
    ("doubled", "waybill_canary_doubled_items_total", "Items that are there twice where each is there once"),
    ("wrong", "waybill_canary_wrong_items_total", "Items of probes that are not what they should be"),
    ("repeated", "waybill_canary_repeated_items_total", "Items that came again in a topic, as they may"),
)


class CanaryMetrics:
    """The metrics of one canary, in a registry of their own. The label is the hop; the region is that of the target.

    A hop that is not watched has no samples.
    """

    def __init__(self, watched: Iterable[Hop] = tuple(Hop)) -> None:
        self.registry = registry = CollectorRegistry()
        self._healthy = Gauge("waybill_canary_healthy", "1 green, 0 red, NaN unknown", ["hop"], registry=registry)
        self._level = Gauge(
            "waybill_canary_service_level_ratio",
            "Of the last hour, or since it began: (consumed - delayed) / (consumed + lost); NaN: nothing was due",
            ["hop"],
            registry=registry,
        )
        self._counters = {name: Counter(metric, text, ["hop"], registry=registry) for name, metric, text in _COUNTERS}
        self._latency = Histogram(
            "waybill_canary_latency_seconds",
            "From an item's device time to the hop",
            ["hop"],
            buckets=_LATENCY_S,
            registry=registry,
        )
        self._probes = Counter("waybill_canary_probes_total", "Probes that were sent as a whole", registry=registry)
        self._cut = Counter("waybill_canary_cut_probes_total", "Probes that were not", registry=registry)
        self._last = Gauge(
            "waybill_canary_last_probe_timestamp_seconds",
            "When the newest probe was sent as a whole; NaN: none was since this process began",
            registry=registry,
        )
        self._last.set(nan)
        self._started = Gauge(
            "waybill_canary_started_timestamp_seconds",
            "When this process began: from then on probes are expected",
            registry=registry,
        )
        # from the start: a counter that appears with its first fault shows no increase
        for hop in watched:
            self.set_hop(HopState(hop, HopColour.UNKNOWN), HopCounts(), None)

    def set_hop(self, state: HopState, news: HopCounts, level: float | None) -> None:
        """A hop as it is now, and what its counts have grown by."""
        hop = state.hop.value
        self._healthy.labels(hop).set(_VALUE_OF.get(state.colour, nan))
        self._level.labels(hop).set(nan if level is None else level)
        for name, counter in self._counters.items():
            counter.labels(hop).inc(getattr(news, name))

    def on_latencies(self, hop: Hop, values_s: Iterable[float]) -> None:
        """So long items took to a hop."""
        histogram = self._latency.labels(hop.value)
        for value_s in values_s:
            histogram.observe(value_s)

    def on_begin(self, now_s: float) -> None:
        """The canary begins: from now on probes are expected."""
        self._started.set(now_s)

    def on_probe(self, now_s: float, *, is_whole: bool) -> None:
        """A probe was sent, or cut."""
        # a canary that cuts each probe is silent, too
        if not is_whole:
            self._cut.inc()
            return
        self._probes.inc()
        self._last.set(now_s)
