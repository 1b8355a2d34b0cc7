"""What a push of other classes would hold back is found for every topic, whichever class it moves to."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from edge_agent.agent import newly_held
from edge_agent.config import AgentSettings, ClassSettings
from edge_agent.drain.link_budget import DataUsage
from edge_agent.intake.record_intake import MAX_EXAMPLES, UNCOMPARED, Classifier, topic_moves

levels = st.lists(st.sampled_from(["a", "b", "+"]), max_size=3)
filters = st.builds(
    lambda parts, is_open: "/".join([*parts, "#"] if is_open or not parts else parts), levels, st.booleans()
)


Classes = tuple[ClassSettings, ...]


def classes_of(*topics: list[str]) -> Classes:
    return tuple(ClassSettings(name=f"c{number}", topics=tuple(one)) for number, one in enumerate(topics))


classes = st.lists(st.lists(filters, min_size=1, max_size=3), max_size=3).map(lambda them: classes_of(*them, ["#"]))
TOPICS = ["/".join(words) for length in range(1, 5) for words in product("abx", repeat=length)]


@given(classes, classes, filters)
def test_a_class_gives_topics_to_another_exactly_if_there_is_such_a_topic(
    former: Classes, new: Classes, subscription: str
) -> None:
    old_class, new_class = Classifier(former), Classifier(new)
    delivered = Classifier(classes_of([subscription], ["#"]))
    expected = {(old_class(topic), new_class(topic)) for topic in TOPICS if delivered(topic) == 0}
    assert topic_moves(former, new, subscription).keys() == expected


@given(classes)
def test_the_same_classes_move_nothing(same: Classes) -> None:
    assert all(old == new for old, new in topic_moves(same, same, "#"))


def settings_with(*classes: Mapping[str, object]) -> AgentSettings:
    uplink = {"region": "eu", "host": "h"}
    return AgentSettings.model_validate(
        {"device": {"id": "a"}, "insecure": True, "uplinks": [uplink], "link": {"link": "cellular"}, "classes": classes}
    )


URGENT = {"name": "urgent", "topics": ["vehicle/event"], "urgent": True}
REST = {"name": "rest", "topics": ["#"]}


def bulk(*topics: str) -> dict[str, object]:
    return {"name": "bulk", "topics": topics, "links": ["wifi"]}


def test_a_topic_that_only_the_last_class_had_taken_is_seen_to_move_into_a_class_that_waits() -> None:
    before = settings_with(URGENT, bulk("vehicle/video"), REST)
    after = settings_with(URGENT, bulk("vehicle/video", "vehicle/position"), REST)
    assert newly_held(before, after, DataUsage()) == ["vehicle/position"]
    assert newly_held(before, settings_with(URGENT, bulk("vehicle/video", "home/#"), REST), DataUsage()) == []
    assert newly_held(before, settings_with(URGENT, bulk("+/a", "vehicle/+/b"), REST), DataUsage()) == [
        "vehicle/a",
        "vehicle/+/b",
    ]


def test_what_waits_in_a_class_is_seen_to_be_held_although_its_topics_go_elsewhere() -> None:
    before = settings_with(URGENT, {**bulk("vehicle/video"), "links": []}, REST)
    after = settings_with(URGENT, bulk("other/video"), REST)
    assert newly_held(before, after, DataUsage(), {2}) == []
    assert newly_held(before, after, DataUsage(), {1, 2}) == ["what waits in class bulk"]


def test_what_is_compared_is_bounded_and_beyond_it_every_class_may_have_topics_of_every_other() -> None:
    half = [f"{'+/' * depth}a{number}/#" for number in range(8) for depth in range(15)]
    many = classes_of(half, ["#"])
    moves = topic_moves(many, classes_of([one.replace("a", "b") for one in half], ["#"]), "#")
    assert moves[1, 0] == (UNCOMPARED,)
    few = classes_of([f"vehicle/{number}" for number in range(255)], ["#"])
    assert (0, 1) not in topic_moves(few, few, "vehicle/#")
    assert len(half) < MAX_EXAMPLES
