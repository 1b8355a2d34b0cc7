"""What the files beside a canary's settings know of publishing, as those in the folder of a local stack do."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Final, NamedTuple

from cloud_jobs.config import CloudSettings
from waybill.identity.errors import IdentityError
from waybill.identity.operator_settings import OPERATOR_SETTINGS, read_operator_settings
from waybill.settings import SettingsError, load

__all__ = ["Publishing", "publishing_beside"]

_JOBS: Final = ("publisher.toml", "cloud.toml")
"""Settings by which `waybill reference put` publishes, the better ones first."""


class Publishing(NamedTuple):
    """What `waybill reference` is to be called with; what nobody knows is a word in capitals."""

    lake: str
    config: str
    key: str


def publishing_beside(config: Path, lake: str | None) -> Publishing:
    """How what is set up for a canary is published; `config`: its settings, `lake`: as these have it."""
    jobs = next((file for name in _JOBS if (file := config.parent / name).is_file()), None)
    operator, key = config.parent / OPERATOR_SETTINGS, None
    # files that cannot be used know nothing: their own commands say why
    with contextlib.suppress(SettingsError, IdentityError):
        if operator.is_file():
            key = read_operator_settings(operator).key
    with contextlib.suppress(SettingsError):
        if jobs is not None and lake is None:
            lake = load(CloudSettings, jobs).lake
    return Publishing(lake or "LAKE", str(jobs or "cloud.toml"), str(key or "YOUR.key"))
