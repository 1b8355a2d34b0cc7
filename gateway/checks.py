"""What a configuration needs from its machine, looked at before the gateway starts."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from gateway.config import GatewaySettings
from gateway.registry_settings import RegistrySettings, open_registry
from gateway.share import share_group
from gateway.source_checks import open_secrets
from waybill.daemon.tls import unusable_tls_files
from waybill.identity.authority import common_name, read_certificates
from waybill.identity.errors import IdentityError, SealingKeyError
from waybill.identity.names import PrincipalKind, principal
from waybill.identity.sealing import read_public_key
from waybill.mqtt.broker_settings import is_this_machine, unusable_files
from waybill.pulsar.pulsar_address import host_names
from waybill.pulsar.pulsar_client import PulsarAccessError, PulsarToken
from waybill.pulsar.token_watch import token_faults, tokens_ending
from waybill.settings import SettingsError, read_file


def problems(settings: GatewaySettings) -> list[str]:
    """Why the gateway cannot run with these settings here: each names the setting and the file."""
    return [*_file_problems(settings), *_name_problems(settings), *([] if settings.insecure else _open(settings))]


def warnings(settings: GatewaySettings, config: Path, now_s: float) -> list[str]:
    """What runs, and is probably not meant."""
    ending = tokens_ending(settings.pulsar_accesses, now_s)
    return [*_plain_text(settings), *_open_secrets(settings, config), *ending]


def ended_tokens(settings: GatewaySettings, now_s: float) -> list[str]:
    """Tokens that no cluster takes now. A gateway runs all the same: it reads their files again."""
    return token_faults(settings.pulsar_accesses, now_s)


def _file_problems(settings: GatewaySettings) -> Iterator[str]:
    yield from unusable_files("mqtt", settings.mqtt)
    try:
        share_group(settings.mqtt)
    except (OSError, ValueError) as error:
        yield f"mqtt.share_file: cannot be used: {error}"
    yield from unusable_tls_files("pulsar.tls", settings.pulsar.tls)
    if settings.pulsar.token_file:
        try:
            PulsarToken(settings.pulsar.access)
        except PulsarAccessError as error:
            yield f"pulsar.token_file: {error}"
    for tenant, one in settings.tenants.items():
        if one.sealing_key is not None:
            try:
                read_public_key(one.sealing_key)
            except SealingKeyError as error:
                yield f"tenants.{tenant}.sealing_key: {error}"
    if settings.registry is not None:
        yield from _registry_problems(settings.registry)
    folder = settings.push.folder
    if folder is not None and not (folder.is_dir() and os.access(folder, os.R_OK | os.X_OK)):
        yield f"push.folder: {folder} is not a folder that can be read"


def _registry_problems(registry: RegistrySettings) -> Iterator[str]:
    try:
        registry.check_signed()
    except SettingsError as error:
        yield f"registry.operators: {'; '.join(error.lines)}"
    for name, fault in registry.access.file_faults():
        yield f"registry.access{name and f'.{name}'}: {fault}"


def _name_problems(settings: GatewaySettings) -> Iterator[str]:
    tls, own = settings.mqtt.tls, principal(PrincipalKind.GATEWAY, settings.name)
    if tls is None or tls.certificate is None:
        return
    with contextlib.suppress(OSError, ValueError, IdentityError):
        named = common_name(read_certificates(read_file(tls.certificate))[0].subject)
        if named != own:
            make = f"waybill pki gateway {settings.name} --region {settings.region} --out FOLDER"
            yield (
                f"mqtt.tls.certificate: {tls.certificate} is of {named!r}, and this gateway is {own!r}: set name, or "
                f"make its certificate with `{make}`"
            )


def _open(settings: GatewaySettings) -> Iterator[str]:
    """What lets others in, or read along: allowed by the word `insecure` alone."""
    word = "or say insecure = true at the top"
    mqtt, pulsar, registry = settings.mqtt, settings.pulsar, settings.registry
    if mqtt.tls is None:
        yield f"mqtt.tls: batches travel to {mqtt.host} in plain text: set ca, certificate and key, {word}"
    elif mqtt.tls.certificate is None:
        yield f"mqtt.tls.certificate: the gateway shows the broker nothing: set certificate and key, {word}"
    if not pulsar.is_encrypted:
        yield f"pulsar.service_url: batches travel in plain text: use pulsar+ssl:// with pulsar.tls, {word}"
    if not (pulsar.token or pulsar.token_file or (pulsar.tls and pulsar.tls.certificate)):
        yield f"pulsar.token_file: the gateway shows Pulsar nothing: set it, or pulsar.tls.certificate and key, {word}"
    if registry is None:
        yield f"registry: batches of suspended and revoked devices are taken: set [registry], {word}"
    else:
        for key, fault in open_registry(registry):
            yield f"registry.{key}: {fault}, {word}"


def _plain_text(settings: GatewaySettings) -> Iterator[str]:
    if settings.mqtt.tls is None and not is_this_machine(settings.mqtt.host):
        secret = " and the password" if settings.mqtt.password_file else ""
        yield f"mqtt.host: batches{secret} travel to {settings.mqtt.host} in plain text; set [mqtt.tls]"
    hosts = host_names(settings.pulsar.service_url)
    if not settings.pulsar.is_encrypted and not all(map(is_this_machine, hosts)):
        secret = " and the token" if settings.pulsar.token or settings.pulsar.token_file else ""
        yield f"pulsar.service_url: batches{secret} travel to {', '.join(hosts)} in plain text; use pulsar+ssl://"
    if not is_this_machine(settings.status.host):
        yield f"status.host: everybody who reaches {settings.status.host} reads status and names of devices"


def _open_secrets(settings: GatewaySettings, config: Path) -> Iterator[str]:
    return open_secrets(
        (
            (settings.mqtt.password_file, "password"),
            (settings.mqtt.share_file, "group"),
            (config if settings.pulsar.token else None, "token"),
            (settings.pulsar.token_file, "token"),
        )
    )
