"""The device's own certificates and keys on disk. Each file changes whole, and a key never stands in another file.

    {folder}/{tenant}/{device}/
        current.pem     the certificate that worked last, with its key
        next.pem        one that was just given, with its key, until a broker took it
        requested.pem   the key that a certificate was asked for, until it is given

Key and certificate are one file (0600), so that no reader and no power cut finds those of two different pairs.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from waybill.daemon.durable_file import replace_durably, sync_folder
from waybill.settings import open_file

# From when to when a certificate is valid, read from PEM without a library for certificates.

_PEM = re.compile(rb"-----BEGIN CERTIFICATE-----([A-Za-z0-9+/=\s]{1,65536})-----END CERTIFICATE-----")
_INTEGER, _SEQUENCE, _UTC_TIME, _GENERALIZED_TIME, _VERSION = 0x02, 0x30, 0x17, 0x18, 0xA0
_FORMATS = {_UTC_TIME: "%y%m%d%H%M%SZ", _GENERALIZED_TIME: "%Y%m%d%H%M%SZ"}


class Validity(NamedTuple):
    """The serial of a certificate, and when it is valid (seconds since 1970)."""

    serial: int
    not_before_s: float
    not_after_s: float

    @property
    def life_s(self) -> float:
        """How long it is valid in all."""
        return self.not_after_s - self.not_before_s


def read_validity(pem: bytes) -> Validity:
    """Of the first certificate in a PEM file. Raises ValueError, and nothing else for any bytes."""
    found = _PEM.search(pem)
    if found is None:
        raise ValueError("there is no certificate in PEM")
    try:
        der = base64.b64decode(b"".join(found[1].split()), validate=True)
    except binascii.Error as error:
        raise ValueError(f"the certificate is no base64: {error}") from error
    certificate = _inside(der, 0, _SEQUENCE)
    signed = _inside(der, certificate[0], _SEQUENCE)
    at = signed[0]
    if der[at : at + 1] == bytes([_VERSION]):
        at = _inside(der, at, _VERSION)[1]
    begin, at = _inside(der, at, _INTEGER)
    serial = int.from_bytes(der[begin:at], signed=True)
    # Passed over as a whole: only what stands behind them is looked for.
    for _ in ("algorithm", "issuer"):
        at = _inside(der, at, _SEQUENCE)[1]
    at = _inside(der, at, _SEQUENCE)[0]
    not_before_s, at = _time(der, at)
    not_after_s, _ = _time(der, at)
    return Validity(serial, not_before_s, not_after_s)


def _time(der: bytes, at: int) -> tuple[float, int]:
    tag = der[at] if at < len(der) else 0
    if tag not in _FORMATS:
        raise ValueError("the certificate has no time where one belongs")
    begin, end = _inside(der, at, tag)
    text = der[begin:end].decode("ascii", "replace")
    return datetime.strptime(text, _FORMATS[tag]).replace(tzinfo=UTC).timestamp(), end


def _inside(der: bytes, at: int, tag: int) -> tuple[int, int]:
    """Where the content of the element at this place begins and ends (DER)."""
    if der[at : at + 1] != bytes([tag]) or at + 2 > len(der):
        raise ValueError(f"the certificate's structure is not as it should be at byte {at}")
    length, begin = der[at + 1], at + 2
    if length & 0x80:
        octets = length & 0x7F
        # Three are 16 MB, far more than a certificate; none would be a length that DER does not have.
        if not 1 <= octets <= 3:
            raise ValueError(f"the certificate has a length of {octets} octets at byte {at}")
        length, begin = int.from_bytes(der[begin : begin + octets]), begin + octets
    if begin + length > len(der):
        raise ValueError(f"the certificate ends before what it announces at byte {at}")
    return begin, begin + length


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
