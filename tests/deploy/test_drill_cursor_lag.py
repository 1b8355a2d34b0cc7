"""When an operator may order the ingest back: the cursor there stands close behind, and nothing waits on a link."""

from __future__ import annotations

from deploy.drill.environment import cursor_follows
from geo.replication.observe import CursorState, LinkState, Observation

TOPIC = "fleet/telemetry-eu/batches-partition-0"


def cursor(cluster: str, backlog: int, topic: str = TOPIC) -> CursorState:
    return CursorState(topic=topic, subscription="ingest", cluster=cluster, backlog=backlog, age_s=1, behind_s=0)


def link(source: str, *, connected: bool = True, backlog: int = 0) -> LinkState:
    return LinkState(
        namespace="fleet/telemetry-eu", source=source, target="hq", connected=connected, backlog=backlog, delay_s=0
    )


def seen(*cursors: CursorState, links: tuple[LinkState, ...] = ()) -> Observation:
    return Observation(links=links, cursors=cursors, unreachable={})


def test_a_cursor_that_waits_for_as_much_as_the_one_that_is_read_follows() -> None:
    assert cursor_follows(seen(cursor("hq", 110), cursor("dr", 100)), "hq", "dr", close=10)


def test_a_cursor_that_moved_to_a_place_from_before_the_loss_does_not() -> None:
    assert not cursor_follows(seen(cursor("hq", 3207), cursor("dr", 4)), "hq", "dr", close=120)


def test_a_cursor_that_is_not_there_follows_nothing() -> None:
    assert not cursor_follows(seen(cursor("dr", 4)), "hq", "dr", close=120)


def test_a_cluster_that_lacks_messages_is_not_close_although_its_backlog_is_small() -> None:
    cursors = cursor("hq", 0), cursor("dr", 0)
    assert not cursor_follows(seen(*cursors, links=(link("eu", connected=False),)), "hq", "dr", close=120)
    assert not cursor_follows(seen(*cursors, links=(link("eu", backlog=500),)), "hq", "dr", close=120)
    assert cursor_follows(seen(*cursors, links=(link("eu"), link("dr"))), "hq", "dr", close=120)


def test_cursors_of_other_topics_say_nothing() -> None:
    other = cursor("hq", 9000, "fleet/events/events-partition-0")
    assert cursor_follows(seen(cursor("hq", 0), cursor("dr", 0), other), "hq", "dr", close=0)
