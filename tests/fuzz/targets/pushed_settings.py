"""Settings that a gateway pushes, and settings files."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from pathlib import Path

from edge_agent.config import AgentSettings
from edge_agent.push.pushed import PushRefused, merge_pushed, with_present_retention

FOLDER = Path(tempfile.mkdtemp(prefix="waybill-fuzz-pushed-"))
FILE = FOLDER / "agent.toml"
TEXT = '[device]\nid = "eu-0001"\n[[uplinks]]\nregion = "eu"\nhost = "mqtt.eu.example"\n[uplinks.tls]\nca = "/ca.pem"\n'


def seeds() -> Iterable[bytes]:
    """One of each table, and texts that are deep, long or large."""
    yield b"[drain]\nwindow = 9\nack_timeout_s = 5.5\n"
    yield b'[[uplinks]]\nregion = "eu"\nhost = "new"\nport = 8883\n'
    yield b"allow_deletion = true\n[buffer]\nmax_bytes = 65536\n"
    yield b"[link]\nbytes_per_day = 2000000\nmetered = ['cellular']\n"
    yield b"log.level = 'debug'\n[time]\njump_s = 3\n[failover]\nafter_s = 30\n"
    yield b"a=" + b"[" * 5000
    yield b"a = 0x" + b"f" * 5000
    yield b'a=["""""""",' * 500


def judge(data: bytes) -> None:
    """Refused, or settings of the same device, with its certificates, that can be tried without deleting."""
    if not FILE.exists():
        FILE.write_text(TEXT)
    try:
        settings = merge_pushed(FILE, data.decode("utf-8"))
    except (PushRefused, UnicodeDecodeError):
        return
    assert settings.device.id == "eu-0001"
    assert all(one.tls is not None and str(one.tls.ca) == "/ca.pem" for one in settings.uplinks)
    kept = with_present_retention(
        AgentSettings.model_validate({"device": {"id": "d"}, "uplinks": [{"region": "eu", "host": "127.0.0.1"}]}),
        settings,
    )
    assert kept.buffer.max_bytes >= 1 << 30
