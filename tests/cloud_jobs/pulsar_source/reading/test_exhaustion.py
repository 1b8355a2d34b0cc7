"""What is never delivered is told from what is late."""

from collections.abc import Iterator
from contextlib import closing

import pulsar
import pytest

from cloud_jobs.pulsar_source.feeds import PROBE_PERIOD_S, ExhaustionProbe
from cloud_jobs.pulsar_source.options import PulsarOptions
from cloud_jobs.pulsar_source.position import LedgerPosition
from tests.cloud_jobs.pulsar_source.addresses import STATS, FakeAdmin, address, document, page

END = LedgerPosition(3, 9)


@pytest.fixture(scope="module")
def shared() -> Iterator[FakeAdmin]:
    with address() as one:
        yield one


class CursorCase:
    """A cursor, what the cluster says of how far it was read, and a connection that is flushed or not."""

    def __init__(self, place: FakeAdmin) -> None:
        self._place = place
        self.now_s = 0.0
        self.flushes = True
        clusters = f"hq=pulsar://127.0.0.1:1|{place.url}"
        options = PulsarOptions.parse({"clusters": clusters, "topics": "t", "subscription": "s"})
        self.exhaustion = ExhaustionProbe(options.clusters[0], options, "t", "s", self.flush, clock=self.clock)

    def clock(self) -> float:
        return self.now_s

    def flush(self) -> None:
        if not self.flushes:
            raise pulsar.Timeout("the connection is slow")

    def after_silence(
        self, read: str | None, upto: LedgerPosition = END, cursor: str = "s", flushes: bool = True
    ) -> bool:
        """Asked after a look's period, and once more after a receive that brought nothing."""
        row = {"markDeletePosition": "3:0", "readPosition": read}
        self._place.says = lambda _: document(STATS | {"cursors": {cursor: row}}) if read else page(200)
        self.now_s += PROBE_PERIOD_S
        self.flushes = flushes
        assert not self.exhaustion.probe(upto)
        return self.exhaustion.probe(upto)


@pytest.fixture
def case(shared: FakeAdmin) -> Iterator[CursorCase]:
    shared.asked.clear()
    one = CursorCase(shared)
    assert not one.exhaustion.probe(END)
    with closing(one.exhaustion):
        yield one


def test_two_looks_beyond_the_end_prove_it(case: CursorCase) -> None:
    assert [case.after_silence("3:10") for _ in range(2)] == [False, True]


def test_what_comes_after_the_second_look_disproves_it(case: CursorCase) -> None:
    case.after_silence("3:10")
    case.now_s += PROBE_PERIOD_S
    assert not case.exhaustion.probe(END)
    case.exhaustion.on_message()
    assert not case.exhaustion.probe(END)


def test_what_the_broker_has_sent_can_be_on_the_way_for_as_long_as_the_connection_is_not_flushed(
    case: CursorCase,
) -> None:
    assert not any(case.after_silence("3:10", flushes=False) for _ in range(20))
    assert [case.after_silence("3:10", flushes=flushed) for flushed in (True, False, True)] == [False] * 3
    assert case.after_silence("3:10")


@pytest.mark.parametrize("read", ["3:9", "3:0", "2:99", None])
def test_what_is_still_to_be_read_is_late_and_a_silent_cluster_proves_nothing(
    case: CursorCase, read: str | None
) -> None:
    assert not any(case.after_silence(read) for _ in range(5))
