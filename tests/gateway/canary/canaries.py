"""Settings of canaries for tests."""

from pathlib import Path
from typing import Any

from gateway.canary.config import CanarySettings
from waybill.settings import validate

CANARY_FILE = """region = "eu"
device = "canary-eu"
watched = ["region"]
[regional]
service_url = "pulsar://127.0.0.1:6650"
[script]
latitude = 54.6
longitude = 4.2
[[agent.uplinks]]
region = "eu"
host = "127.0.0.1"
"""
"""The shortest settings that a command takes."""


def canary_settings(folder: Path, **more: Any) -> CanarySettings:
    """A canary of region `eu`, whose lake is in the folder."""
    tables: dict[str, Any] = {
        "region": "eu",
        "device": "canary-eu",
        "folder": str(folder / "vehicle"),
        "lake": str(folder / "lake"),
        "script": {"latitude": 54.6, "longitude": 4.2},
        "agent": {"uplinks": [{"region": "eu", "host": "127.0.0.1"}]},
        "regional": {"service_url": "pulsar://127.0.0.1:6650"},
        "centre": {"service_url": "pulsar://127.0.0.1:6651"},
    }
    return validate(CanarySettings, tables | more, "canary.toml")
