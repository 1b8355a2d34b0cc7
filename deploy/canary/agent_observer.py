"""The observer of the vehicle's own agent: which records it has the acknowledgement of."""

from __future__ import annotations

from deploy.canary.hops import Hop
from deploy.canary.observer import Observer
from deploy.canary.watch import CanaryWatch
from edge_agent.config import AgentSettings
from edge_agent.status import read_status

__all__ = ["AgentObserver"]


class AgentObserver(Observer):
    """Looks into the agent's buffer, from which a record goes when the region has acknowledged it."""

    hops = (Hop.ACKNOWLEDGED,)
    every_s = 0.5

    def __init__(self, watch: CanaryWatch, agent: AgentSettings) -> None:
        self._watch, self._agent = watch, agent

    def look(self) -> None:
        """See Observer. Raises StoreError."""
        waiting = self._watch.waiting(Hop.ACKNOWLEDGED)
        # nobody asks the agent for nothing, twice a second
        if not waiting:
            return
        status = read_status(self._agent)
        # Each probe is followed by a pause, in which nothing waits: then all up to the head is acknowledged.
        if status["depth_records"]:
            return
        for number in waiting:
            ids = self._watch.record_ids(number)
            held = [item for item, (epoch, seq) in ids.items() if epoch == status["epoch"] and seq <= status["head"]]
            self._watch.show(number, Hop.ACKNOWLEDGED, held)
