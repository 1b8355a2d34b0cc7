"""Many cursors are moved at once, each to its place; through the real Pulsar."""

import pytest

from cloud_jobs.pulsar_source.acknowledging import acknowledge
from cloud_jobs.pulsar_source.options import PulsarOptions, SourceCluster
from cloud_jobs.pulsar_source.position import LedgerPosition
from tests.cloud_jobs.pulsar_source.world import LiveCluster, eventually

pytestmark = pytest.mark.system
PARTITIONS = 20
ENTRIES = 3
SUBSCRIPTION = "s"


class Acknowledger:
    """Acknowledges places of one topic, each partition of which has ENTRIES entries."""

    def __init__(self, place: LiveCluster, **bounds: str) -> None:
        self.topic = place.new_topic(PARTITIONS)
        self.partitions = sorted(place.cursors(self.topic, SUBSCRIPTION))
        for partition in self.partitions:
            place.send(partition, range(ENTRIES), batching=False)
        known = {**place.options, "topics": self.topic, "subscription": SUBSCRIPTION}
        self._options = PulsarOptions.parse(known | bounds)
        self._cluster: SourceCluster = self._options.cluster_named(place.name)
        stats = place.call("GET", f"{place.path(self.topic)}/partitioned-internalStats")["partitions"]
        self.last = {name: LedgerPosition.parse(row["lastConfirmedEntry"]) for name, row in stats.items()}

    def __call__(self, ends: dict[str, LedgerPosition]) -> dict[str, LedgerPosition]:
        return acknowledge(self._cluster, self._options, ends)


def test_each_cursor_moves_to_its_place_and_the_broker_delivers_nothing_for_it(hq: LiveCluster) -> None:
    acknowledge_to = Acknowledger(hq)
    first, second, third, *others = acknowledge_to.partitions
    ledger = {name: last.ledger for name, last in acknowledge_to.last.items()}
    ends = {
        **{name: acknowledge_to.last[name] for name in others},
        first: LedgerPosition(ledger[first], 0),
        second: LedgerPosition(ledger[second], 1, 0),  # inside an entry: the cursor stays before it
        third: LedgerPosition(ledger[third], -1),  # before every entry: there is nothing to acknowledge
    }
    assert acknowledge_to(ends) == ends
    asked = {name: str(acknowledge_to.last[name]) for name in others}
    asked |= {first: f"{ledger[first]}:0", second: f"{ledger[second]}:0"}
    eventually(
        "each cursor stands where it was asked to",
        lambda: asked.items() <= hq.cursors(acknowledge_to.topic, SUBSCRIPTION).items(),
    )
    stats = hq.call("GET", f"{hq.path(acknowledge_to.topic)}/partitioned-stats")
    assert stats["subscriptions"][SUBSCRIPTION]["msgOutCounter"] == 0
