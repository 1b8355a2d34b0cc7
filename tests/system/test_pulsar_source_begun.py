"""A new subscription begins where it was asked to, also when its creation is interrupted; through the real Pulsar."""

from contextlib import closing
from datetime import UTC, datetime
from typing import Any

import pytest

from cloud_jobs.pulsar_source.cluster.admin import SourceAdmin
from cloud_jobs.pulsar_source.driver.driver import Driver
from cloud_jobs.pulsar_source.errors import SourceClusterUnreachable
from cloud_jobs.pulsar_source.options import PulsarOptions
from cloud_jobs.pulsar_source.reading.range_reader import read_range
from tests.cloud_jobs.pulsar_source.world import LiveCluster

pytestmark = [pytest.mark.system, pytest.mark.nightly]
BEFORE, AFTER = range(100), range(1000, 1010)


def read(options: PulsarOptions) -> list[int]:
    """One batch of a new query."""
    with closing(Driver(options)) as driver:
        start = driver.begin()
        tasks = driver.plan(start, driver.choose_end(start, limited=False))
        batches = [batch for task in tasks for batch in read_range(options, task)]
        return [int(value) for batch in batches for value in batch.column("value").to_pylist()]


@pytest.mark.parametrize("stop", [SourceClusterUnreachable("hq", "moving the cursor", "too late"), KeyboardInterrupt()])
@pytest.mark.parametrize("start", ["earliest", "a time"])
def test_a_start_that_was_interrupted_begins_where_the_first_one_would_have_begun(
    hq: LiveCluster, monkeypatch: pytest.MonkeyPatch, start: str, stop: BaseException
) -> None:
    topic = hq.new_topic(2)
    hq.send(topic, BEFORE)
    moment = datetime.now(UTC).isoformat() if start == "a time" else start
    hq.send(topic, AFTER)
    known = {**hq.options, "topics": topic, "subscription": "s", "readTimeoutSeconds": "10"}
    stopping, moving = iter([stop]), SourceAdmin.set_cursor

    def stopped(*asked: Any) -> None:
        if error := next(stopping, None):
            raise error
        moving(*asked)

    monkeypatch.setattr(SourceAdmin, "set_cursor", stopped)
    options = PulsarOptions.parse(known | {"startingPosition": moment})
    try:
        found = read(options)
    except KeyboardInterrupt:
        found = read(PulsarOptions.parse(known | {"startingPosition": "latest"}))
    assert sorted(found) == [*(BEFORE if start == "earliest" else ()), *AFTER]
