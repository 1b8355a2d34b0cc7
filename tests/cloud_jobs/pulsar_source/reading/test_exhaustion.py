"""When what is waited for is called never delivered; the cluster is an address on loopback."""

from collections.abc import Iterator
from contextlib import closing

import pulsar
import pytest

from cloud_jobs.pulsar_source.options import PulsarOptions
from cloud_jobs.pulsar_source.position import LedgerPosition
from cloud_jobs.pulsar_source.reading.feeds import PROBE_PERIOD_S, ExhaustionProbe
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
        self.exhaustion = ExhaustionProbe(options.all_clusters()[0], options, "t", "s", self.flush, clock=self.clock)

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


def test_a_cursor_that_is_being_opened_has_no_position_and_proves_nothing(case: CursorCase) -> None:
    assert not any(case.after_silence(text) for text in ("null", "(null)", "-") for _ in range(2))
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


def test_nothing_is_asked_before_the_silence_lasts(case: CursorCase, shared: FakeAdmin) -> None:
    case.now_s += PROBE_PERIOD_S * 0.9
    assert not case.exhaustion.probe(END)
    assert not shared.asked


@pytest.mark.parametrize("read", ["3:9", "3:0", "2:99", None])
def test_what_is_still_to_be_read_is_late_and_a_silent_cluster_proves_nothing(
    case: CursorCase, read: str | None
) -> None:
    assert not any(case.after_silence(read) for _ in range(5))


def test_one_look_in_doubt_begins_anew(case: CursorCase) -> None:
    looks = [case.after_silence(read) for read in ("3:10", None, "3:10", "3:9", "3:10", "4:0")]
    assert looks == [False] * 5 + [True]


def test_what_came_begins_anew(case: CursorCase) -> None:
    assert not case.after_silence("3:10")
    case.exhaustion.on_message()
    assert not case.exhaustion.probe(END)  # the silence begins
    assert [case.after_silence("3:10") for _ in range(2)] == [False, True]


def test_a_farther_end_is_proven_by_itself(case: CursorCase) -> None:
    far = LedgerPosition(3, 20)
    assert [case.after_silence("3:21", END), case.after_silence("3:21", far)] == [False, False]
    assert case.after_silence("3:21", far)


@pytest.mark.parametrize(("cursor", "proven"), [("s", True), ("s-reader-1f", True), ("s2", False), ("s-2", False)])
def test_only_its_own_cursor_counts(case: CursorCase, cursor: str, proven: bool) -> None:
    answers = [case.after_silence("3:10", cursor=cursor) for _ in range(2)]
    assert any(answers) == proven
