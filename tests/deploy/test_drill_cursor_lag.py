"""When an operator may order the ingest back: the cursor there stands close behind, and nothing waits on a link."""

from __future__ import annotations

from deploy.drill import environment
from geo.replication.verification import CursorState, LinkState, Observation

TOPIC = "fleet/telemetry-eu/batches-partition-0"


def cursor(cluster: str, waiting_s: float | None, topic: str = TOPIC, backlog: int = 100) -> CursorState:
    return CursorState(
        topic=topic, subscription="ingest", cluster=cluster, backlog=backlog, age_s=1, behind_s=0, waiting_s=waiting_s
    )


def link(source: str, *, connected: bool = True, backlog: int = 0) -> LinkState:
    return LinkState(
        namespace="fleet/telemetry-eu", source=source, target="hq", connected=connected, backlog=backlog, delay_s=0
    )


def cursor_follows(seen: Observation, cluster: str, read: str, close_s: float) -> bool:
    return environment.cursor_follows(seen, cluster, read, close_s, ["fleet/telemetry-eu/batches"])


def seen(*cursors: CursorState, links: tuple[LinkState, ...] = ()) -> Observation:
    return Observation(links=links, cursors=cursors, unreachable={})


def test_a_cursor_follows_whose_oldest_message_is_hardly_older_than_the_one_s_that_is_read() -> None:
    assert cursor_follows(seen(cursor("hq", 6.5), cursor("dr", 1.5)), "hq", "dr", close_s=5)
    assert not cursor_follows(seen(cursor("hq", 6.6), cursor("dr", 1.5)), "hq", "dr", close_s=5)


def test_one_partition_whose_cursor_stands_still_is_not_hidden_by_the_others() -> None:
    other = TOPIC.replace("0", "1")
    cursors = cursor("hq", 0), cursor("dr", 3), cursor("hq", 9, other), cursor("dr", 3, other)
    assert not cursor_follows(seen(*cursors), "hq", "dr", close_s=5)


def test_a_cursor_that_is_not_there_or_of_which_nobody_knows_follows_nothing_and_is_not_followed() -> None:
    assert not cursor_follows(seen(cursor("dr", 2)), "hq", "dr", close_s=5)
    assert not cursor_follows(seen(cursor("hq", 2)), "hq", "dr", close_s=5)
    assert not cursor_follows(seen(cursor("hq", None), cursor("dr", 2)), "hq", "dr", close_s=5)
    assert not cursor_follows(seen(cursor("hq", 2), cursor("dr", None)), "hq", "dr", close_s=5)


def test_a_cluster_that_lacks_messages_is_not_close_although_nothing_waits_there() -> None:
    cursors = cursor("hq", 0), cursor("dr", 0)
    assert not cursor_follows(seen(*cursors, links=(link("eu", connected=False),)), "hq", "dr", close_s=5)
    assert not cursor_follows(seen(*cursors, links=(link("eu", backlog=500),)), "hq", "dr", close_s=5)
    assert cursor_follows(seen(*cursors, links=(link("eu"), link("dr"))), "hq", "dr", close_s=5)
