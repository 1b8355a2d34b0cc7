"""The device's own certificates and keys on disk. Each file changes whole, and a key never stands in another file.

    {folder}/{tenant}/{device}/
        current.pem     the certificate that worked last, with its key
        next.pem        one that was just given, with its key, until a broker took it
        requested.pem   the key that a certificate was asked for, until it is given

Key and certificate are one file (0600), so that no reader and no power cut finds those of two different pairs.
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
from edge_agent.errors import NoCertificate
from waybill.daemon.durable_file import replace_durably, sync_folder
from waybill.identity.errors import IdentityError
from waybill.settings import open_file

# Certificates of the uplinks, for status, metrics and health.

ENDS_SOON_SHARE = 0.1
"""Of its life that is left: by then it should have been renewed long ago."""


def certificate_folder(settings: AgentSettings) -> CertificateFolder | None:
    """Where the device's own certificates are; None for a device that is not enrolled but given its files."""
    if settings.enrolment is None:
        return None
    folder = settings.enrolment.folder or settings.buffer.path / "certificates"
    return CertificateFolder(folder, settings.device.tenant, settings.device.id)


def certificate_state(settings: AgentSettings, now_s: float) -> dict[str, Any]:
    """`certificate`: `valid`, `ends soon`, `expired`, `none` (it is needed and missing) or `not used`.

    Of several that uplinks show, the one that ends first. `certificate_ends`: when, as text and in seconds since 1970.
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


def _shown(settings: AgentSettings) -> Iterator[HeldCertificate | None]:
    """The certificate of each uplink that shows one, or would."""
    folder = certificate_folder(settings)
    for uplink in settings.uplinks:
        if uplink.tls is None:
            continue
        if uplink.tls.certificate is not None:
            yield read_held(uplink.tls.certificate)
        elif folder is not None:
            yield folder.newest()


# The certificate of a connection: the newest, or the former one until the newest has worked.

log = structlog.get_logger("edge_agent.enrolment")


class UplinkCertificates:
    """Used by the drain's thread and by the probe's.

    A new certificate is tried with the next connection. After an attempt that failed with it, whatever the reason, the
    one before has its turn, then the new one again.
    """

    def __init__(self, folder: CertificateFolder) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._next_failed = False
        self.problem = ""
        """Why the newest certificate is not in use; "" while nothing is known against it."""

    def with_certificate(self, uplink: UplinkSettings) -> UplinkSettings:
        """An uplink that has TLS and no certificate of its own, with the device's. Raises NoCertificate."""
        if uplink.tls is None or uplink.tls.certificate is not None:
            return uplink
        with self._lock:
            current, following = self._folder.current(), self._folder.next()
            held = current if self._next_failed and current is not None else following or current
        if held is None:
            raise NoCertificate(f"{uplink.region}: the device has no operational certificate yet; records are kept")
        tls = uplink.tls.model_copy(update={"certificate": held.path, "key": held.path})
        return uplink.model_copy(update={"tls": tls})

    def on_opened(self, uplink: UplinkSettings, worked: bool) -> None:
        """A connection with what `with_certificate` gave stands, or could not be made."""
        if uplink.tls is None or uplink.tls.certificate is None:
            return
        with self._lock:
            following = self._folder.next()
            is_next = following is not None and following.path == uplink.tls.certificate
            if is_next and worked:
                self._next_failed, self.problem = False, ""
                self._promote(uplink.tls.certificate)
                return
            # A region that is away fails with either: then they take turns until it is back.
            if worked and self._next_failed and following is not None:
                self.problem = f"the new certificate {following.serial:x} failed where the one before worked"
            self._next_failed = is_next

    def _promote(self, path: Path) -> None:
        try:
            self._folder.promote()
        except OSError as error:
            # It is tried first again with the next connection, so nothing is lost by it.
            log.error("the certificate that worked cannot be kept as the current one", file=str(path), error=str(error))
        else:
            log.info("the new certificate is in use")


MAX_PEM_BYTES = 64 << 10
_PRIVATE = 0o600


class HeldCertificate(NamedTuple):
    """A certificate with its key, in one file; times in seconds since 1970."""

    path: Path
    serial: int
    not_before_s: float
    not_after_s: float

    @property
    def life_s(self) -> float:
        """How long it is valid in all."""
        return self.not_after_s - self.not_before_s


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

    def promote(self) -> None:
        """The next one worked: it takes the place of the one before. Raises OSError."""
        with suppress(FileNotFoundError):
            os.replace(self._next, self._current)  # noqa: PTH105 - as what it is: a rename
            sync_folder(self._folder)


def read_held(path: Path) -> HeldCertificate | None:
    """The certificate in a file; None if there is none that can be read, which then counts as missing."""
    from waybill.identity.authority import read_certificates  # noqa: PLC0415 - heavy, and only TLS needs it

    try:
        certificate = read_certificates(_read(path))[0]
    except (OSError, ValueError, IdentityError):
        return None
    begins, ends = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    return HeldCertificate(path, certificate.serial_number, begins.timestamp(), ends.timestamp())


def _read(path: Path) -> bytes:
    with open_file(path) as file:
        return file.read(MAX_PEM_BYTES)
