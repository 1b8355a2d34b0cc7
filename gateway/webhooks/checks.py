"""What the settings need from their machine, looked at before the process starts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

from gateway.source_checks import (
    OPEN_WORD,
    access_secrets,
    ending_tokens,
    file_problems,
    open_cluster,
    open_secrets,
    open_status,
    travels_in_plain_text,
)
from gateway.webhooks.config import NotifierSettings
from gateway.webhooks.errors import SecretUnusable
from gateway.webhooks.secret_file import SecretFile
from gateway.webhooks.signed_post import context_of
from waybill.mqtt.broker_settings import is_this_machine
from waybill.settings import file_fault

__all__ = ["problems", "warnings"]


def problems(settings: NotifierSettings) -> list[str]:
    """Why the process cannot run with these settings here: each names the setting and the file."""
    return [*_file_problems(settings), *([] if settings.insecure else _open(settings))]


def warnings(settings: NotifierSettings, config: Path, now_s: float) -> list[str]:
    """What runs, and is probably not meant."""
    nobody = [] if settings.webhooks else ["webhooks: there is none: alerts are delivered to nobody"]
    readable = open_secrets(access_secrets(settings.pulsar, config))
    return [*_plain_text(settings), *readable, *ending_tokens(settings.pulsar, now_s), *nobody]


def _file_problems(settings: NotifierSettings) -> Iterator[str]:
    yield from file_problems(settings.pulsar, "rules", settings.rules)
    # the file itself is made at the first start
    if not settings.state_file.parent.is_dir():
        yield f"state_file: {settings.state_file.parent} is no folder"
    for name, webhook in settings.webhooks.items():
        try:
            SecretFile(webhook.secret_file)
        except SecretUnusable as error:
            yield f"webhooks.{name}.secret_file: {error}{_taken_from(webhook.secret_file)}"
        try:
            context_of(webhook)
        except OSError as error:
            yield f"webhooks.{name}.ca: {webhook.ca}: {file_fault(error)}"


def _taken_from(file: Path) -> str:
    """From where the name of a file is taken that has no folder of its own."""
    return "" if file.is_absolute() else f" (taken from the folder in which this runs, {Path.cwd()}: write it whole)"


def _open(settings: NotifierSettings) -> Iterator[str]:
    """What lets others in, or read along: allowed by the word `insecure` alone."""
    yield from open_cluster(settings.pulsar, "alerts")
    if settings.rules.unsigned:
        yield f"rules.unsigned: anybody who publishes there gets alerts: set rules.operators, {OPEN_WORD}"
    for name, webhook in settings.webhooks.items():
        if webhook.url.startswith("http:"):
            yield f"webhooks.{name}.url: messages travel in plain text: use https://, {OPEN_WORD}"


def _plain_text(settings: NotifierSettings) -> Iterator[str]:
    yield from travels_in_plain_text(settings.pulsar, "alerts")
    for name, webhook in settings.webhooks.items():
        server = urlsplit(webhook.url)
        if server.scheme == "http" and not is_this_machine(server.hostname or ""):
            yield f"webhooks.{name}.url: messages travel to {server.hostname} in plain text; use https://"
    yield from open_status(settings.status.host)
