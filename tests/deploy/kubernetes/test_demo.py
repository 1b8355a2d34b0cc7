"""How long vehicles wait for an acknowledgement: a wait counts while it lasts, and no watch fails unseen."""

import time
from types import SimpleNamespace
from typing import Any

import pytest

from deploy.kubernetes.demo.outside import Waiting


def vehicle(*statuses: dict[str, Any]) -> Any:
    """Says these statuses, then the last one again and again; a status without records is none."""
    left = [*statuses]
    return SimpleNamespace(device="bus-1", status=lambda: left.pop(0) if len(left) > 1 else left[0])


def test_a_wait_that_has_not_ended_counts() -> None:
    with Waiting([vehicle({"acknowledged": 7, "depth_records": 5})]) as waiting:
        time.sleep(1.7)
    assert waiting.longest_s >= 0.5
    assert waiting.first_at is not None


def test_a_watch_that_failed_is_not_a_short_wait() -> None:
    watching = Waiting([vehicle({"acknowledged": 0, "depth_records": 0}, {})])
    with pytest.raises(KeyError), watching:
        time.sleep(1.2)
