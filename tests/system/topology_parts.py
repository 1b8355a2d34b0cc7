"""What the tests of the topology ask of a cluster."""

from __future__ import annotations

import time
from typing import Any

from deploy.local import LocalStack
from geo.replication import AdminClient
from geo.replication.verification import Observation, observe

BATCHES = "persistent://fleet/telemetry-eu/batches"


def known(client: AdminClient, path: str) -> Any:
    """What the cluster says at this path, which exists."""
    answer: Any = client.get(path)
    assert answer is not None
    return answer


def look(stack: LocalStack, clients: dict[str, AdminClient]) -> Observation:
    return observe(stack.topology, clients, time.time)
