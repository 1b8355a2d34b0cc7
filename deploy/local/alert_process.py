"""An alert process of a region of the local stack: its settings, and the process itself, not started."""

from __future__ import annotations

from pathlib import Path

from deploy.local.daemon import DaemonProcess
from deploy.local.ports import PortBook
from deploy.local.server_health import http_health
from deploy.local.stack import LocalStack
from deploy.local.stack_settings import alerts_settings

__all__ = ["alert_process", "alert_settings"]


def alert_settings(stack: LocalStack, region: str, number: int = 1, *, max_age_s: float | None = None) -> Path:
    """The settings of `fleet-gateway alerts`, written to the stack's folder. Each of several has a number.

    `max_age_s`: how old an event may be of which it raises an alert; None: as it does by itself.
    """
    name = f"{region}-alerts-{number}"
    folder = stack.folder / f"alerts-{name}"
    folder.mkdir(parents=True, exist_ok=True)
    config = folder / "alerts.toml"
    config.write_text(alerts_settings(stack, region, name, _port(stack, name), max_age_s=max_age_s))
    return config


def alert_process(stack: LocalStack, region: str, number: int = 1, *, max_age_s: float | None = None) -> DaemonProcess:
    """One with these settings: it counts as started once it turns, also as a standby."""
    config = alert_settings(stack, region, number, max_age_s=max_age_s)
    url = f"http://127.0.0.1:{_port(stack, f'{region}-alerts-{number}')}"
    return DaemonProcess.python(
        f"alerts-{region}-{number}",
        "gateway",
        ["alerts", "run", "--config", str(config)],
        config.parent,
        healthy_when=http_health(f"{url}/alive"),
        addresses={"status": f"{url}/status"},
    )


def _port(stack: LocalStack, name: str) -> int:
    return PortBook(stack.folder / "alert-processes.json").port(name)
