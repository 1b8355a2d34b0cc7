"""The device's certificates and keys on disk. Each file is replaced as a whole.

    {folder}/{tenant}/{device}/
        current.pem     the certificate that worked last, with its key
        next.pem        a new one with its key, until a broker has accepted it
        requested.pem   the key of a request that was not answered yet

Key and certificate share a file (mode 0600), so no reader and no power cut finds two that do not match.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import structlog

from edge_agent.config import AgentSettings, UplinkSettings
from edge_agent.errors import LinkError
from waybill.daemon.durable_file import replace_durably, sync_folder
from waybill.identity.errors import IdentityError
from waybill.settings import open_file

# Certificates of the uplinks, for status, metrics and health.

ENDS_SOON_SHARE = 0.1
"""Remaining share of its life from which on a certificate `ends soon`."""


def certificate_folder(settings: AgentSettings) -> CertificateFolder | None:
    """The folder of the device's own certificates; None without enrolment."""
    if settings.enrolment is None:
        return None
    folder = settings.enrolment.folder or settings.buffer.path / "certificates"
    return CertificateFolder(folder, settings.device.tenant, settings.device.id)


def certificate_state(settings: AgentSettings, now_s: float) -> dict[str, Any]:
    """`certificate`: `valid`, `ends soon`, `expired`, `none` (needed and missing) or `not used`; `certificate_ends`:
    its end.

    Of several certificates, the one that ends first counts.
    """
    shown = [*_shown(settings)]
    held = [one for one in shown if one is not None]
    if not held:
        return {"certificate": "none" if shown else "not used", "certificate_ends": None, "certificate_ends_s": 0}
    first = min(held, key=lambda one: one.not_after_s)
    ends = datetime.fromtimestamp(first.not_after_s, UTC)
    if now_s >= first.not_after_s:
        state = "expired"
    elif first.not_after_s - now_s < ENDS_SOON_SHARE * first.life_s:
        state = "ends soon"
    else:
        state = "none" if len(held) < len(shown) else "valid"
    return {
        "certificate": state,
        "certificate_ends": f"{ends:%Y-%m-%dT%H:%M:%SZ}",
        "certificate_ends_s": int(first.not_after_s),
    }


def _shown(settings: AgentSettings) -> Iterator[CertificateFile | None]:
    """The certificate of each uplink that uses one; None where it is missing."""
    folder = certificate_folder(settings)
    for uplink in settings.uplinks:
        if uplink.tls is None:
            continue
        if uplink.tls.certificate is not None:
            yield read_certificate_file(uplink.tls.certificate)
        elif folder is not None:
            yield folder.newest()


# The certificate of a connection: the newest, or the former one until the newest has worked.

log = structlog.get_logger("edge_agent.enrolment")


class UplinkCertificates:
    """Chooses the certificate of each connection. Used by the threads of the drain and the probe.

    A new certificate is used for the next connection. After a failure with it, old and new one take turns.
    """

    def __init__(self, folder: CertificateFolder) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._next_failed = False
        self.problem = ""
        """Why the newest certificate is not in use, or ""."""

    def with_certificate(self, uplink: UplinkSettings) -> UplinkSettings:
        """Adds the device's certificate to an uplink with TLS and no certificate of its own. Raises LinkError."""
        if uplink.tls is None or uplink.tls.certificate is not None:
            return uplink
        with self._lock:
            current, following = self._folder.current(), self._folder.next()
            held = current if self._next_failed and current is not None else following or current
        if held is None:
            raise LinkError(f"{uplink.region}: the device has no operational certificate yet; records are kept")
        tls = uplink.tls.model_copy(update={"certificate": held.path, "key": held.path})
        return uplink.model_copy(update={"tls": tls})

    def on_opened(self, uplink: UplinkSettings, worked: bool) -> None:
        """Reports whether a connection with the result of `with_certificate` worked."""
        if uplink.tls is None or uplink.tls.certificate is None:
            return
        with self._lock:
            following = self._folder.next()
            is_next = following is not None and following.path == uplink.tls.certificate
            if is_next and worked:
                self._next_failed, self.problem = False, ""
                self._promote(uplink.tls.certificate)
                return
            # If the region is down, both fail and take turns.
            if worked and self._next_failed and following is not None:
                self.problem = f"the new certificate {following.serial:x} failed where the one before worked"
            self._next_failed = is_next

    def _promote(self, path: Path) -> None:
        try:
            self._folder.promote()
        except OSError as error:
            # The next connection tries it again.
            log.error("the certificate that worked cannot be kept as the current one", file=str(path), error=str(error))
        else:
            log.info("the new certificate is in use")


MAX_PEM_BYTES = 64 << 10
_PRIVATE = 0o600


class CertificateFile(NamedTuple):
    """A certificate with its key, in one file; times in seconds since 1970."""

    path: Path
    serial: int
    not_before_s: float
    not_after_s: float

    @property
    def life_s(self) -> float:
        return self.not_after_s - self.not_before_s


class CertificateFolder:
    """The certificates of one device and tenant."""

    def __init__(self, folder: Path, tenant: str, device: str) -> None:
        self._folder = folder / tenant / device
        self._current = self._folder / "current.pem"
        self._next = self._folder / "next.pem"
        self._requested = self._folder / "requested.pem"

    def current(self) -> CertificateFile | None:
        """The certificate that worked last."""
        return read_certificate_file(self._current)

    def next(self) -> CertificateFile | None:
        """A certificate that no broker has accepted yet."""
        return read_certificate_file(self._next)

    def newest(self) -> CertificateFile | None:
        """The certificate that is used next."""
        return self.next() or self.current()

    def requested_key(self) -> bytes | None:
        """The key of the open request, which a repeated request uses again."""
        with suppress(OSError):
            return _read(self._requested)
        return None

    def store_requested_key(self, key_pem: bytes) -> None:
        """Stores the key before the request is sent, so that a lost answer can be requested again. Raises OSError."""
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        replace_durably(self._requested, key_pem, mode=_PRIVATE)

    def store_next(self, key_pem: bytes, chain_pem: bytes) -> None:
        """Stores the certificate for the requested key. Raises OSError."""
        replace_durably(self._next, key_pem + chain_pem, mode=_PRIVATE)
        self.forget_requested_key()

    def forget_requested_key(self) -> None:
        """Raises OSError."""
        self._requested.unlink(missing_ok=True)

    def promote(self) -> None:
        """Replaces the current certificate with the next one, which worked. Raises OSError."""
        with suppress(FileNotFoundError):
            os.replace(self._next, self._current)  # noqa: PTH105 - as what it is: a rename
            sync_folder(self._folder)


def read_certificate_file(path: Path) -> CertificateFile | None:
    """The certificate in a file; None if it cannot be read, which counts as missing."""
    from waybill.identity.authority import read_certificates  # noqa: PLC0415 - heavy, and only TLS needs it

    try:
        certificate = read_certificates(_read(path))[0]
    except (OSError, ValueError, IdentityError):
        return None
    begins, ends = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    return CertificateFile(path, certificate.serial_number, begins.timestamp(), ends.timestamp())


def _read(path: Path) -> bytes:
    with open_file(path) as file:
        return file.read(MAX_PEM_BYTES)
