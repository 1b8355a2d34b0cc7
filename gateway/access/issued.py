"""What the region's authority signed for devices, read from its folder as it grows."""

from __future__ import annotations

import os
import time
from typing import Final, NamedTuple

import structlog
from cryptography import x509

from identity import AuthorityFolder, DeviceName, common_name, parse_name

__all__ = ["IssuedReader", "IssuedToDevice"]

MAX_AGAIN: Final = 100
"""Files that could not be read and are tried again in one call."""
_TIME_STEP_NS: Final = 1_000_000_000
_Version = tuple[int, int]
"""When a file was changed, and how long it is."""
_LOG = structlog.get_logger("access")


class IssuedToDevice(NamedTuple):
    """A certificate of a device."""

    name: str
    serial: int
    not_after_s: float


class IssuedReader:
    """Reads each file of an authority's list once: again while it cannot be read, or when it was no certificate yet."""

    def __init__(self, authority: AuthorityFolder) -> None:
        self._folder = authority.folder / "issued"
        self._known: set[str] = set()
        # Why it could not be read, and as what it was no certificate: a copy may not be whole yet.
        self._unread: dict[str, str] = {}
        self._no_certificate: dict[str, _Version | None] = {}
        self._changed_ns = -1

    @property
    def problem(self) -> str:
        """Files that could not be read the last time: how many, the first one and why; "" if there is none."""
        if not self._unread:
            return ""
        file, why = next(iter(self._unread.items()))
        more = f", and {len(self._unread) - 1} more" if len(self._unread) > 1 else ""
        return f"{self._folder / file} is not read: {why}{more}; if its device is revoked, its certificate is not"

    def read_new(self) -> list[IssuedToDevice]:
        """What was signed since the last call, and what could not be read by then. Raises OSError for the folder."""
        again = [*self._unread][:MAX_AGAIN]
        again += [file for file, version in self._no_certificate.items() if self._version(file) != version]
        files = [*self._take_new(), *again]
        return [issued for file in files if (issued := self._read(file)) is not None]

    def _take_new(self) -> list[str]:
        try:
            changed_ns = self._folder.stat().st_mtime_ns
        except FileNotFoundError:
            return []
        if changed_ns == self._changed_ns:
            return []
        with os.scandir(self._folder) as entries:
            new = [entry.name for entry in entries if entry.name.endswith(".pem") and entry.name not in self._known]
        # What was changed this moment may change again and have the same time: it is looked at once more.
        self._changed_ns = changed_ns if time.time_ns() - changed_ns > _TIME_STEP_NS else -1
        return [file for file in new if file not in self._unread and file not in self._no_certificate]

    def _read(self, file: str) -> IssuedToDevice | None:
        path = self._folder / file
        # Put back behind the others: each has its turn.
        former = self._unread.pop(file, "")
        self._no_certificate.pop(file, None)
        try:
            version, content = self._version(file), path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            self._unread[file] = why = error.strerror or str(error)
            if why != former:
                _LOG.error("a certificate that was issued cannot be read", file=str(path), problem=why)
            return None
        try:
            certificate = x509.load_pem_x509_certificate(content)
            name, ends_s = common_name(certificate.subject), certificate.not_valid_after_utc.timestamp()
        except Exception as error:  # noqa: BLE001 - of half a dozen kinds: the others are to be read
            _LOG.error("not a certificate among those that were issued", file=str(path), problem=str(error))
            self._no_certificate[file] = version
            return None
        self._known.add(file)
        # Gateways and servers are in no registry of devices.
        if not isinstance(parse_name(name), DeviceName):
            return None
        return IssuedToDevice(name, certificate.serial_number, ends_s)

    def _version(self, file: str) -> _Version | None:
        try:
            about = (self._folder / file).stat()
        except OSError:
            return None
        return about.st_mtime_ns, about.st_size
