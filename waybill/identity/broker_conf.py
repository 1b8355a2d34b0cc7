"""The configuration of a region's two Mosquitto brokers and of Pulsar's security. Pure."""

from __future__ import annotations

import re
import sys
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import NamedTuple

from pydantic import Field

from waybill.identity.names import PrincipalKind, principal
from waybill.identity.tokens import AUDIENCE
from waybill.mqtt.broker_settings import read_password
from waybill.record import (
    FACTORY_MOUNT,
    DeviceChannel,
    EnrolmentChannel,
    device_filter,
    device_topic,
    enrolment_filters,
    enrolment_rule,
)
from waybill.settings import Settings

# The share file: the secret name of the gateways' shared subscription.

_SECRET = re.compile(r"[A-Za-z0-9_-]{22,64}")


def read_share(file: Path) -> str:
    """The name of the gateways' shared subscription in a file. Raises OSError, ValueError."""
    name = read_password(file).strip()
    if not _SECRET.fullmatch(name):
        raise ValueError("its first line is not a name of 22 to 64 letters, digits, - or _")
    return name


# The `acl_file` of a region's Mosquitto. Pure.

MAX_DENIED = 2_000
"""Devices that are denied by name: at each reload the broker compares all its sessions with each of them.

With 10,000 sessions 1,000 take 0.1 s of its only thread, 5,000 take 0.3 s and 20,000 take 2.5 s.
"""
_FIRST = re.compile(r"# waybill rules, version (\d{1,15})\b")
_FROM_DEVICES = (DeviceChannel.BATCH, DeviceChannel.CONFIG_RESULT)
_TO_DEVICES = (DeviceChannel.ACK, DeviceChannel.CONFIG)


def broker_rules(version: int, region: str, gateways: Iterable[str], denied: Collection[str]) -> str:
    """The text of the `acl_file`. `gateways`: their names. `denied`: devices without any right, at most MAX_DENIED."""
    assert len(denied) <= MAX_DENIED, len(denied)
    lines = [f"# waybill rules, version {version}: written by the access daemon of {region}, and written over"]
    # A rule for a user comes before the patterns, and # is every topic that is not of the broker itself.
    for name in sorted(denied):
        lines += [f"user {name}", "topic deny #"]
    for gateway in sorted(set(gateways)):
        lines.append(f"user {principal(PrincipalKind.GATEWAY, gateway)}")
        lines += [f"topic read {device_filter(channel)}" for channel in _FROM_DEVICES]
        lines += [f"topic write {device_filter(channel)}" for channel in _TO_DEVICES]
    lines += [f"user {principal(PrincipalKind.ACCESS, region)}"]
    _, requests = enrolment_filters(EnrolmentChannel.REQUEST)
    _, answers = enrolment_filters(EnrolmentChannel.ANSWER)
    lines += [f"topic read {requests}", f"topic write {answers}"]
    lines += [f"pattern write {_own(channel)}" for channel in _FROM_DEVICES]
    lines += [f"pattern read {_own(channel)}" for channel in _TO_DEVICES]
    lines += [f"pattern write {enrolment_rule(EnrolmentChannel.REQUEST)}"]
    lines += [f"pattern read {enrolment_rule(EnrolmentChannel.ANSWER)}"]
    return "\n".join(lines) + "\n"


def rules_version(text: str) -> int:
    """The version of a file that `broker_rules` made; 0 for any other text."""
    found = _FIRST.match(text)
    return int(found[1]) if found else 0


def _own(channel: DeviceChannel) -> str:
    return device_topic("t", "d", channel).replace("/t/d/", "/%u/")


# The lines of Pulsar's broker.conf for authentication and authorisation. Pure.

_PLUGINS = "org.apache.pulsar"


def pulsar_security(
    files: ServerFiles,
    ca: Path,
    *,
    issuer: str,
    broker_token: Path,
    superusers: Collection[str],
    ports: tuple[int, int],
    key_refresh_s: int,
) -> dict[str, str | int]:
    """No port without TLS, no client without a token, no access without a right. `ports`: of brokers and of the web.

    Pulsar's OpenID Connect provider checks tokens and fetches the issuer's keys again; the usual provider reads one key
    at its start (apache/pulsar#8152). `key_refresh_s`: the greatest age of the keys at a check.
    """
    return {
        "brokerServicePort": "",
        "webServicePort": "",
        "brokerServicePortTls": ports[0],
        "webServicePortTls": ports[1],
        "tlsEnabled": "true",
        "tlsCertificateFilePath": str(files.certificate),
        "tlsKeyFilePath": str(files.key),
        "tlsTrustCertsFilePath": str(ca),
        # A renewed certificate is read without a restart.
        "tlsCertRefreshCheckDurationSec": 5,
        "tlsHostnameVerificationEnabled": "true",
        "brokerClientTlsEnabled": "true",
        "brokerClientTrustCertsFilePath": str(ca),
        "brokerClientAuthenticationPlugin": f"{_PLUGINS}.client.impl.auth.AuthenticationToken",
        "brokerClientAuthenticationParameters": broker_token.as_uri(),
        "authenticationEnabled": "true",
        "authenticationProviders": f"{_PLUGINS}.broker.authentication.oidc.AuthenticationProviderOpenID",
        # How often tokens of live connections are checked; an expired one is requested again.
        "authenticationRefreshCheckSeconds": 10,
        "openIDAllowedTokenIssuers": issuer,
        "openIDAllowedAudiences": AUDIENCE,
        "openIDTokenIssuerTrustCertsFilePath": str(ca),
        # A retired key is refused after this time; without the issuer known keys are valid for a day.
        "openIDCacheRefreshAfterWriteSeconds": key_refresh_s,
        "openIDCacheExpirationSeconds": 86_400,
        "openIDKeyIdCacheMissRefreshSeconds": 1,
        "authorizationEnabled": "true",
        "superUserRoles": ",".join(sorted(superusers)),
        # A topic policy is a message in the namespace itself: a client could make a cluster delete a topic.
        "topicLevelPoliciesEnabled": "false",
        # The topology names every topic, and `apply` creates it.
        "allowAutoTopicCreation": "false",
        "authenticateMetricsEndpoint": "true",
    }


