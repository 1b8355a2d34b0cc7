"""What the settings of an alert process need from its machine, looked at before it starts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from gateway.alerts.config import AlertSettings
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
from waybill.identity.errors import SealingKeyError
from waybill.identity.sealing import Unsealer

__all__ = ["problems", "warnings"]


def problems(settings: AlertSettings) -> list[str]:
    """Why the process cannot run with these settings here: each names the setting and the file."""
    return [*_file_problems(settings), *([] if settings.insecure else _open(settings))]


def warnings(settings: AlertSettings, config: Path, now_s: float) -> list[str]:
    """What runs, and is probably not meant."""
    return [
        *_plain_text(settings),
        *_open_secrets(settings, config),
        *ending_tokens(settings.pulsar, now_s),
        *_short_rewind(settings),
    ]


def _short_rewind(settings: AlertSettings) -> Iterator[str]:
    if settings.rewind_s < settings.rewind_needed_s:
        yield (
            f"rewind_s: {settings.rewind_s:g} is enough for devices that report often: after a takeover, one that is "
            f"silent for up to tracks.max_gap_s is said to dwell again; make it {settings.rewind_needed_s:g}"
        )


def _file_problems(settings: AlertSettings) -> Iterator[str]:
    yield from file_problems(settings.pulsar, "fences", settings.fences)
    try:
        Unsealer.of_folder(settings.sealing_keys)
    except SealingKeyError as error:
        yield f"sealing_keys: {error}"


def _open(settings: AlertSettings) -> Iterator[str]:
    """What lets others in, or read along: allowed by the word `insecure` alone."""
    # alerts say where vehicles are, as batches do
    yield from open_cluster(settings.pulsar, "batches and alerts")
    if settings.fences.unsigned:
        yield f"fences.unsigned: anybody who publishes there makes alerts: set fences.operators, {OPEN_WORD}"


def _plain_text(settings: AlertSettings) -> Iterator[str]:
    yield from travels_in_plain_text(settings.pulsar, "batches and alerts")
    yield from open_status(settings.status.host)


def _open_secrets(settings: AlertSettings, config: Path) -> Iterator[str]:
    keys = settings.sealing_keys
    sealing = [(file, "sealing key") for file in (sorted(keys.glob("*.key")) if keys is not None else ())]
    return open_secrets([*access_secrets(settings.pulsar, config), *sealing])
