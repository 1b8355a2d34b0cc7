"""The age of the oldest provisional alert grows while runs fail, hang or leave a topic out; it is never made up."""

from __future__ import annotations

import math
from typing import Any

from prometheus_client.registry import CollectorRegistry

from cloud_jobs.verdicts.run import VerdictMetrics


class Watched:
    def __init__(self) -> None:
        self.now_s = 1000.0
        self._registry = CollectorRegistry()
        self.metrics = VerdictMetrics(self._registry, 3600.0, now=lambda: self.now_s)

    def took(self, *, is_published: bool = True, **counts: int) -> None:
        given = ("confirmed", "corrected", "withdrawn", "late", "provisional", "oldest_provisional_s")
        taken = ("alerts", "repeated", "refused", "left_out", "unfinished", "unnoted")
        whole: dict[str, Any] = dict.fromkeys((*given, *taken), 0) | counts
        self.metrics.take(whole)
        if is_published:
            self.metrics.on_published(whole, self.now_s)

    def shown(self, name: str, **labels: str) -> float:
        value = self._registry.get_sample_value(f"waybill_verdicts_{name}", labels)
        assert value is not None
        return value

    @property
    def oldest_s(self) -> float:
        return self.shown("oldest_provisional_seconds")


def test_before_the_first_run_nothing_is_known_but_the_bound() -> None:
    seen = Watched()
    assert math.isnan(seen.oldest_s)
    assert math.isnan(seen.shown("provisional_alerts"))
    assert seen.shown("max_provisional_seconds") == 3600


def test_while_no_run_ends_the_age_grows_also_where_nothing_waited() -> None:
    seen = Watched()
    seen.took()
    assert seen.oldest_s == 0
    seen.now_s += 4000
    assert seen.oldest_s == 4000
    seen.took(provisional=2, oldest_provisional_s=30)
    assert seen.oldest_s == 30
    seen.now_s += 5000
    assert seen.oldest_s == 5030


def test_what_is_decided_and_was_not_published_is_still_provisional_to_everybody() -> None:
    seen = Watched()
    seen.took()
    seen.now_s += 4000
    seen.took(is_published=False, confirmed=3)
    assert seen.oldest_s == 4000
    seen.took()
    assert seen.oldest_s == 0
