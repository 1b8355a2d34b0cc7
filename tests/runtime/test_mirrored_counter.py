"""A mirrored counter shows what a counter of the client library would, had it counted itself."""

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter
from prometheus_client.exposition import generate_latest

from waybill.daemon.status_server import MirroredCounter


def shown(registry: CollectorRegistry) -> set[str]:
    return {line for line in generate_latest(registry).decode().splitlines() if "_created" not in line}


@given(st.lists(st.sampled_from(["late", "malformed", 'a "quoted" one'])))
def test_it_shows_what_the_library_s_counter_shows(reasons: list[str]) -> None:
    own, theirs = CollectorRegistry(), CollectorRegistry()
    mirrored = MirroredCounter("refused_total", "Refused", ["reason"], registry=own)
    counter = Counter("refused_total", "Refused", ["reason"], registry=theirs)
    for reason in reasons:
        counter.labels(reason).inc()
        mirrored.set(reasons.count(reason), reason)
    assert shown(own) == shown(theirs)
