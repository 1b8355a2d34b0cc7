"""A topic that is missing on the real Pulsar holds up no other, and is read from its beginning when it comes."""

from contextlib import closing
from pathlib import Path

import pytest

from cloud_jobs.pulsar_source.driver.driver import Driver
from cloud_jobs.pulsar_source.driver.left_out_note import read_left_out
from cloud_jobs.pulsar_source.options import PulsarOptions
from cloud_jobs.pulsar_source.reading.range_reader import read_range
from tests.cloud_jobs.pulsar_source.world import LiveCluster, eventually

pytestmark = [pytest.mark.system, pytest.mark.nightly]


def test_a_missing_topic_is_waited_for_and_a_deleted_one_is_named_while_the_others_are_read(
    hq: LiveCluster, tmp_path: Path
) -> None:
    here, deleted, coming = hq.new_topic(2), hq.new_topic(), hq.new_topic() + "-not-yet"
    hq.send(here, range(10))
    hq.send(deleted, range(100, 110))
    options = PulsarOptions.parse(
        {
            **hq.options,
            "topics": ",".join((here, deleted, coming)),
            "subscription": "s",
            "failoverFile": str(tmp_path / "reading-from"),
            "leftOutFile": str(tmp_path / "left-out"),
            "maxMessagesPerTrigger": "1000",
        }
    )
    found: list[int] = []

    def left_out() -> list[str]:
        return [one.topic for one in read_left_out(tmp_path / "left-out")]

    with closing(Driver(options)) as driver:
        at = driver.begin()

        def read(wanted: range) -> bool:
            nonlocal at
            end = driver.choose_end(at, limited=True)
            if end != at:
                for task in driver.plan(at, end):
                    found.extend(
                        int(value) for rows in read_range(options, task) for value in rows["value"].to_pylist()
                    )
                driver.commit(end)
                at = end
            return set(wanted) <= set(found)

        assert left_out() == [coming]
        eventually("the others are read", lambda: read(range(10)) and read(range(100, 110)))
        hq.call("DELETE", f"{hq.path(deleted)}?force=true")
        hq.send(here, range(10, 20))
        eventually("the other is read", lambda: read(range(10, 20)) and left_out() == sorted((coming, deleted)))
        hq.send(coming, range(200, 210))
        eventually("it is read from its beginning", lambda: read(range(200, 210)) and left_out() == [deleted])
    assert sorted(found) == [*range(20), *range(100, 110), *range(200, 210)]
