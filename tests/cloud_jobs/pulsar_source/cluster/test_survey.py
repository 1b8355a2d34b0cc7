"""A broker that loads many partitions answers no question so late that it counts as silent; an address on loopback."""

from contextlib import closing

import pytest

from cloud_jobs.pulsar_source import SourceClusterUnreachable
from cloud_jobs.pulsar_source.admin import ClusterSurvey
from cloud_jobs.pulsar_source.options import PulsarOptions
from tests.cloud_jobs.pulsar_source.addresses import STATS, Reply, address, document, page

TOPIC = "persistent://t/n/x"
MANY = 400


class Broker:
    """Loads a partition when it is first asked for, and is silent while it has more than a few to load."""

    def __init__(self, partitions: int) -> None:
        self.names = [f"{TOPIC}-partition-{number}" for number in range(partitions)]
        self.loaded: set[str] = set()

    def says(self, path: str) -> Reply:
        if path.endswith("/partitions"):
            return document({"partitions": len(self.names)})
        if path.endswith("/partitioned-internalStats"):
            missing = set(self.names) - self.loaded
            self.loaded |= missing
            parts = dict.fromkeys(self.names, STATS)
            together = {"metadata": {"partitions": len(self.names)}, "partitions": parts}
            return document(together) if len(missing) <= 32 else page(504)
        number = path.removesuffix("/internalStats").rsplit("-", 1)[1]
        self.loaded.add(f"{TOPIC}-partition-{number}")
        return document(STATS)


@pytest.mark.parametrize("partitions", [0, 1, 32, 33, MANY])
def test_partitions_that_nobody_opened_yet_do_not_make_a_cluster_silent(partitions: int) -> None:
    broker = Broker(partitions)
    with address() as place:
        place.says = broker.says if partitions else place.says
        options = PulsarOptions.parse({"clusters": f"hq=pulsar://h:1|{place.url}", "topics": TOPIC})
        with closing(ClusterSurvey(options.all_clusters()[0], options)) as survey:
            for _ in range(3):
                assert sorted(survey.states()) == sorted(broker.names or [TOPIC])
            singly = sum("-partition-" in path for path in place.asked)
            assert singly == (partitions if partitions > 32 else 0)


def test_after_a_broker_was_silent_the_one_that_takes_over_loads_them_singly_again():
    broker = Broker(MANY)
    with address() as place:
        place.says = broker.says
        options = PulsarOptions.parse({"clusters": f"hq=pulsar://h:1|{place.url}", "topics": TOPIC})
        with closing(ClusterSurvey(options.all_clusters()[0], options)) as survey:
            survey.states()
            broker.loaded.clear()
            with pytest.raises(SourceClusterUnreachable, match="504"):
                survey.states()
            broker.loaded.clear()
            assert len(survey.states()) == MANY
