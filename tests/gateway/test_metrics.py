"""The histogram says what the client library's own would say."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.exposition import generate_latest

from gateway.metrics import Latencies

BOUNDS_S = (0.002, 0.05, 1, 10)
SECONDS = st.sampled_from([0.0, 0.001, 0.002, 0.05, 0.5, 1.0, 10.0, 11.0]) | st.floats(0, 20)


def shown(registry: CollectorRegistry) -> list[str]:
    return [line for line in generate_latest(registry).decode().splitlines() if "_created" not in line]


@given(st.lists(SECONDS))
def test_it_shows_what_the_library_s_histogram_shows(values: list[float]) -> None:
    own, theirs = CollectorRegistry(), CollectorRegistry()
    latencies = Latencies("waiting_seconds", "How long", BOUNDS_S)
    own.register(latencies)
    histogram = Histogram("waiting_seconds", "How long", registry=theirs, buckets=BOUNDS_S)
    latencies.observe(values)
    for value in values:
        histogram.observe(value)
    assert shown(own) == shown(theirs)
