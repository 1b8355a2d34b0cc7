"""The configuration of a region's two brokers (Mosquitto), in production and in the local stack. Pure."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from pydantic import Field

from waybill.record import FACTORY_MOUNT
from waybill.settings import Settings

__all__ = [
    "MosquittoSettings",
    "ServerFiles",
    "broker_access_lines",
    "broker_command",
    "broker_lines",
    "broker_log_lines",
    "conf_text",
    "device_listener_lines",
    "enrolment_broker_lines",
]

# a claim is a certificate request; the door is open to strangers
_CLAIM_PACKET_BYTES = 16 << 10
# strangers fill this door, and not that of devices
_MAX_CLAIM_CONNECTIONS = 500


class MosquittoSettings(Settings):
    """Bounds of one broker."""

    max_queued_messages: int = Field(100_000, ge=1, description="waiting for one client that is away")
    max_queued_mb: int = Field(256, ge=1, description="waiting for one client that is away")
    max_inflight_messages: int = Field(1000, ge=1, description="sent to one client and not acknowledged yet")
    max_packet_mb: int = Field(2, ge=1, description="one MQTT packet; a raw payload has up to 1 MB")
    memory_limit_mb: int = Field(512, ge=64, description="all queues, sessions and subscriptions together, without TLS")
    autosave_s: int = Field(10, ge=1, description="between two writes of the queues to disk")


class ServerFiles(NamedTuple):
    """A listener's own files (PEM)."""

    certificate: Path
    key: Path


def conf_text(lines: Iterable[str]) -> str:
    """A file of these lines."""
    return "\n".join(lines) + "\n"


def broker_lines(port: int, bind: str | None, folder: Path, bounds: MosquittoSettings) -> list[str]:
    """A broker with one listener for the network, which keeps its queues in a folder; `bind`: None is everywhere."""
    return [
        _listener(port, bind),
        f"max_packet_size {bounds.max_packet_mb * 1024 * 1024}",
        f"memory_limit {bounds.memory_limit_mb * 1024 * 1024}",
        f"max_queued_messages {bounds.max_queued_messages}",
        f"max_queued_bytes {bounds.max_queued_mb * 1024 * 1024}",
        f"max_inflight_messages {bounds.max_inflight_messages}",
        "persistence true",
        f"persistence_location {folder}/",
        f"autosave_interval {bounds.autosave_s}",
        # Nagle's algorithm would hold back a small PUBACK until the packet before it is acknowledged.
        "set_tcp_nodelay true",
    ]


def broker_log_lines() -> list[str]:
    """What a broker logs for `waybill.mqtt.broker_log`, which starts it: refused publications are at debug only."""
    return [
        # Not stdout, which Mosquitto fills by pages: a refusal is to be read when it happens.
        "log_dest file /proc/self/fd/1",
        "log_timestamp false",
        *(f"log_type {kind}" for kind in ("error", "warning", "notice", "information", "debug")),
    ]


def broker_command(program: str, conf: Path, log: Path) -> list[str]:
    """Starts a broker whose configuration has `broker_log_lines`; what it says of whom it refused is in `log`."""
    return [sys.executable, "-m", "waybill.mqtt.broker_log", str(log), program, "-c", str(conf)]


def device_listener_lines(files: ServerFiles, ca: Path, rules: Path | None) -> list[str]:
    """What makes the listener before it mutual TLS: a client is who its certificate says, whatever it sends."""
    return [
        "allow_anonymous false",
        "require_certificate true",
        "use_identity_as_username true",
        # Or who gives the client id of another device would end that one's session.
        "use_username_as_clientid true",
        # A message of QoS 2 stays in memory until its sender releases it. Mosquitto ends whoever sends one.
        "max_qos 1",
        "max_topic_alias 0",
        *([f"acl_file {rules}"] if rules else []),
        *_tls(files),
        f"cafile {ca}",
    ]


def broker_access_lines(*, revocations: Path, passwords: Path, pid_file: Path, guard_socket: Path | str) -> list[str]:
    """What an access daemon writes for the broker, and the socket by which it ends sessions. Behind the listener's."""
    return [
        f"crlfile {revocations}",
        f"password_file {passwords}",
        f"pid_file {pid_file}",
        f"listener 0 {guard_socket}",
    ]


def enrolment_broker_lines(
    files: ServerFiles,
    *,
    port: int,
    bind: str | None,
    rules: Path,
    passwords: Path,
    pid_file: Path,
    factory_port: int,
    factory_ca: Path | None,
) -> list[str]:
    """The broker for who has no certificate yet: tokens at `port`, at `factory_port` factory certificates.

    `factory_ca`: who signs those; None: they are not taken.
    """
    # One claim, one session: a second client with the same token ends the first one.
    bounds = [f"max_connections {_MAX_CLAIM_CONNECTIONS}", "use_username_as_clientid true"]
    lines = [_listener(port, bind), *_tls(files), *bounds]
    # A listener of its own: with a certificate no password is asked for, and without one nobody gets this far.
    if factory_ca is not None:
        lines += [_listener(factory_port, bind), *_tls(files), *bounds]
        lines += [f"cafile {factory_ca}", "require_certificate true", "use_identity_as_username true"]
        # Its authority may sign a token's name: by which door a request came is seen by its topic.
        lines += [f"mount_point {FACTORY_MOUNT}"]
    return [
        *lines,
        "allow_anonymous false",
        f"acl_file {rules}",
        f"password_file {passwords}",
        f"pid_file {pid_file}",
        f"max_packet_size {_CLAIM_PACKET_BYTES}",
        "max_queued_messages 10",
        "persistence false",
    ]


def _listener(port: int, bind: str | None) -> str:
    return f"listener {port} {bind}" if bind else f"listener {port}"


def _tls(files: ServerFiles) -> list[str]:
    # 1.3 alone: nothing keeps a server from resuming a session of 1.2, and then nobody looks at the certificate again.
    return [f"certfile {files.certificate}", f"keyfile {files.key}", "tls_version tlsv1.3"]
