"""What the status says, and why it is not healthy."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import typer
from pydantic import BaseModel
from rich.console import Console
from rich.table import Table
from typer.testing import CliRunner

from gateway.access.cli import app as access
from gateway.access.config import AccessEndpoint
from gateway.access.status import AccessStatus
from gateway.alerts.cli import app as alerts
from gateway.alerts.status import AlertsStatus, alerts_table
from gateway.cli import app as gateway
from gateway.engine import Engine, Produce
from gateway.metrics import GatewayMetrics
from gateway.service import StatusReporter
from gateway.status import STALLED_AFTER_S, GatewayStatus
from gateway.webhooks.cli import app as notifier
from gateway.webhooks.status import NotifierStatus
from tests.gateway.alerts.test_alert_checks import TEXT as ALERTS
from tests.gateway.strategies import batch, engine, settings, topic
from tests.gateway.test_config import MINIMAL as GATEWAY
from tests.gateway.webhooks.test_config import TEXT as NOTIFIER
from waybill.daemon.status_server import StatusServer, json_answer


class Reporting:
    """A reporter of a gateway whose connections are what the test says."""

    def __init__(self, registry: Any = None, pulsar: dict[str, Any] | None = None) -> None:
        given = settings()
        self.engine: Engine = engine()
        self.metrics = GatewayMetrics()
        self.suppressed_said = 0
        self.connections = SimpleNamespace(problem="", last_error="", is_mqtt_up=True, is_pulsar_up=True, are_up=True)
        self.reporter = StatusReporter(
            given.model_copy(update={"pulsar": given.pulsar.model_copy(update=pulsar or {})}),
            self.engine,
            cast("Any", self.connections),
            self.metrics,
            log_suppressed=self.say_suppressed,
            registry=registry,
        )

    def say_suppressed(self) -> None:
        self.suppressed_said += 1

    def update(self, now_s: float, *, is_up: bool = True, is_stopping: bool = False) -> Any:
        self.connections.is_mqtt_up = self.connections.are_up = is_up
        self.reporter.update(now_s, is_stopping=is_stopping)
        return self.reporter.holder.status


@pytest.fixture
def reporting() -> Reporting:
    return Reporting()


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
    assert "for Pulsar's receipt" in reporting.update(STALLED_AFTER_S).last_error
    reporting.engine.on_persisted(effect.token, STALLED_AFTER_S)


COMMON: dict[str, Any] = {"pid": 1, "started_at": "2026-11-28T06:00:00+00:00", "healthy": True}
FOUND = GatewayStatus(gateway="gateway-eu-1", region="eu", **COMMON)
DELIVERING = NotifierStatus(tenants=("acme",), **COMMON)
ALERT_PROCESS = AlertsStatus(process="eu-1", region="eu", **COMMON)


@contextmanager
def saying(status: BaseModel) -> Iterator[int]:
    with StatusServer("127.0.0.1", 0, {"/status": lambda: json_answer(status.model_dump_json())}) as server:
        yield server.port


def asked(app: typer.Typer, file: Path, text: str, port: int) -> tuple[int, str]:
    file.write_text(f"{text}\n[status]\nport = {port}\n")
    done = CliRunner().invoke(app, ["status", "--config", str(file)])
    return done.exit_code, " ".join(done.output.split())


@pytest.mark.parametrize(
    ("asking", "own", "change", "said"),
    [
        ((gateway, GATEWAY), FOUND, {"gateway": "eu-2"}, "gateway eu-2 of region eu, not gateway gateway-eu-1 of"),
        ((gateway, GATEWAY), FOUND, {"region": "us"}, "gateway gateway-eu-1 of region us, not gateway gateway-eu-1"),
        ((alerts, ALERTS), ALERT_PROCESS, {"process": "eu-2"}, "alert process eu-2 of region eu, not alert process"),
        ((notifier, NOTIFIER), DELIVERING, {"tenants": ("umbrella",)}, "a notifier of umbrella, not a notifier of"),
    ],
)
def test_another_process_at_the_port_is_not_shown_as_the_one_that_was_asked_for(
    tmp_path: Path, asking: tuple[typer.Typer, str], own: BaseModel, change: dict[str, object], said: str
) -> None:
    app, template = asking
    words = {"folder": tmp_path, "more": "insecure = true" if app is notifier else "", "tenants": '["acme"]'}
    text = template if app is gateway else template.format(**words)
    file = tmp_path / "settings.toml"
    with saying(own) as port:
        assert asked(app, file, text, port)[0] == 0
    with saying(own.model_copy(update=change)) as port:
        code, output = asked(app, file, text, port)
    assert (code, f"is {said}" in output, "its own status.port" in output) == (1, True, True), output


def test_the_access_daemon_of_another_region_is_not_shown_as_that_of_this_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    status = AccessStatus.model_construct(**COMMON, region="eu")
    monkeypatch.setattr("gateway.access.status.read_access_status", lambda _: status)
    given = {"region": "us", "status": AccessEndpoint()}
    monkeypatch.setattr("gateway.access.cli.load", lambda *_: SimpleNamespace(**given))
    done = CliRunner().invoke(access, ["status", "--config", str(tmp_path / "access.toml")])
    assert done.exit_code == 1
    assert "is access daemon of region eu, not access daemon of region us" in done.output


def shown(table: Table) -> dict[str, str]:
    console = Console(width=200)
    with console.capture() as printed:
        console.print(table)
    cells = (line.split("│") for line in printed.get().splitlines() if line.startswith("│"))
    return {name.strip(): value.strip() for _, name, value, _ in cells}


def test_what_there_is_none_of_is_not_called_unknown() -> None:
    found = shown(alerts_table(ALERT_PROCESS.model_copy(update={"fences_current": True})))
    assert found["fences unreachable since"] == "no, they are read"
    assert found["lag s"] == "no partition is held"
    holding = {"partitions_held": ("a",), "partitions_standby": ("b",), "fences_unreachable_since_s": 120.0}
    found = shown(alerts_table(ALERT_PROCESS.model_copy(update=holding)))
    assert found["fences unreachable since"] == "1970-01-01T00:02:00Z"
    assert found["lag s"] == "unknown"
