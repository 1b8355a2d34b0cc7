"""What an alert process counts is there before it happens for the first time: an increase needs the zero before it."""

from __future__ import annotations

from gateway.alerts.metrics import AlertMetrics


def test_what_never_happened_is_a_zero_for_prometheus_and_nothing_in_the_status() -> None:
    metrics = AlertMetrics()
    value = metrics.registry.get_sample_value
    assert value("waybill_alerts_published_total", {"kind": "enter"}) == 0
    assert value("waybill_alerts_fixes_passed_over_total", {"reason": "too_old"}) == 0
    assert value("waybill_alerts_passed_over_total", {"reason": "internal-error"}) == 0
    assert value("waybill_alerts_passed_over_total", {"reason": "checksum"}) == 0
    assert (metrics.counts["alerts_published"], metrics.counts["alerts_by_kind"]) == (0, {})
    assert (metrics.counts["passed_over"], metrics.counts["fixes_passed_over"]) == ({}, {})
