"""What is held back now by a link or a plan, and what new settings would hold back that flows today."""

from __future__ import annotations

from collections.abc import Collection

from edge_agent.config import AgentSettings
from edge_agent.data_usage import DataUsage
from edge_agent.drain.link_budget import LinkPolicy, link_in
from edge_agent.intake.classes import topic_moves


def held_classes(settings: AgentSettings, usage: DataUsage) -> dict[str, str]:
    """The classes that may not be sent now, each with its reason: `link` or `plan`. `usage`: today and this month."""
    allowed = _allowed(settings, usage)
    link = _link(settings)
    return {
        one.name: "link" if one.links and link not in one.links else "plan"
        for index, one in enumerate(settings.classes)
        if index not in allowed
    }


def newly_held(
    former: AgentSettings, proposed: AgentSettings, usage: DataUsage, waiting: Collection[int] = ()
) -> list[str]:
    """The topic filters whose records may be sent with the former settings, and not with the proposed ones.

    Judged by topic, because a push may also move topics into a class that has to wait; then the classes, of those that
    have records `waiting`, that wait themselves.
    """
    before, after = _allowed(former, usage), _allowed(proposed, usage)
    moves = topic_moves(former.classes, proposed.classes, former.intake.topic)
    topics = [
        one for (old, new), filters in sorted(moves.items()) if old in before and new not in after for one in filters
    ]
    held = (before - after) & set(waiting)
    stored = [f"what waits in class {one.name}" for index, one in enumerate(former.classes) if index in held]
    return list(dict.fromkeys(topics)) + stored


def _allowed(settings: AgentSettings, usage: DataUsage) -> frozenset[int]:
    return LinkPolicy(settings.link, settings.classes).allowed_classes(_link(settings), usage)


def _link(settings: AgentSettings) -> str | None:
    return link_in(settings.link.link_file) or settings.link.link
