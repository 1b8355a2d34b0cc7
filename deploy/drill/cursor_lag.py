"""Whether the ingest's cursor in one cluster stands close behind that in another. Pure."""

from __future__ import annotations

from geo.replication.observe import Observation

_FEW_MESSAGES = 50
_BATCHES = "/batches-partition-"


def cursor_follows(seen: Observation, cluster: str, read: str, close: float) -> bool:
    """Whether the cursor in `cluster` waits for at most `close` messages more than that in the cluster that is `read`.

    That it moved is not enough: a cluster that comes back first hears of positions from before it was lost. Every link
    to it must be connected and nearly empty, or what it lacks does not count as waiting there.
    """
    links = [one for one in seen.links if one.target == cluster and one.source not in seen.unreachable]
    if not all(one.connected and one.backlog is not None and one.backlog <= _FEW_MESSAGES for one in links):
        return False
    mine, theirs = _waiting(seen, cluster), _waiting(seen, read)
    return mine is not None and theirs is not None and mine - theirs <= close


def _waiting(seen: Observation, cluster: str) -> int | None:
    """Messages before the cursor in a cluster, over all partitions; None where there is no cursor."""
    backlogs = [one.backlog for one in seen.cursors if one.cluster == cluster and _BATCHES in one.topic]
    return sum(backlogs) if backlogs else None
