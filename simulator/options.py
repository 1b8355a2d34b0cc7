"""Reads options of the command line that hold several values: brokers and faults."""

import json
from collections.abc import Sequence
from pathlib import Path

from pydantic import ValidationError

from simulator.errors import ScenarioError, SimulatorError
from simulator.publisher import BrokerAddress
from simulator.scenario import Faults, GpsNoise
from waybill.settings import read_file


def parse_address(text: str) -> BrokerAddress:
    """HOST:PORT as an address. Raises SimulatorError."""
    # From the right: the host may be an IPv6 address, which has colons too.
    host, _, port = text.rpartition(":")
    # isdigit() alone also takes characters, such as a raised 2, that int() refuses.
    if not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65_536:
        raise SimulatorError(f"{text!r} is not a valid HOST:PORT")
    return BrokerAddress(host, int(port))


def parse_brokers(given: Sequence[str], file: Path | None) -> dict[str, BrokerAddress]:
    """Brokers by device from `DEVICE=HOST:PORT` words and a JSON file {device: "HOST:PORT"}; words win."""
    brokers: dict[str, BrokerAddress] = {}
    if file is not None:
        try:
            content = json.loads(read_file(file))
            brokers.update((str(device), parse_address(str(address))) for device, address in content.items())
        except (OSError, ValueError, AttributeError, RecursionError) as error:
            raise SimulatorError(f"{file}: cannot be read as {{device: HOST:PORT}}: {error}") from error
    for word in given:
        device, equals, address = word.partition("=")
        if not equals or not device:
            raise SimulatorError(f"{word!r} is not a valid DEVICE=HOST:PORT")
        brokers[device] = parse_address(address)
    return brokers


def parse_noise(text: str) -> GpsNoise | None:
    """`4` or `4,60` (metres, seconds) as noise; empty: none. Raises ScenarioError."""
    words = [word.strip() for word in text.split(",")] if text.strip() else []
    if not words:
        return None
    try:
        return GpsNoise.model_validate(dict(zip(("sigma_m", "tau_s"), words, strict=len(words) > 2)))
    except ValueError as error:
        raise ScenarioError(
            f"--gps-noise {text!r}: give metres up to 50 and, after a comma, the seconds of its memory: 4,60"
        ) from error


def parse_faults(text: str) -> Faults:
    """`duplicates=0.01,wrong_clocks=2,late=1` as Faults; empty: none. Raises ScenarioError."""
    given: dict[str, str] = {}
    for word in filter(None, (word.strip() for word in text.split(","))):
        name, equals, value = word.partition("=")
        if not equals:
            raise ScenarioError(f"{word!r} is not a valid FAULT=NUMBER; faults are {', '.join(Faults.model_fields)}")
        given[name.strip()] = value.strip()
    try:
        return Faults.model_validate(given)
    except ValidationError as error:
        raise ScenarioError(f"faults {text!r}: {error.errors()[0]['msg']}") from error