# A claim is a small certificate request, and strangers may connect.
_CLAIM_PACKET_BYTES = 16 << 10
# Strangers can fill this listener, but not that of the devices.
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
    """A listener's certificate and key (PEM)."""

    certificate: Path
    key: Path


def conf_text(lines: Iterable[str]) -> str:
    return "\n".join(lines) + "\n"


def broker_lines(port: int, bind: str | None, folder: Path, bounds: MosquittoSettings) -> list[str]:
    """A broker with one listener, which keeps its queues in a folder. `bind`: None: all addresses."""
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
    """The log for `waybill.mqtt.broker_log`, which starts the broker: refused publications are logged at debug only."""
    return [
        # Not stdout, which Mosquitto buffers.
        "log_dest file /proc/self/fd/1",
        "log_timestamp false",
        *(f"log_type {kind}" for kind in ("error", "warning", "notice", "information", "debug")),
    ]


def broker_command(program: str, conf: Path, log: Path, control: Path | None = None) -> list[str]:
    """Start a broker whose configuration has `broker_log_lines`; its log with refused publications is `log`.

    `control`: the socket by which an access daemon reaches a broker whose process it does not see.
    """
    options = ["--control", str(control)] if control is not None else []
    return [sys.executable, "-m", "waybill.mqtt.broker_log", *options, str(log), program, "-c", str(conf)]


def device_listener_lines(files: ServerFiles, ca: Path, rules: Path | None) -> list[str]:
    """Mutual TLS for the preceding listener: the certificate alone names the client."""
    return [
        "allow_anonymous false",
        "require_certificate true",
        "use_identity_as_username true",
        # Else a client with the id of another device would end that device's session.
        "use_username_as_clientid true",
        # A message of QoS 2 stays in memory until its sender releases it. Mosquitto disconnects its sender.
        "max_qos 1",
        "max_topic_alias 0",
        *([f"acl_file {rules}"] if rules else []),
        *_tls(files),
        f"cafile {ca}",
    ]


def broker_access_lines(
    *, revocations: Path, passwords: Path, pid_file: Path | None, guard_socket: Path | str
) -> list[str]:
    """The files that an access daemon writes for the broker, and the socket by which it ends sessions. After the
    listener's.
    """
    return [
        f"crlfile {revocations}",
        f"password_file {passwords}",
        *_pid_file(pid_file),
        f"listener 0 {guard_socket}",
    ]


def enrolment_broker_lines(
    files: ServerFiles,
    *,
    port: int,
    bind: str | None,
    rules: Path,
    passwords: Path,
    pid_file: Path | None,
    factory_port: int,
    factory_ca: Path | None,
) -> list[str]:
    """The broker for devices without a certificate: tokens at `port`, factory certificates at `factory_port`.

    `factory_ca`: the authority of factory certificates; None: they are refused.
    """
    # A second client with the same token ends the session of the first one.
    bounds = [f"max_connections {_MAX_CLAIM_CONNECTIONS}", "use_username_as_clientid true"]
    lines = [_listener(port, bind), *_tls(files), *bounds]
    # A separate listener: with a required certificate no password is checked.
    if factory_ca is not None:
        lines += [_listener(factory_port, bind), *_tls(files), *bounds]
        lines += [f"cafile {factory_ca}", "require_certificate true", "use_identity_as_username true"]
        # The factory's authority could sign a token's name: the topic shows the listener of a request.
        lines += [f"mount_point {FACTORY_MOUNT}"]
    return [
        *lines,
        "allow_anonymous false",
        f"acl_file {rules}",
        f"password_file {passwords}",
        *_pid_file(pid_file),
        f"max_packet_size {_CLAIM_PACKET_BYTES}",
        "max_queued_messages 10",
        "persistence false",
    ]


def _pid_file(path: Path | None) -> list[str]:
    return [f"pid_file {path}"] if path is not None else []


def _listener(port: int, bind: str | None) -> str:
    return f"listener {port} {bind}" if bind else f"listener {port}"


def _tls(files: ServerFiles) -> list[str]:
    # Only 1.3: a resumed session of 1.2 would not check the certificate again.
    return [f"certfile {files.certificate}", f"keyfile {files.key}", "tls_version tlsv1.3"]
