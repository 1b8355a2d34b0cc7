"""Failover: a query goes on where it was, and one query reads a subscription."""

import itertools
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloud_jobs.pulsar_source.cluster_monitor import (
    ClusterMonitor,
    Failover,
    FailoverFile,
    FailoverState,
    QueryIdentity,
)
from cloud_jobs.pulsar_source.driver import Ownership
from cloud_jobs.pulsar_source.options import FailoverFileError, PulsarOptions, SubscriptionBusy
from cloud_jobs.pulsar_source.position import LedgerPosition, Offset
from tests.cloud_jobs.pulsar_source.model import ModelWorld

ON_HQ = Offset("hq", {"t": LedgerPosition(7, 3)})
MINE = QueryIdentity("4f", "ingest", "t")
ON_DR = Offset("dr", {"t": LedgerPosition(2, 1)})


def test_reading_goes_on_from_the_offset_in_the_same_cluster_and_from_the_cursor_in_another():
    assert not FailoverState("hq").restarts_at_cursor(ON_HQ)
    assert FailoverState("hq").with_active("dr").restarts_at_cursor(ON_HQ)
    assert not FailoverState("hq").with_active("dr").restarts_at_cursor(ON_DR)


def test_after_a_batch_that_was_closed_unread_reading_begins_at_the_cursor_even_where_it_was_planned():
    #   planned on hq ... hq dies, closed unread ... hq is back and ordered again
    state = FailoverState("hq").with_abandoned(ON_HQ).with_active("dr").with_active("hq")
    assert state.restarts_at_cursor(ON_HQ)
    assert not state.restarts_at_cursor(Offset("hq", {"t": LedgerPosition(8, 0)}))


def test_the_state_outlives_the_process(tmp_path: Path) -> None:
    kept = FailoverFile(tmp_path / "deep" / "failover.json")
    assert kept.load() is None
    state = (
        FailoverState("hq").with_abandoned(ON_HQ).with_active("dr").with_created("dr", ["t"]).with_created("dr", ["u"])
    )
    kept.save(MINE, state)
    assert FailoverFile(tmp_path / "deep" / "failover.json").load() == (MINE, state)
    assert [file.name for file in (tmp_path / "deep").iterdir()] == ["failover.json"]


GOOD = json.loads('{"version": 2, "query": "q", "subscription": "s", "topics": "t", "active": "hq", "abandoned": []}')


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"active": "hq", "abandoned": []}',
        *(json.dumps({key: value for key, value in GOOD.items() if key != left_out}).encode() for left_out in GOOD),
        *(json.dumps(GOOD | {key: wrong}).encode() for key in GOOD for wrong in (None, 3, "", ["x", 1])),
        *(json.dumps(GOOD | {"created": wrong}).encode() for wrong in (None, 3, ["t"], {"dr": "t"}, {"dr": [1]})),
    ],
)
def test_other_content_is_refused_in_words_that_say_what_to_do(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "failover.json").write_bytes(content)
    with pytest.raises(FailoverFileError, match="remove this one"):
        FailoverFile(tmp_path / "failover.json").load()


def test_a_full_disk_is_an_error_of_ours_and_leaves_what_was_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = FailoverFile(tmp_path / "failover.json")
    kept.save(MINE, FailoverState("hq"))

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(FailoverFileError, match="No space left"):
            kept.save(MINE, FailoverState("dr"))
    assert kept.load() == (MINE, FailoverState("hq"))


def test_a_switchover_request_is_read_and_then_removed(tmp_path: Path) -> None:
    kept = FailoverFile(tmp_path / "failover.json")
    assert kept.switchover_request() is None
    (tmp_path / "failover.json.switchover").write_text(" dr\n")
    assert kept.switchover_request() == "dr"
    kept.clear_switchover_request()
    assert kept.switchover_request() is None


HQ, DR = "hq=pulsar://h:1|http://h:2", "dr=pulsar://d:1|http://d:2"


def options(folder: Path | None, clusters: str = f"{HQ},{DR}") -> PulsarOptions:
    file = {"failoverFile": str(folder / "failover.json")} if folder else {}
    return PulsarOptions.parse({"clusters": clusters, "topics": "t", "subscription": "s"} | file)


def bound(folder: Path, wall_s: Callable[[], float]) -> Failover:
    failover = Failover(options(folder), wall_s)
    failover.bind_checkpoint(Offset("hq", {}, query=failover.start_query()))
    return failover


