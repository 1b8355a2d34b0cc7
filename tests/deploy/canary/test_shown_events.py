"""Events of probes as they show: each once, under the id that follows from its facts, at its moment."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from deploy.canary.config import CanaryScript, ScriptSettings
from deploy.canary.watch import EventBook, EventOfProbe
from geo.spatial import DayEvent, identified

SCRIPT = CanaryScript(ScriptSettings(latitude=54.6, longitude=4.2))
TENANT, DEVICE, NUMBER = "canary", "canary-eu", 1_000


def event(kind: str, off_ms: int = 0, seq: int = 3) -> EventOfProbe:
    """An event of the probe as the engine finds it, `off_ms` from its moment."""
    item = next(one for one in SCRIPT.event_items(NUMBER) if one.name == kind)
    found = DayEvent(item.t_ms + off_ms, kind, "canary-eu", 0.0, 1, seq)
    (name,) = identified(TENANT, DEVICE, [found])
    return EventOfProbe(name, found)


def book() -> EventBook:
    return EventBook(SCRIPT, TENANT, DEVICE)


@given(st.lists(st.sampled_from(["enter", "exit"]), max_size=8))
def test_each_event_is_the_item_of_the_probe_however_often_it_comes(kinds: list[str]) -> None:
    one = book()
    for at, kind in enumerate(kinds):
        assert one.knows(NUMBER, event(kind)) == (kind in kinds[:at])
        item, fault = one.note(NUMBER, event(kind))
        assert (item and item.name, fault) == (kind, "")


@given(st.integers(-10_000, 10_000))
def test_an_event_that_is_off_by_more_than_its_rounding_is_wrong(off_ms: int) -> None:
    assert bool(book().note(NUMBER, event("enter", off_ms))[1]) == (abs(off_ms) > 5)


def test_one_event_under_two_ids_is_a_double() -> None:
    one = book()
    one.note(NUMBER, event("enter"))
    item, fault = one.note(NUMBER, event("enter", seq=4))
    assert (item, "two ids" in fault) == (None, True)
