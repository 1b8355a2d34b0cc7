"""Settings from the gateway: laid over the file's, tried, and kept only if the uplink is well with them.

Files beside the buffer, each replaced in one synced rename:

    pushed.toml         in force, confirmed
    pushed-trial.toml   on trial. One that is found at a start was cut short by a crash: it is discarded
    pushed-refused.toml the last one that was refused or taken back; the same text is not tried again
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from edge_agent.config import AgentSettings
from settings import SettingsError, load

IN_FORCE, ON_TRIAL, REFUSED = "pushed.toml", "pushed-trial.toml", "pushed-refused.toml"
MAX_BYTES = 64 << 10
ALLOWED = frozenset({"buffer", "classes", "drain", "link", "time", "uplinks", "failover", "log_level"})
"""What may be pushed. Who the device is, where its data lies and where they come from is not up to the gateway."""


class PushRefused(Exception):
    """The pushed settings are not taken; the text says why."""


def effective_settings(config: Path) -> AgentSettings:
    """The file's settings with the pushed ones that are on trial or in force laid over. Raises SettingsError."""
    base = load(AgentSettings, config)
    for name in (ON_TRIAL, IN_FORCE):
        pushed = base.buffer.path / name
        if pushed.exists():
            try:
                return overlaid(config, pushed.read_text(encoding="utf-8"))
            except (OSError, UnicodeDecodeError, PushRefused):
                continue
    return base


def overlaid(config: Path, text: str) -> AgentSettings:
    """The file's settings with pushed ones laid over. Raises PushRefused; SettingsError if the file itself is wrong."""
    base = load(AgentSettings, config)
    try:
        pushed = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise PushRefused(f"no TOML: {error}") from error
    if outside := sorted(pushed.keys() - ALLOWED):
        raise PushRefused(f"{', '.join(outside)} cannot be pushed")
    try:
        settings = AgentSettings.model_validate(_merged(tomllib.loads(config.read_text(encoding="utf-8")), pushed))
    except ValidationError as error:
        problems = (f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors())
        raise PushRefused("; ".join(problems)) from error
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SettingsError(str(config), [f"cannot be read: {error}"]) from error
    if settings.buffer.path != base.buffer.path:
        raise PushRefused("buffer.path cannot be pushed")
    return settings


class Trial:
    """The pushed settings of one agent, on disk."""

    def __init__(self, config: Path, folder: Path) -> None:
        self._config = config
        self._folder = folder

    @property
    def is_on(self) -> bool:
        """Whether settings are on trial."""
        return (self._folder / ON_TRIAL).exists()

    def begin(self, text: bytes) -> bool:
        """Puts pushed settings on trial; False when they are known already. Raises PushRefused."""
        if any(self._same(name, text) for name in (IN_FORCE, REFUSED)):
            return False
        try:
            if len(text) > MAX_BYTES:
                raise PushRefused(f"{len(text)} bytes, {MAX_BYTES} are allowed")
            overlaid(self._config, text.decode("utf-8"))
        except (PushRefused, UnicodeDecodeError) as error:
            self._replace(REFUSED, text[:MAX_BYTES])
            raise PushRefused(str(error)) from error
        self._replace(ON_TRIAL, text)
        return True

    def confirm(self) -> None:
        """What is on trial is in force."""
        (self._folder / ON_TRIAL).replace(self._folder / IN_FORCE)
        self._sync_folder()

    def take_back(self) -> bool:
        """What is on trial is discarded; False when nothing was."""
        if not self.is_on:
            return False
        (self._folder / ON_TRIAL).replace(self._folder / REFUSED)
        self._sync_folder()
        return True

    def _same(self, name: str, text: bytes) -> bool:
        path = self._folder / name
        return path.exists() and path.read_bytes() == text

    def _replace(self, name: str, text: bytes) -> None:
        beside = self._folder / f"{name}.new"
        with beside.open("wb") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(self._folder / name)
        self._sync_folder()

    def _sync_folder(self) -> None:
        descriptor = os.open(self._folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Tables are merged key by key; anything else is replaced."""
    merged = dict(base)
    for key, value in over.items():
        below = merged.get(key)
        both = isinstance(below, dict) and isinstance(value, dict)
        merged[key] = _merged(below, value) if both and isinstance(below, dict) else value
    return merged
