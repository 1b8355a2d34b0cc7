"""One query reads a subscription: whoever else is there is seen before anything is read, and for as long as it runs."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cloud_jobs.pulsar_source.errors import SubscriptionBusy
from cloud_jobs.pulsar_source.options import PulsarOptions
from cloud_jobs.pulsar_source.ownership import Ownership
from cloud_jobs.pulsar_source.watching import Watch
from tests.cloud_jobs.pulsar_source.model import World

TOPIC = "persistent://public/default/t"
PARTITIONS = [f"{TOPIC}-partition-{number}" for number in range(3)]
WAIT_S = 4.0


class Owner:
    """What one query does to own its subscription, on the clusters of a world."""

    def __init__(self, world: World, folder: Path, topics: str = TOPIC, clusters: str = "hq,dr") -> None:
        names = clusters.split(",")
        options = PulsarOptions.parse(
            {
                "clusters": ",".join(f"{name}=pulsar://{name}:1|http://{name}:2" for name in names),
                "topics": topics,
                "subscription": "s",
                "failoverFile": str(folder / f"{topics.rpartition('/')[2]}-{names[0]}.json"),
                "readTimeoutSeconds": str(WAIT_S),
            }
        )
        self.watch = Watch(options, world.time, world.time.pause, world.survey)
        self._ownership = Ownership(options, world.own, world.time, world.time.pause)

    def look(self) -> bool:
        """One look, as before each plan."""
        return self._ownership.claim(self.watch.active(), self.watch.elsewhere)

    def own(self) -> None:
        while not self.look():
            pass

    def close(self) -> None:
        self._ownership.close()
        self.watch.close()


@pytest.fixture
def world() -> World:
    one = World()
    for cluster in one.clusters.values():
        for partition in PARTITIONS:
            cluster.create(partition)
    return one


@pytest.fixture
def owner(world: World, tmp_path: Path) -> Iterator[Callable[..., Owner]]:
    opened: list[Owner] = []

    def opening(**more: str) -> Owner:
        opened.append(Owner(world, tmp_path, **more))
        return opened[-1]

    yield opening
    for one in opened:
        one.close()


def test_a_second_query_is_refused_after_the_time_that_it_waits_and_the_first_goes_on(
    world: World, owner: Callable[..., Owner]
):
    first = owner()
    first.own()
    began_s = world.time()
    with pytest.raises(SubscriptionBusy, match=r"t-partition-0 on cluster 'hq'"):
        owner().own()
    assert WAIT_S <= world.time() - began_s < WAIT_S + 2
    for _ in range(50):
        world.time.pause(0.05)
        assert first.look()


def test_a_query_that_takes_the_place_of_one_that_ends_gets_the_subscription(owner: Callable[..., Owner]):
    first, second = owner(), owner()
    first.own()
    assert not second.look()
    first.close()
    second.own()


@pytest.mark.parametrize("first_topics", [TOPIC, PARTITIONS[1]])
def test_a_query_that_names_a_partition_and_one_that_names_its_topic_see_each_other(
    owner: Callable[..., Owner], first_topics: str
):
    owner(topics=first_topics).own()
    with pytest.raises(SubscriptionBusy, match="t-partition-1"):
        owner(topics=PARTITIONS[1] if first_topics == TOPIC else TOPIC).own()


def test_queries_of_different_partitions_do_not_disturb_each_other(owner: Callable[..., Owner]):
    owners = [owner(topics=partition) for partition in PARTITIONS]
    for one in [*owners, *owners]:
        one.own()


@pytest.mark.parametrize("clusters", ["dr,hq", "hq,dr"])
def test_a_query_on_another_cluster_of_the_options_is_seen(owner: Callable[..., Owner], clusters: str):
    owner(clusters=clusters.partition(",")[0]).own()
    with pytest.raises(SubscriptionBusy, match=f"on cluster '{clusters.partition(',')[0]}'"):
        owner(clusters=",".join(reversed(clusters.split(",")))).own()


def test_a_standby_that_does_not_answer_keeps_nobody_from_reading(world: World, owner: Callable[..., Owner]):
    world.clusters["dr"].answers = False
    owner().own()


def test_somebody_who_comes_by_force_ends_the_query_that_owns_the_subscription_and_who_only_tries_does_not(
    world: World, owner: Callable[..., Owner]
):
    first = owner()
    first.own()
    for number in range(10):  # each of them waits, and draws a name anew
        world.clusters["hq"].topics[PARTITIONS[2]].owners.add(f"waiting {number}")
        assert first.look()
        world.time.pause(1.0)
        world.clusters["hq"].topics[PARTITIONS[2]].owners.discard(f"waiting {number}")
        assert first.look()
    world.clusters["hq"].topics[PARTITIONS[2]].owners.add("stays")
    assert first.look()
    world.time.pause(2.5)
    with pytest.raises(SubscriptionBusy, match="t-partition-2"):
        first.look()


def test_a_partition_that_is_met_later_is_owned_before_it_is_read(world: World, owner: Callable[..., Owner]):
    first = owner()
    first.own()
    new = world.clusters["hq"].create(f"{TOPIC}-partition-3")
    new.owners.add("somebody")
    with pytest.raises(SubscriptionBusy, match="t-partition-3"):
        first.own()