def test_a_file_that_names_a_cluster_which_the_options_do_not_know_is_refused(tmp_path: Path) -> None:
    bound(tmp_path, lambda: 0.0).switch_to("dr", "lost")
    with pytest.raises(FailoverFileError, match="the options know only hq"):
        Failover(options(tmp_path, HQ))


TOPIC = "persistent://public/default/t"
PARTITIONS = [f"{TOPIC}-partition-{number}" for number in range(3)]
WAIT_S = 4.0
_numbers = itertools.count()


class OwningQuery:
    """What one query does to own its subscription, on the clusters of a world."""

    def __init__(
        self, world: ModelWorld, folder: Path, topics: str = TOPIC, clusters: str = "hq,dr", wait_s: float = WAIT_S
    ) -> None:
        names = clusters.split(",")
        options = PulsarOptions.parse(
            {
                "clusters": ",".join(f"{name}=pulsar://{name}:1|http://{name}:2" for name in names),
                "topics": topics,
                "subscription": "s",
                "failoverFile": str(folder / f"{topics.rpartition('/')[2]}-{names[0]}.json"),
                "readTimeoutSeconds": str(wait_s),
            }
        )
        self.monitor = ClusterMonitor(options, world.time, world.time.pause, world.survey)
        self.token = f"query {next(_numbers):09}"
        self._ownership = Ownership(options, world.own, world.time, world.time.pause, self.token)

    def look(self) -> bool:
        return self._ownership.claim(self.monitor.look_at_active(), self.monitor.look_at_others)

    def own(self) -> None:
        while not self.look():
            pass

    def close(self) -> None:
        self._ownership.close()
        self.monitor.close()


def a_world() -> ModelWorld:
    one = ModelWorld()
    for cluster in one.clusters.values():
        for partition in PARTITIONS:
            cluster.create(partition)
    return one


@pytest.fixture
def world() -> ModelWorld:
    return a_world()


@pytest.fixture
def owner(world: ModelWorld, tmp_path: Path) -> Iterator[Callable[..., OwningQuery]]:
    opened: list[OwningQuery] = []

    def opening(**more: Any) -> OwningQuery:
        opened.append(OwningQuery(world, tmp_path, **more))
        return opened[-1]

    yield opening
    for one in opened:
        one.close()


def test_a_second_query_is_refused_after_the_time_that_it_waits_and_the_first_goes_on(
    world: ModelWorld, owner: Callable[..., OwningQuery]
) -> None:
    first = owner()
    first.own()
    began_s = world.time()
    with pytest.raises(SubscriptionBusy, match=r"t-partition-0 on cluster 'hq'"):
        owner().own()
    assert WAIT_S <= world.time() - began_s < WAIT_S + 2
    for _ in range(50):
        world.time.pause(0.05)
        assert first.look()


@pytest.mark.parametrize("clusters", ["dr,hq", "hq,dr"])
def test_a_query_on_another_cluster_of_the_options_is_seen(owner: Callable[..., OwningQuery], clusters: str) -> None:
    owner(clusters=clusters.partition(",")[0]).own()
    with pytest.raises(SubscriptionBusy, match=f"on cluster '{clusters.partition(',')[0]}'"):
        owner(clusters=",".join(reversed(clusters.split(",")))).own()


def test_an_owner_leaves_to_no_candidate_however_long_that_one_looks(
    world: ModelWorld, owner: Callable[..., OwningQuery]
) -> None:
    first = owner()
    first.own()
    for _ in range(2):  # one that is frozen between its opening and its look, and one that comes later
        candidate = owner()
        assert not candidate.look()
        for _ in range(20):
            world.time.pause(10.0)
            assert first.look()
    with pytest.raises(SubscriptionBusy):
        candidate.own()


@given(st.lists(st.integers(0, 2), min_size=1, max_size=30))
def test_of_candidates_at_most_one_owns_the_subscription_and_one_does_in_the_end(turns: list[int]) -> None:
    """Whatever the order of their looks."""
    world = a_world()
    with TemporaryDirectory() as folder:
        queries = [
            OwningQuery(world, Path(folder), clusters=names, wait_s=1000) for names in ("hq,dr", "hq,dr", "dr,hq")
        ]
        owning = [queries[turn].look() for turn in turns]
        winners = {turn for turn, owns in zip(turns, owning, strict=True) if owns}
        assert len(winners) <= 1
        if not winners:
            for _ in range(5):
                winners |= {turn for turn, query in enumerate(queries) if query.look()}
            assert len(winners) == 1
        for query in queries:
            query.close()
