"""Which cluster is read when what answers is not what it should be; clusters are addresses on loopback."""

import json
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from cloud_jobs.pulsar_source import AccessRefused, SourceClusterUnreachable
from cloud_jobs.pulsar_source.driver.cluster_monitor import ClusterMonitor, SilentClusters
from cloud_jobs.pulsar_source.driver.driver import Driver, Ownership
from cloud_jobs.pulsar_source.errors import FailoverFileError, NoClusterAnswers
from cloud_jobs.pulsar_source.options import PulsarOptions
from cloud_jobs.pulsar_source.position import LedgerPosition, Offset
from tests.cloud_jobs.pulsar_source.addresses import FakeAdmin, Reply, address, cluster_says, document, page

TOPIC = "persistent://t/n/x"


class PausingClock:
    """Time that passes when somebody waits."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s

    def pause(self, seconds: float) -> None:
        self.now_s += seconds


@pytest.fixture(scope="module")
def places() -> Iterator[tuple[FakeAdmin, FakeAdmin]]:
    with address() as first, address() as second:
        yield first, second


@pytest.fixture
def hq(places: tuple[FakeAdmin, FakeAdmin]) -> FakeAdmin:
    places[0].says = cluster_says
    return places[0]


@pytest.fixture
def dr(places: tuple[FakeAdmin, FakeAdmin]) -> FakeAdmin:
    places[1].says = cluster_says
    return places[1]


def options_of(tmp_path: Path, *places: FakeAdmin) -> PulsarOptions:
    clusters = (f"{name}=pulsar://127.0.0.1:1|{place.url}" for name, place in zip(("hq", "dr"), places, strict=False))
    return PulsarOptions.parse(
        {
            "clusters": ",".join(clusters),
            "topics": TOPIC,
            "subscription": "s",
            "failoverFile": str(tmp_path / "failover.json"),
            "readTimeoutSeconds": "20",
        }
    )


@contextmanager
def monitor_of(clock: PausingClock, tmp_path: Path, *places: FakeAdmin) -> Iterator[ClusterMonitor]:
    with closing(ClusterMonitor(options_of(tmp_path, *places), clock, clock.pause)) as monitor:
        yield monitor


class Alone(Ownership):
    """There is no broker at these addresses that could show another query."""

    def claim(self, *_: object) -> bool:
        return True


def driver_of(tmp_path: Path, *places: FakeAdmin) -> Driver:
    """A driver whose failover file is that of its checkpoint."""
    options = options_of(tmp_path, *places)
    kept = {"version": 2, "query": "q", "subscription": "s", "topics": TOPIC, "active": "hq", "abandoned": []}
    (tmp_path / "failover.json").write_text(json.dumps(kept))
    return Driver(options, ownership=Alone(options))


NO_CLUSTER = [page(200), page(404), page(401), page(403), page(429), page(503), document({}), Reply(200)]


@pytest.mark.parametrize("reply", NO_CLUSTER, ids=lambda reply: f"{reply.status} {reply.content_type}")
def test_a_load_balancer_that_answers_for_a_lost_cluster_does_not_keep_the_query_there(
    tmp_path: Path, hq: FakeAdmin, dr: FakeAdmin, reply: Reply
) -> None:
    clock = PausingClock()
    with monitor_of(clock, tmp_path, hq, dr) as monitor:
        assert monitor.look_at_active().cluster.name == "hq"
        hq.says = lambda _: reply
        assert monitor.look_at_active().cluster.name == "dr"
        assert 3 <= clock.now_s < 4  # clusterLostAfterSeconds


def test_a_page_that_passes_does_not_move_the_query(tmp_path: Path, hq: FakeAdmin, dr: FakeAdmin) -> None:
    clock = PausingClock()
    replies = iter([page(502), page(429), page(401)])
    with monitor_of(clock, tmp_path, hq, dr) as monitor:
        hq.says = lambda path: next(replies, None) or cluster_says(path)
        assert monitor.look_at_active().cluster.name == "hq"


def test_the_only_cluster_says_at_once_that_it_refuses_us(tmp_path: Path, hq: FakeAdmin) -> None:
    clock = PausingClock()
    hq.says = lambda _: page(401)
    with monitor_of(clock, tmp_path, hq) as monitor, pytest.raises(AccessRefused, match=r"hq.*401"):
        monitor.look_at_active()
    assert clock.now_s == 0


def test_where_every_cluster_refuses_us_the_query_says_so_and_does_not_wait_for_all_the_time(
    tmp_path: Path, hq: FakeAdmin, dr: FakeAdmin
) -> None:
    clock = PausingClock()
    hq.says = dr.says = lambda _: page(401)
    with monitor_of(clock, tmp_path, hq, dr) as monitor, pytest.raises(AccessRefused):
        monitor.look_at_active()
    assert clock.now_s < 4


def test_where_no_cluster_answers_the_last_error_is_reported(tmp_path: Path, hq: FakeAdmin) -> None:
    clock = PausingClock()
    hq.says = lambda _: page(429)
    with monitor_of(clock, tmp_path, hq) as monitor, pytest.raises(NoClusterAnswers, match="answered with 429"):
        monitor.look_at_active()
    assert 20 <= clock.now_s < 24  # readTimeoutSeconds


def test_a_time_out_is_waited_for_once(tmp_path: Path, hq: FakeAdmin, monkeypatch: pytest.MonkeyPatch) -> None:
    waits = []

    def active(_: ClusterMonitor) -> None:
        waits.append(1)
        raise NoClusterAnswers("hq", "looking", "nothing")

    monkeypatch.setattr(ClusterMonitor, "look_at_active", active)
    with closing(driver_of(tmp_path, hq)) as driver, pytest.raises(SourceClusterUnreachable):
        driver.choose_end(
            Offset("hq", {TOPIC: LedgerPosition(3, 4)}, generations={TOPIC: "4f"}, query="q"), limited=False
        )
    assert len(waits) == 1


def test_a_page_in_the_place_of_a_topic_is_no_loss_of_its_data(tmp_path: Path, hq: FakeAdmin, dr: FakeAdmin) -> None:
    start = Offset("hq", {TOPIC: LedgerPosition(3, 4)}, generations={TOPIC: "4f"}, query="q")
    with closing(driver_of(tmp_path, hq, dr)) as driver:
        assert driver.choose_end(start, limited=False).positions == {TOPIC: LedgerPosition(3, 9)}
        replies = iter([page(404), page(404)])
        hq.says = lambda path: next(replies, None) or cluster_says(path)
        assert driver.choose_end(start, limited=False).positions == {TOPIC: LedgerPosition(3, 9)}


def test_a_topic_that_was_taken_out_of_the_options_is_no_loss(tmp_path: Path, hq: FakeAdmin) -> None:
    start = Offset(
        "hq",
        {TOPIC: LedgerPosition(3, 4), "persistent://t/n/taken-out": LedgerPosition(1, 1)},
        generations={TOPIC: "4f"},
        query="q",
    )
    with closing(driver_of(tmp_path, hq)) as driver:
        assert driver.choose_end(start, limited=False).positions == {TOPIC: LedgerPosition(3, 9)}


def test_a_topic_that_is_met_with_a_cursor_is_planned_from_there(tmp_path: Path, hq: FakeAdmin) -> None:
    with closing(driver_of(tmp_path, hq)) as driver:
        start = Offset("hq", {}, query="q")
        end = driver.choose_end(start, limited=False)
        (planned,) = driver.plan(start, end)
        assert (planned.start, planned.end, planned.durable) == (LedgerPosition(3, 4), LedgerPosition(3, 9), True)


def test_a_look_pauses_only_when_it_showed_nothing(tmp_path: Path, hq: FakeAdmin) -> None:
    rests: list[float] = []
    options = options_of(tmp_path, hq)
    with closing(Driver(options, ownership=Alone(options), pause=rests.append)) as driver:
        start = driver.begin()
        end = driver.choose_end(start, limited=False)
        assert end != start
        assert not rests
        assert driver.choose_end(end, limited=False) == end
        assert len(rests) == 1


def test_where_the_failover_file_is_lost_the_last_batch_may_be_unread_and_is_read_again_from_the_cursor(
    tmp_path: Path, hq: FakeAdmin
) -> None:
    start = Offset("hq", {TOPIC: LedgerPosition(3, 7)}, generations={TOPIC: "4f"}, query="q")
    for lost, first in ((False, LedgerPosition(3, 7)), (True, LedgerPosition(3, 4))):
        with closing(driver_of(tmp_path, hq)) as driver:
            pass
        if lost:
            (tmp_path / "failover.json").unlink()
        options = options_of(tmp_path, hq)
        with closing(Driver(options, ownership=Alone(options))) as driver:
            (planned,) = driver.plan(start, driver.choose_end(start, limited=False))
            assert planned.start == first


@pytest.mark.parametrize("wrong", [{"query": "other"}, {"subscription": "other"}])
def test_the_failover_file_of_another_query_is_refused_by_a_query_with_a_checkpoint(
    tmp_path: Path, hq: FakeAdmin, wrong: dict[str, str]
) -> None:
    driver_of(tmp_path, hq).close()
    file = tmp_path / "failover.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | wrong))
    content = file.read_bytes()
    options = options_of(tmp_path, hq)
    with closing(Driver(options, ownership=Alone(options))) as driver:
        with pytest.raises(FailoverFileError, match="another query"):
            driver.choose_end(Offset("hq", {TOPIC: LedgerPosition(3, 4)}, query="q"), limited=False)
        with pytest.raises(FailoverFileError, match="another query"):
            driver.plan(Offset("hq", {}, query="q"), Offset("hq", {TOPIC: LedgerPosition(3, 4)}, query="q"))
    assert file.read_bytes() == content


def test_of_two_new_queries_that_begin_with_one_failover_file_at_once_one_is_refused(
    tmp_path: Path, hq: FakeAdmin
) -> None:
    clock = PausingClock()
    with monitor_of(clock, tmp_path, hq) as first, monitor_of(clock, tmp_path, hq) as second:
        one, other = (
            Offset("hq", {}, query=first.failover.start_query()),
            Offset("hq", {}, query=second.failover.start_query()),
        )
        first.failover.bind_checkpoint(one)
        content = (tmp_path / "failover.json").read_bytes()
        with pytest.raises(FailoverFileError, match="another query"):
            second.failover.bind_checkpoint(other)
        assert (tmp_path / "failover.json").read_bytes() == content
        (tmp_path / "failover.json").unlink()  # by an operator, while the first one runs
        with monitor_of(clock, tmp_path, hq) as third:
            third.failover.bind_checkpoint(Offset("hq", {}, query=third.failover.start_query()))
            with pytest.raises(FailoverFileError, match="another query"):
                first.failover.abandon(one)


def test_a_call_that_a_cluster_left_unanswered_is_part_of_its_silence(
    tmp_path: Path, hq: FakeAdmin, dr: FakeAdmin
) -> None:
    clock = PausingClock()
    with monitor_of(clock, tmp_path, hq, dr) as monitor:
        monitor.look_at_active()
        monitor.suspect("hq", clock.now_s)  # an acknowledgement, for instance, which is waited for
        clock.pause(5)
        hq.says = lambda _: page(503)
        began_s = clock.now_s
        assert monitor.look_at_active().cluster.name == "dr"
        assert clock.now_s == began_s


def test_a_cluster_that_answers_again_is_suspected_no_more(tmp_path: Path, hq: FakeAdmin, dr: FakeAdmin) -> None:
    clock = PausingClock()
    with monitor_of(clock, tmp_path, hq, dr) as monitor:
        monitor.suspect("hq", clock.now_s)
        assert monitor.look_at_active().cluster.name == "hq"
        clock.pause(5)
        hq.says = lambda _: page(503)
        began_s = clock.now_s
        assert monitor.look_at_active().cluster.name == "dr"
        assert clock.now_s - began_s >= 3


REFUSED, SILENT = AccessRefused("hq", "GET x", "401"), SourceClusterUnreachable("dr", "GET x", "503")


def test_a_cluster_is_silent_from_the_call_that_it_left_unanswered_until_it_answers() -> None:
    silent = SilentClusters(["hq", "dr"])
    silent.suspect("hq", 3.0)
    assert "hq" not in silent  # a suspicion alone moves nothing
    silent.on_failure("hq", 5.0, SILENT)
    silent.on_failure("hq", 7.0, SILENT)
    assert silent.duration_s("hq", 8.0) == 5.0
    silent.on_answer("hq")
    assert "hq" not in silent
    silent.on_failure("hq", 9.0, SILENT)
    assert silent.duration_s("hq", 9.5) == 0.5


def test_only_where_every_cluster_refuses_us_the_refusal_is_raised() -> None:
    silent = SilentClusters(["hq", "dr"])
    silent.on_failure("hq", 0.0, REFUSED)
    silent.check_refused("hq")
    silent.on_failure("dr", 0.0, AccessRefused("dr", "GET x", "403"))
    with pytest.raises(AccessRefused, match="401"):
        silent.check_refused("hq")
    silent.on_failure("dr", 1.0, SILENT)  # it says nothing any more: perhaps it will answer
    silent.check_refused("hq")
    assert "503" in str(silent.error())


def test_the_only_clusters_refusal_is_raised_at_once() -> None:
    with pytest.raises(AccessRefused):
        SilentClusters(["hq"]).on_failure("hq", 0.0, REFUSED)
