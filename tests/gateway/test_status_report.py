"""What the status says: who was heard, who is silent and since when that is known, and why it is not healthy."""

from __future__ import annotations

from math import isnan
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gateway import Engine, Produce
from gateway.metrics import GatewayMetrics
from gateway.service import StatusReporter
from gateway.status import STALLED_AFTER_S, PublicationResults
from tests.gateway.strategies import batch, engine, settings, topic

AFTER_S = settings().status.silent_after_s


class Reporting:
    """A reporter of a gateway whose connections are what the test says."""

    def __init__(self, registry: Any = None, pulsar: dict[str, Any] | None = None) -> None:
        given = settings()
        self.engine: Engine = engine()
        self.metrics, self.results = GatewayMetrics(), PublicationResults()
        self.suppressed_said = 0
        self.connections = SimpleNamespace(problem="", last_error="", is_mqtt_up=True, is_pulsar_up=True, are_up=True)
        self.reporter = StatusReporter(
            given.model_copy(update={"pulsar": given.pulsar.model_copy(update=pulsar or {})}),
            self.engine,
            cast("Any", self.connections),
            self.metrics,
            results=self.results,
            log_suppressed=self.say_suppressed,
            registry=registry,
        )

    def say_suppressed(self) -> None:
        self.suppressed_said += 1

    def update(self, now_s: float, *, is_up: bool = True, is_stopping: bool = False) -> Any:
        self.connections.is_mqtt_up = self.connections.are_up = is_up
        self.reporter.update(now_s, is_stopping=is_stopping)
        return self.reporter.holder.status

    def silent(self) -> tuple[int | None, int | None, float]:
        """How many devices are silent, as the list, the status and the metric say."""
        shown = self.metrics.registry.get_sample_value("waybill_gateway_silent_devices")
        assert shown is not None
        return self.reporter.holder.silent.count, self.reporter.holder.status.devices_silent, shown


@pytest.fixture
def reporting() -> Reporting:
    return Reporting()


def test_who_is_silent_is_unknown_while_nobody_listens_and_known_again_with_the_next_connection(
    reporting: Reporting,
) -> None:
    reporting.reporter.on_message(topic("d1"))
    reporting.update(0.0, is_up=False)
    assert reporting.silent()[:2] == (None, None)
    assert isnan(reporting.silent()[2])
    reporting.update(100.0)
    reporting.update(100.0 + AFTER_S - 1)
    assert reporting.silent()[:2] == (None, None), "it has not listened for long enough"
    reporting.update(100.0 + AFTER_S + 20)
    assert reporting.silent() == (1, 1, 1.0)
    reporting.update(100.0 + AFTER_S + 40, is_up=False)
    assert reporting.reporter.holder.silent.listening_s is None
    assert reporting.silent()[:2] == (None, None)
    reporting.update(9_000.0 + AFTER_S)
    assert reporting.silent() == (1, 1, 1.0), "a new connection ends no silence"
    reporting.reporter.on_message(topic("d1"))
    reporting.update(9_020.0 + AFTER_S)
    assert reporting.silent() == (0, 0, 0.0)


def test_healthy_is_claimed_only_when_nothing_is_known_against_it(reporting: Reporting) -> None:
    assert reporting.update(0.0).healthy
    assert not reporting.update(0.0, is_stopping=True).healthy
    assert reporting.update(0.0, is_up=False).last_error == "not connected yet"
    reporting.connections.last_error = "no route"
    assert reporting.update(0.0, is_up=False).last_error == "no route"
    assert reporting.update(0.0).healthy, "the last error is over when both are connected"
    reporting.connections.problem = "taken over"
    assert reporting.update(0.0).last_error == "taken over"
    reporting.connections.problem = ""
    effect = reporting.engine.on_batch(topic("d1"), batch("d1", 1, 1), 1, 0.0)
    assert isinstance(effect, Produce)
    assert reporting.update(STALLED_AFTER_S - 1).healthy
    assert "waits for Pulsar's receipt" in reporting.update(STALLED_AFTER_S).last_error
    reporting.engine.on_persisted(effect.token, STALLED_AFTER_S)
    reporting.results.add("Not authorized", STALLED_AFTER_S)
    assert "Not authorized" in reporting.update(STALLED_AFTER_S).last_error
