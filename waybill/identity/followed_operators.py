"""The trusted keys of a file that changes while a daemon runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import structlog

from waybill.identity.operator_keys import OperatorKeys
from waybill.identity.registry_messages import DevicePublication
from waybill.identity.registry_signing import check_by
from waybill.settings import SettingsError, parse, read_text

__all__ = ["FollowedOperators"]

_LOOK_S: Final = 1.0
_LOG = structlog.get_logger("operators")


class FollowedOperators:
    """`keys` as the file has them. Any thread may ask; one looks. Raises SettingsError for a file that is none.

    Later the former keys hold while the file cannot be used, and `problem` says why.
    """

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._path, self._clock = path, clock
        self._text = read_text(path)
        self.keys = parse(OperatorKeys, self._text, str(path))
        self.problem = ""
        self._next_s = clock() + _LOOK_S

    def look(self) -> bool:
        """Whether other keys are trusted than at the last look. By the content, and at most once a second."""
        if self._clock() < self._next_s:
            return False
        self._next_s = self._clock() + _LOOK_S
        try:
            text = read_text(self._path)
            if text == self._text:
                self.problem = ""
                return False
            self.keys = parse(OperatorKeys, text, str(self._path))
        except SettingsError as error:
            if not self.problem:
                _LOG.error("the former keys hold", problem="; ".join(error.lines))
            self.problem = f"{'; '.join(error.lines)}; the keys that it had before hold"
            return False
        self._text, self.problem = text, ""
        _LOG.info("the trusted keys were read again", file=str(self._path), keys=len(self.keys.keys))
        return True

    def check_signed(self, found: DevicePublication, body: bytes, properties: Mapping[str, str]) -> None:
        """Raises IdentityError for what none of the keys that are trusted now signed, or may sign."""
        return check_by(self.keys)(found, body, properties)
