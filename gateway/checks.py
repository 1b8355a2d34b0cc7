"""What a configuration needs from its machine, looked at before the gateway starts."""

from __future__ import annotations

import ipaddress
import os
import ssl
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

from gateway.config import GatewaySettings
from gateway.mqtt_connection import tls_context


def problems(settings: GatewaySettings) -> list[str]:
    """Why the gateway cannot run with these settings here: each names the setting and the file."""
    return [*_file_problems(settings), *_tls_problems(settings)]


def warnings(settings: GatewaySettings, config: Path) -> list[str]:
    """What runs, and is probably not meant."""
    return [*_plain_text(settings), *_open_secrets(settings, config)]


def _file_problems(settings: GatewaySettings) -> Iterator[str]:
    tls = settings.mqtt.tls
    files = {"pulsar.ca": settings.pulsar.ca}
    if tls is not None:
        files |= {"mqtt.tls.ca": tls.ca, "mqtt.tls.certificate": tls.certificate, "mqtt.tls.key": tls.key}
    for name, path in files.items():
        if path is not None and not (path.is_file() and os.access(path, os.R_OK)):
            yield f"{name}: {path} is not a file that can be read"
    folder = settings.push.folder
    if folder is not None and not (folder.is_dir() and os.access(folder, os.R_OK | os.X_OK)):
        yield f"push.folder: {folder} is not a folder that can be read"


def _tls_problems(settings: GatewaySettings) -> Iterator[str]:
    tls = settings.mqtt.tls
    if any(_file_problems(settings)):
        return
    try:
        ssl.create_default_context(cafile=settings.pulsar.ca)
    except (OSError, ValueError) as error:
        yield f"pulsar.ca: {settings.pulsar.ca} holds no certificate: {error}"
    if tls is None:
        return
    try:
        tls_context(tls)
    except (OSError, ValueError) as error:
        yield f"mqtt.tls: ca, certificate and key cannot be used together: {error}"


def _plain_text(settings: GatewaySettings) -> Iterator[str]:
    if settings.mqtt.tls is None and not is_this_machine(settings.mqtt.host):
        secret = " and the password" if settings.mqtt.password else ""
        yield f"mqtt.host: batches{secret} travel to {settings.mqtt.host} in plain text; set [mqtt.tls]"
    host = urlsplit(settings.pulsar.service_url.split(",")[0]).hostname or ""
    if not settings.pulsar.is_encrypted and not is_this_machine(host):
        secret = " and the token" if settings.pulsar.token else ""
        yield f"pulsar.service_url: batches{secret} travel to {host} in plain text; use pulsar+ssl://"
    if not is_this_machine(settings.status.host):
        yield f"status.host: everybody who reaches {settings.status.host} reads status and names of devices"


def _open_secrets(settings: GatewaySettings, config: Path) -> Iterator[str]:
    has_secret = settings.mqtt.password is not None or settings.pulsar.token is not None
    if has_secret and config.stat().st_mode & 0o044:
        yield f"{config}: others can read the password or token in it; chmod 600"


def is_this_machine(host: str) -> bool:
    """Whether what is sent there stays on this machine: a loopback address, or its usual name."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
