"""What the settings of an alert process need from its machine, looked at before it starts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

from gateway.alerts.config import AlertSettings
from identity import SealingKeyError, Unsealer
from identity.operator_files import read_operators
from runtime.broker_settings import is_this_machine
from settings import SettingsError

__all__ = ["problems", "warnings"]


def problems(settings: AlertSettings) -> list[str]:
    """Why the process cannot run with these settings here: each names the setting and the file."""
    return [*_file_problems(settings), *([] if settings.insecure else _open(settings))]


def warnings(settings: AlertSettings, config: Path) -> list[str]:
    """What runs, and is probably not meant."""
    return [*_plain_text(settings), *_open_secrets(settings, config)]


def _file_problems(settings: AlertSettings) -> Iterator[str]:
    for field, fault in settings.pulsar.access.file_faults():
        yield f"pulsar.access{field and f'.{field}'}: {fault}"
    if settings.fences.operators is not None:
        try:
            read_operators(settings.fences.operators)
        except SettingsError as error:
            yield f"fences.operators: {'; '.join(error.lines)}"
    try:
        Unsealer.of_folder(settings.sealing_keys)
    except SealingKeyError as error:
        yield f"sealing_keys: {error}"


def _open(settings: AlertSettings) -> Iterator[str]:
    """What lets others in, or read along: allowed by the word `insecure` alone."""
    word = "or say insecure = true at the top"
    access = settings.pulsar.access
    # alerts say where vehicles are, as batches do
    if not settings.pulsar.is_encrypted:
        yield f"pulsar.service_url: batches and alerts travel in plain text: use pulsar+ssl://, {word}"
    if not (access.token or access.token_file or access.tls_certificate):
        yield f"pulsar.access.token_file: Pulsar is shown nothing: set it, or tls_certificate and tls_key, {word}"
    if settings.fences.unsigned:
        yield f"fences.unsigned: anybody who publishes there makes alerts: set fences.operators, {word}"


def _plain_text(settings: AlertSettings) -> Iterator[str]:
    host = urlsplit(settings.pulsar.service_url.split(",")[0]).hostname or ""
    if not settings.pulsar.is_encrypted and not is_this_machine(host):
        yield f"pulsar.service_url: batches and alerts travel to {host} in plain text; use pulsar+ssl://"
    if not is_this_machine(settings.status.host):
        yield f"status.host: everybody who reaches {settings.status.host} reads the status"


def _open_secrets(settings: AlertSettings, config: Path) -> Iterator[str]:
    access, keys = settings.pulsar.access, settings.sealing_keys
    secrets = [(access.token and config, "token"), (access.token_file, "token"), (access.tls_key, "key")]
    secrets += [(file, "sealing key") for file in (sorted(keys.glob("*.key")) if keys is not None else ())]
    for file, secret in secrets:
        if file and file.stat().st_mode & 0o044:
            yield f"{file}: others can read the {secret} in it; chmod 600"
