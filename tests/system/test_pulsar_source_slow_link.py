"""A message that is long on its way is late, not lost; through the real Pulsar and a slow connection."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from cloud_jobs.pulsar_source.driver.driver import Driver
from cloud_jobs.pulsar_source.options import PulsarOptions
from cloud_jobs.pulsar_source.reading.range_reader import read_range
from deploy.local import PulsarCluster
from tests.cloud_jobs.pulsar_source.slow_link import slow_link
from tests.cloud_jobs.pulsar_source.world import LiveCluster

pytestmark = [pytest.mark.system, pytest.mark.nightly]
MESSAGE_BYTES = 4 << 20
SECONDS_ON_THE_WAY = 8
"""Longer than the source needs to ask twice whether anything will come, where a call is bounded by a second."""


@pytest.fixture
def hq(tmp_path: Path) -> Iterator[LiveCluster]:
    """A cluster in plain text: the link changes what its broker says of itself."""
    server = PulsarCluster("hq", tmp_path / "hq")
    server.start()
    server.wait()
    place = LiveCluster.of(server)
    yield place
    place.close()
    server.kill()


def test_a_big_message_on_a_slow_connection_is_waited_for(hq: LiveCluster) -> None:
    topic = hq.new_topic()
    content = os.urandom(MESSAGE_BYTES)
    with slow_link(hq.service_url) as link:
        clusters = f"hq={link.service_url}|{hq.admin_url}"
        bounds = {"operationTimeoutSeconds": "1"}
        options = PulsarOptions.parse({"clusters": clusters, "topics": topic, "subscription": "s"} | bounds)
        driver = Driver(options)
        start = driver.begin()
        producer = hq.client.create_producer(topic)
        producer.send(content)
        (planned,) = driver.plan(start, driver.choose_end(start, limited=False))
        link.bytes_per_s = MESSAGE_BYTES / SECONDS_ON_THE_WAY
        values = [row for batch in read_range(options, planned) for row in batch.column("value").to_pylist()]
        link.bytes_per_s = None
        driver.close()
    assert values == [content]
