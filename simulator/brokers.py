"""Reads where the local broker of each vehicle listens."""

import json
from collections.abc import Sequence
from pathlib import Path

from simulator.errors import SimulatorError
from simulator.publisher import BrokerAddress


def parse_address(text: str) -> BrokerAddress:
    """HOST:PORT as an address. Raises SimulatorError."""
    host, _, port = text.rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65_536:
        raise SimulatorError(f"{text!r} is no HOST:PORT")
    return BrokerAddress(host, int(port))


def parse_brokers(given: Sequence[str], file: Path | None) -> dict[str, BrokerAddress]:
    """Brokers by device from `DEVICE=HOST:PORT` words and a JSON file {device: "HOST:PORT"}; words win."""
    brokers: dict[str, BrokerAddress] = {}
    if file is not None:
        try:
            content = json.loads(file.read_text(encoding="utf-8"))
            brokers.update((str(device), parse_address(str(address))) for device, address in content.items())
        except (OSError, ValueError, AttributeError) as error:
            raise SimulatorError(f"{file}: cannot be read as {{device: HOST:PORT}}: {error}") from error
    for word in given:
        device, equals, address = word.partition("=")
        if not equals or not device:
            raise SimulatorError(f"{word!r} is no DEVICE=HOST:PORT")
        brokers[device] = parse_address(address)
    return brokers
