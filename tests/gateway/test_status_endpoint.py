"""Metrics, health and status over real HTTP."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from deploy.local import free_port
from gateway import GatewayStatus, read_status
from gateway.config import StatusEndpoint
from gateway.errors import AddressTaken
from gateway.metrics import GatewayMetrics
from gateway.status import STUCK_AFTER_S, StatusHolder, serve_status, status_table

FRESH = GatewayStatus(gateway="g", region="eu", pid=1, started_at="2026-03-05T06:00:00+00:00")


class StatusClock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def served() -> Iterator[tuple[StatusEndpoint, StatusHolder, GatewayMetrics, StatusClock]]:
    settings, clock, metrics = StatusEndpoint(port=free_port()), StatusClock(), GatewayMetrics()
    holder = StatusHolder(FRESH, clock)
    with serve_status(settings, metrics.registry, holder):
        yield settings, holder, metrics, clock


def code(settings: StatusEndpoint, path: str) -> int:
    return httpx.get(f"http://{settings.host}:{settings.port}{path}", timeout=5).status_code


def test_health_is_good_only_when_both_sides_are_connected(
    served: tuple[StatusEndpoint, StatusHolder, GatewayMetrics, StatusClock],
) -> None:
    settings, holder, _, _ = served
    assert code(settings, "/health") == 503
    holder.set(FRESH.model_copy(update={"healthy": True}))
    assert code(settings, "/health") == 200


def test_a_loop_that_does_not_turn_is_not_alive(
    served: tuple[StatusEndpoint, StatusHolder, GatewayMetrics, StatusClock],
) -> None:
    settings, holder, _, clock = served
    holder.set(FRESH.model_copy(update={"healthy": True}))
    assert code(settings, "/alive") == 200
    clock.now_s = STUCK_AFTER_S
    assert code(settings, "/alive") == 503
    assert code(settings, "/health") == 503


def test_the_status_is_read_back_as_it_was_set(
    served: tuple[StatusEndpoint, StatusHolder, GatewayMetrics, StatusClock],
) -> None:
    settings, holder, _, _ = served
    holder.set(FRESH.model_copy(update={"in_flight": 7}))
    assert read_status(settings) == holder.status
    assert status_table(holder.status).row_count == len(GatewayStatus.model_fields)


def test_metrics_are_served(served: tuple[StatusEndpoint, StatusHolder, GatewayMetrics, StatusClock]) -> None:
    settings, _, metrics, _ = served
    metrics.on_joined()
    text = httpx.get(f"http://{settings.host}:{settings.port}/metrics", timeout=5).text
    assert "waybill_gateway_joined_batches_total 1.0" in text
    assert code(settings, "/nothing") == 404


def test_an_address_that_is_taken_is_said_so(
    served: tuple[StatusEndpoint, StatusHolder, GatewayMetrics, StatusClock],
) -> None:
    settings, holder, metrics, _ = served
    with pytest.raises(AddressTaken, match=f"{settings.port}"):
        serve_status(settings, metrics.registry, holder)
