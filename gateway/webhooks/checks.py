"""What the settings need from their machine, looked at before the process starts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

from gateway.webhooks.config import NotifierSettings
from gateway.webhooks.errors import SecretUnusable
from gateway.webhooks.secret_file import SecretFile
from gateway.webhooks.signed_post import context_of
from identity.operator_files import read_operators
from runtime.broker_settings import is_this_machine
from settings import SettingsError, file_fault

__all__ = ["problems", "warnings"]


def problems(settings: NotifierSettings) -> list[str]:
    """Why the process cannot run with these settings here: each names the setting and the file."""
    return [*_file_problems(settings), *([] if settings.insecure else _open(settings))]


def warnings(settings: NotifierSettings, config: Path) -> list[str]:
    """What runs, and is probably not meant."""
    return [*_plain_text(settings), *_open_secrets(settings, config)]


def _file_problems(settings: NotifierSettings) -> Iterator[str]:
    for field, fault in settings.pulsar.access.file_faults():
        yield f"pulsar.access{field and f'.{field}'}: {fault}"
    if settings.rules.operators is not None:
        try:
            read_operators(settings.rules.operators)
        except SettingsError as error:
            yield f"rules.operators: {'; '.join(error.lines)}"
    # the file itself is made at the first start
    if not settings.state_file.parent.is_dir():
        yield f"state_file: {settings.state_file.parent} is no folder"
    for name, webhook in settings.webhooks.items():
        try:
            SecretFile(webhook.secret_file)
        except SecretUnusable as error:
            yield f"webhooks.{name}.secret_file: {error}"
        try:
            context_of(webhook)
        except OSError as error:
            yield f"webhooks.{name}.ca: {webhook.ca}: {file_fault(error)}"


def _open(settings: NotifierSettings) -> Iterator[str]:
    """What lets others in, or read along: allowed by the word `insecure` alone."""
    word = "or say insecure = true at the top"
    access = settings.pulsar.access
    if not settings.pulsar.is_encrypted:
        yield f"pulsar.service_url: alerts travel in plain text: use pulsar+ssl://, {word}"
    if not (access.token or access.token_file or access.tls_certificate):
        yield f"pulsar.access.token_file: Pulsar is shown nothing: set it, or tls_certificate and tls_key, {word}"
    if settings.rules.unsigned:
        yield f"rules.unsigned: anybody who publishes there gets alerts: set rules.operators, {word}"
    for name, webhook in settings.webhooks.items():
        if webhook.url.startswith("http:"):
            yield f"webhooks.{name}.url: messages travel in plain text: use https://, {word}"


def _plain_text(settings: NotifierSettings) -> Iterator[str]:
    host = urlsplit(settings.pulsar.service_url.split(",")[0]).hostname or ""
    if not settings.pulsar.is_encrypted and not is_this_machine(host):
        yield f"pulsar.service_url: alerts travel to {host} in plain text; use pulsar+ssl://"
    for name, webhook in settings.webhooks.items():
        server = urlsplit(webhook.url)
        if server.scheme == "http" and not is_this_machine(server.hostname or ""):
            yield f"webhooks.{name}.url: messages travel to {server.hostname} in plain text; use https://"
    if not is_this_machine(settings.status.host):
        yield f"status.host: everybody who reaches {settings.status.host} reads the status"


def _open_secrets(settings: NotifierSettings, config: Path) -> Iterator[str]:
    access = settings.pulsar.access
    secrets = [(access.token and config, "token"), (access.token_file, "token"), (access.tls_key, "key")]
    secrets += [(one.secret_file, "secret") for one in settings.webhooks.values()]
    for file, secret in secrets:
        if file and file.stat().st_mode & 0o044:
            yield f"{file}: others can read the {secret} in it; chmod 600"
