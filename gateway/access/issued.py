"""What the region's authority signed for devices, read from its folder as it grows."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import NamedTuple

import structlog
from cryptography import x509

from identity import AuthorityFolder, DeviceName, common_name, parse_name

__all__ = ["IssuedReader", "IssuedToDevice"]

_TIME_STEP_NS = 1_000_000_000
_LOG = structlog.get_logger("access")


class IssuedToDevice(NamedTuple):
    """A certificate of a device."""

    name: str
    serial: int
    not_after_s: float


class IssuedReader:
    """Reads each file of an authority's list once."""

    def __init__(self, authority: AuthorityFolder) -> None:
        self._folder = authority.folder / "issued"
        self._known: set[str] = set()
        self._changed_ns = -1

    def read_new(self) -> list[IssuedToDevice]:
        """What was signed since the last call. A file that is no certificate is logged, and not read again."""
        try:
            changed_ns = self._folder.stat().st_mtime_ns
        except FileNotFoundError:
            return []
        if changed_ns == self._changed_ns:
            return []
        # What was changed this moment may change again and have the same time: it is looked at once more.
        self._changed_ns = changed_ns if time.time_ns() - changed_ns > _TIME_STEP_NS else -1
        found = []
        with os.scandir(self._folder) as entries:
            new = [entry.name for entry in entries if entry.name.endswith(".pem") and entry.name not in self._known]
        for file in new:
            self._known.add(file)
            if (issued := self._read(self._folder / file)) is not None:
                found.append(issued)
        return found

    def _read(self, path: Path) -> IssuedToDevice | None:
        try:
            certificate = x509.load_pem_x509_certificate(path.read_bytes())
            name = common_name(certificate.subject)
        except (OSError, ValueError) as error:
            _LOG.error("not a certificate among those that were issued", file=str(path), problem=str(error))
            return None
        # Gateways and servers are in no registry of devices.
        if not isinstance(parse_name(name), DeviceName):
            return None
        return IssuedToDevice(name, certificate.serial_number, certificate.not_valid_after_utc.timestamp())
