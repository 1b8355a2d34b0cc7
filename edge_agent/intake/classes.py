"""Which class a record belongs to."""

from __future__ import annotations

from collections.abc import Sequence

from paho.mqtt.client import topic_matches_sub

from edge_agent.config import ClassSettings

REMEMBERED_TOPICS = 1024


class Classifier:
    """Finds the first class that has a filter for a topic; topics that were seen lately are looked up."""

    def __init__(self, classes: Sequence[ClassSettings]) -> None:
        self._classes = classes
        self._known: dict[str, int] = {}

    def __call__(self, topic: str) -> int:
        """The index of the topic's class, which is also its priority: 0 comes first."""
        known = self._known.get(topic)
        if known is not None:
            return known
        if len(self._known) >= REMEMBERED_TOPICS:
            self._known.clear()
        index = self._known[topic] = self._search(topic)
        return index

    def _search(self, topic: str) -> int:
        for index, one in enumerate(self._classes):
            # A topic that begins with $ fits no wildcard (MQTT 5, 4.7.2), but a record must have a place.
            if any(pattern == "#" or topic_matches_sub(pattern, topic) for pattern in one.topics):
                return index
        raise AssertionError("the settings promise a class that takes everything")
