"""The secrets of a webhook, from their file, read again when it changes; never shown, never logged."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import structlog

from gateway.webhooks.errors import SecretUnusable
from gateway.webhooks.signature import secrets_of
from waybill.daemon.bounded_file import read_secret
from waybill.settings import file_fault

__all__ = ["SecretFile"]

# four secrets and their remarks fit; a wrong file is not read whole
_MAX_BYTES: Final = 4096
_LOG = structlog.get_logger("webhooks")


class SecretFile:
    """Called, it gives the secrets as they are now. A file that cannot be used any more leaves those of before."""

    def __init__(self, path: Path) -> None:
        """Raises SecretUnusable when there is none to begin with."""
        self._path = path
        self._secrets = _read(path)
        self.problem = ""

    def __call__(self) -> tuple[bytes, ...]:
        """The secrets, the newest first."""
        self.look()
        return self._secrets

    def look(self) -> None:
        """Reads the file again: `problem` says what is wrong with it now."""
        try:
            self._secrets = _read(self._path)
            self.problem = ""
        except SecretUnusable as error:
            # once, not for each message
            if not self.problem:
                _LOG.warning("the former secret is used", problem=str(error))
            self.problem = f"{error}; the former secret is used"


def _read(path: Path) -> tuple[bytes, ...]:
    try:
        return secrets_of(read_secret(path, _MAX_BYTES))
    except OSError as error:
        raise SecretUnusable(f"{path}: cannot be read: {file_fault(error)}") from error
    except ValueError as error:
        # what is in the file is not repeated, not even where it is wrong
        raise SecretUnusable(f"{path}: {error}") from None
