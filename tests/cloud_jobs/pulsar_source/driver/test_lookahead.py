"""The readers of the look ahead are given back where they hold much more than they may prefetch."""

from typing import Any

import pytest

from cloud_jobs.pulsar_source.cluster.partition_state import LedgerInfo, PartitionState
from cloud_jobs.pulsar_source.driver.lookahead import Lookaheads
from cloud_jobs.pulsar_source.options import PulsarOptions
from cloud_jobs.pulsar_source.position import LedgerPosition, PartitionRange

TOPIC = "persistent://public/default/t"
OPTIONS = PulsarOptions.parse({"clusters": "hq=pulsar://h:1|http://h:2", "topics": TOPIC, "subscription": "s"})
STATES = {TOPIC: PartitionState((LedgerInfo(7, 9, 90),), LedgerPosition(7, 8), LedgerPosition(7, -1))}
REST, GIB = 5 << 30, 1 << 30


class Opened:
    """Stands for a scout; notes that it was closed."""

    def __init__(self, *_: Any) -> None:
        self.closed = False

    def messages_between(self, *_: Any) -> list[Any]:
        return []

    def close(self) -> None:
        self.closed = True


@pytest.mark.parametrize(("held", "closed"), [(0, False), (GIB, False), (2 * GIB, True), (8 * GIB, True)])
def test_what_a_header_made_a_reader_hold_is_given_back_when_the_batch_is_planned(held: int, closed: bool) -> None:
    resident, opened = [REST], list[Opened]()

    def opening(*_: Any) -> Any:
        opened.append(Opened())
        return opened[-1]

    lookaheads = Lookaheads(OPTIONS, opening, lambda: resident[-1])
    news = [PartitionRange(TOPIC, LedgerPosition(7, -1), LedgerPosition(7, 8))]
    for batch in range(2):
        lookaheads.messages_by_topic(OPTIONS.all_clusters()[0], STATES, news, isolated=False)
        resident.append(REST + held)
        lookaheads.close_if_large()
        assert opened[-1].closed is (closed and batch == 0)  # what is held then at rest is not the readers'
        assert len(opened) == 1 + (closed and batch == 1)
