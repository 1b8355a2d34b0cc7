"""The device's own certificates and keys on disk. Each file changes whole, and a key never stands in another file.

    {folder}/{tenant}/{device}/
        current.pem     the certificate that worked last, with its key
        next.pem        one that was just given, with its key, until a broker took it
        requested.pem   the key that a certificate was asked for, until it is given

Key and certificate are one file (0600), so that no reader and no power cut finds those of two different pairs.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from edge_agent.enrolment.validity import Validity, read_validity
from waybill.daemon.durable_file import replace_durably, sync_folder
from waybill.settings import open_file

MAX_PEM_BYTES = 64 << 10
_PRIVATE = 0o600


class HeldCertificate(NamedTuple):
    """A certificate with its key, in one file."""

    path: Path
    validity: Validity


class CertificateFolder:
    """The certificates of one device. Whoever changes its tenant or name finds an empty folder: they are another's."""

    def __init__(self, folder: Path, tenant: str, device: str) -> None:
        self._folder = folder / tenant / device
        self._current = self._folder / "current.pem"
        self._next = self._folder / "next.pem"
        self._requested = self._folder / "requested.pem"

    def current(self) -> HeldCertificate | None:
        """The one that worked last; None where there is none that can be read."""
        return read_held(self._current)

    def next(self) -> HeldCertificate | None:
        """One that no broker has taken yet."""
        return read_held(self._next)

    def newest(self) -> HeldCertificate | None:
        """The one that will be used next."""
        return self.next() or self.current()

    def requested_key(self) -> bytes | None:
        """The key that a certificate was asked for: one that is asked for again has the same."""
        with suppress(OSError):
            return _read(self._requested)
        return None

    def keep_requested_key(self, key_pem: bytes) -> None:
        """Before the request is sent: an answer that is lost can then be asked for again. Raises OSError."""
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        replace_durably(self._requested, key_pem, mode=_PRIVATE)

    def keep_next(self, key_pem: bytes, chain_pem: bytes) -> None:
        """A certificate was given for the requested key. Raises OSError."""
        replace_durably(self._next, key_pem + chain_pem, mode=_PRIVATE)
        self.forget_requested_key()

    def forget_requested_key(self) -> None:
        """The next request gets a new key. Raises OSError."""
        self._requested.unlink(missing_ok=True)

    def give_up_next(self) -> None:
        """The next one never worked: the current one holds, and another is asked for. Raises OSError."""
        self._next.unlink(missing_ok=True)
        sync_folder(self._folder)

    def promote(self) -> None:
        """The next one worked: it takes the place of the one before. Raises OSError."""
        with suppress(FileNotFoundError):
            os.replace(self._next, self._current)  # noqa: PTH105 - as what it is: a rename
            sync_folder(self._folder)


def read_held(path: Path) -> HeldCertificate | None:
    """The certificate in a file; None where there is none that can be read."""
    # What cannot be read is as good as none: the device is enrolled again, or says that it cannot be.
    try:
        return HeldCertificate(path, read_validity(_read(path)))
    except (OSError, ValueError):
        return None


def _read(path: Path) -> bytes:
    with open_file(path) as file:
        return file.read(MAX_PEM_BYTES)
