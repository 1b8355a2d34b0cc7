"""Whoever looks in during the demo, with the settings in its folder, asks the processes that run."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from deploy.demo import processes
from deploy.demo import watching as alerting


class Process:
    """Settings in a folder of its own, with the port that it listens on."""

    def __init__(self, folder: Path, file: str, port: int) -> None:
        self.folder = folder
        folder.mkdir()
        (folder / file).write_text(f"[status]\nport = {port}\n")

    def wait(self) -> None:
        """It is ready."""


def stack_in(folder: Path) -> Any:
    for name in ("alerts-eu.toml", "gateway-eu.toml"):
        (folder / name).write_text("[status]\nport = 1\n")
    return SimpleNamespace(folder=folder, topology=SimpleNamespace(regions={"eu": None}), add=lambda *_, **__: None)


def test_the_files_of_alert_process_and_gateway_have_the_ports_of_those_that_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alert, gateway = Process(tmp_path / "a", "alerts.toml", 31), Process(tmp_path / "g", "gateway.toml", 32)
    monkeypatch.setattr(alerting, "alert_process", lambda *_, **__: alert)
    monkeypatch.setattr(processes, "gateway_process", lambda *_: gateway)
    stack = stack_in(tmp_path)
    alerting.start_alert_processes(stack)
    processes.start_gateways(stack)
    for name, port in (("alerts-eu.toml", 31), ("gateway-eu.toml", 32)):
        assert f"port = {port}\n" in (tmp_path / name).read_text()
        assert (tmp_path / name).stat().st_mode & 0o077 == 0
