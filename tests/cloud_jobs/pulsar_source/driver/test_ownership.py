"""One query reads a subscription: whoever else is there is seen before anything is read, and for as long as it runs."""

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloud_jobs.pulsar_source.cluster_monitor import ClusterMonitor
from cloud_jobs.pulsar_source.driver import Ownership
from cloud_jobs.pulsar_source.options import PulsarOptions, SubscriptionBusy
from tests.cloud_jobs.pulsar_source.model import ModelWorld

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
        """One look, as before each plan."""
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
