"""What a settings file alone does not show: files that cannot be read, and what goes over the network in plain text."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator

from edge_agent.config import AgentSettings, BrokerSettings
from edge_agent.errors import LinkError
from edge_agent.mqtt import tls_context


def problems(settings: AgentSettings) -> list[str]:
    """Certificates, keys and password files that cannot be used, a line for each."""
    return [problem for place, broker in _brokers(settings) for problem in _unusable_files(place, broker)]


def warnings(settings: AgentSettings) -> list[str]:
    """What works, but is open to everybody on the way."""
    found = [
        f"{place}: plain text to {broker.host}: who is on the way can read and change it; give {place}.tls"
        for place, broker in _brokers(settings)
        if broker.tls is None and not _is_this_machine(broker.host)
    ]
    for number, uplink in enumerate(settings.uplinks):
        if uplink.service_url and uplink.service_url.startswith("pulsar:"):
            found.append(f"uplinks.{number}.service_url: plain text to {uplink.service_url}; use pulsar+ssl")
    return found


def _brokers(settings: AgentSettings) -> Iterator[tuple[str, BrokerSettings]]:
    yield "intake", settings.intake
    for number, uplink in enumerate(settings.uplinks):
        if uplink.kind == "mqtt":
            yield f"uplinks.{number}", uplink


def _unusable_files(place: str, broker: BrokerSettings) -> Iterator[str]:
    if broker.password_file is not None:
        try:
            broker.password_file.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            yield f"{place}.password_file: cannot be read: {error}"
    if broker.tls is None:
        return
    files = {"ca": broker.tls.ca, "certificate": broker.tls.certificate, "key": broker.tls.key}
    unreadable = False
    for key, path in files.items():
        try:
            if path is not None:
                path.read_bytes()
        except OSError as error:
            unreadable = True
            yield f"{place}.tls.{key}: cannot be read: {error}"
    if not unreadable:
        try:
            tls_context(broker.tls)
        except LinkError as error:
            yield f"{place}.tls: {error}"


def _is_this_machine(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
