"""What a notifier counts is there before it happens for the first time: an increase needs the zero before it."""

from __future__ import annotations

import pytest

from gateway.webhooks.status import WebhookMetrics


@pytest.mark.parametrize(
    ("name", "labels"),
    [
        ("messages", {"type": "alert"}),
        ("messages", {"type": "verdict"}),
        ("passed_over", {"reason": "stale"}),
        ("passed_over", {"reason": "malformed"}),
        ("held_back", {"reason": "quiet"}),
        ("held_back", {"reason": "limit"}),
        ("deliveries", {"webhook": "ops", "outcome": "refused"}),
        ("dropped", {}),
    ],
)
def test_what_never_happened_is_a_zero_for_prometheus_and_nothing_in_the_status(
    name: str, labels: dict[str, str]
) -> None:
    metrics = WebhookMetrics(["ops"])
    assert metrics.registry.get_sample_value(f"waybill_webhooks_{name}_total", labels) == 0
    assert not any(metrics.counts.values())
