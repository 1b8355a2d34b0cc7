"""The configuration files of a region's brokers, from the settings of its access daemon: one place has all paths."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from gateway.access.config import AccessSettings, ClaimBroker, GuardedBroker
from waybill.daemon.durable_file import replace_durably
from waybill.identity.broker_conf import (
    broker_access_lines,
    broker_lines,
    broker_log_lines,
    conf_text,
    device_listener_lines,
    enrolment_broker_lines,
)

__all__ = ["write_broker_conf"]

# the broker runs as another user
_READABLE_BY_GROUP = 0o640


def write_broker_conf(settings: AccessSettings) -> list[Path]:
    """Write the configuration of each broker that has `server`; those that changed. Raises OSError."""
    changed = []
    for file, lines in _files(settings):
        content = conf_text(["# written by fleet-gateway access, from its settings", *lines]).encode()
        if not file.exists() or file.read_bytes() != content:
            replace_durably(file, content, mode=_READABLE_BY_GROUP)
            changed.append(file)
    return changed


def _files(settings: AccessSettings) -> Iterator[tuple[Path, list[str]]]:
    if (server := settings.broker.server) is not None:
        yield server.conf_file, _device_lines(settings.broker)
    claims = settings.enrolment.broker if settings.enrolment is not None else None
    if claims is not None and claims.server is not None:
        yield claims.server.conf_file, _claim_lines(claims)


def _device_lines(broker: GuardedBroker) -> list[str]:
    server = broker.server
    assert server is not None
    assert broker.pid_file is not None
    return [
        *broker_lines(server.port, server.bind, server.folder, server.bounds),
        *device_listener_lines(server.files, server.tls.ca, broker.rules_file),
        *broker_access_lines(
            revocations=broker.revocation_file,
            passwords=broker.password_file,
            pid_file=broker.pid_file,
            guard_socket=broker.guard_socket,
        ),
        *broker_log_lines(),
    ]


def _claim_lines(broker: ClaimBroker) -> list[str]:
    server = broker.server
    assert server is not None
    assert broker.pid_file is not None
    lines = enrolment_broker_lines(
        server.files,
        port=server.port,
        bind=server.bind,
        rules=broker.rules_file,
        passwords=broker.password_file,
        pid_file=broker.pid_file,
        factory_port=server.factory_port,
        factory_ca=server.factory_ca,
    )
    return [*lines, *broker_log_lines()]
