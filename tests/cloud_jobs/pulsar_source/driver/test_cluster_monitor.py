"""Which cluster is read when what answers is not what it should be; clusters are addresses on loopback."""

import json
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from cloud_jobs.pulsar_source import AccessRefused, SourceClusterUnreachable
from cloud_jobs.pulsar_source.cluster_monitor import ClusterMonitor, SilentClusters
from cloud_jobs.pulsar_source.driver import Driver, Ownership
from cloud_jobs.pulsar_source.options import FailoverFileError, PulsarOptions
from cloud_jobs.pulsar_source.position import LedgerPosition, Offset
from tests.cloud_jobs.pulsar_source.addresses import FakeAdmin, Reply, address, cluster_says, document, page

TOPIC = "persistent://t/n/x"


class PausingClock:
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
