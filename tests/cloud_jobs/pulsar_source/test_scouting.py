"""The readers of the look ahead are given back where they hold much more than they may prefetch."""

from typing import Any

import pytest

from cloud_jobs.pulsar_source.ledgers import Ledger, TopicState
from cloud_jobs.pulsar_source.options import PulsarOptions
from cloud_jobs.pulsar_source.position import Position, Range
from cloud_jobs.pulsar_source.scouting import Scouts

TOPIC = "persistent://public/default/t"
OPTIONS = PulsarOptions.parse({"clusters": "hq=pulsar://h:1|http://h:2", "topics": TOPIC, "subscription": "s"})
STATES = {TOPIC: TopicState((Ledger(7, 9, 90),), Position(7, 8), Position(7, -1))}
REST, GIB = 5 << 30, 1 << 30


class Opened:
    """Stands for a scout; notes that it was closed."""

    def __init__(self, *_: Any) -> None:
        self.closed = False

    def ahead(self, *_: Any) -> list[Any]:
        return []

    def close(self) -> None:
        self.closed = True


@pytest.mark.parametrize(("held", "closed"), [(0, False), (GIB, False), (2 * GIB, True), (8 * GIB, True)])
def test_what_a_header_made_a_reader_hold_is_given_back_when_the_batch_is_planned(held: int, closed: bool):
    resident, opened = [REST], list[Opened]()

    def opening(*_: Any) -> Any:
        opened.append(Opened())
        return opened[-1]

    scouts = Scouts(OPTIONS, opening, lambda: resident[-1])
    news = [Range(TOPIC, Position(7, -1), Position(7, 8))]
    for batch in range(2):
        scouts.ahead(OPTIONS.all_clusters()[0], STATES, news, careful=False)
        resident.append(REST + held)
        scouts.rest()
        assert opened[-1].closed is (closed and batch == 0)  # what is held then at rest is not the readers'
        assert len(opened) == 1 + (closed and batch == 1)
