"""Which certificate a connection to a region shows: the newest; the one before until the newest has worked."""

from __future__ import annotations

import threading
from pathlib import Path

import structlog

from edge_agent.config import UplinkSettings
from edge_agent.enrolment.certificate_folder import CertificateFolder
from edge_agent.errors import NoCertificate

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

    def with_certificate(self, uplink: UplinkSettings) -> UplinkSettings:
        """An uplink that has TLS and no certificate of its own, with the device's. Raises NoCertificate."""
        if uplink.kind != "mqtt" or uplink.tls is None or uplink.tls.certificate is not None:
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
            # A region that is away fails with either: then they take turns until it is back.
            if not (is_next and worked):
                self._next_failed = is_next
                return
            self._next_failed = False
            self._promote(uplink.tls.certificate)

    def _promote(self, path: Path) -> None:
        try:
            self._folder.promote()
        except OSError as error:
            # It is tried first again with the next connection, so nothing is lost by it.
            log.error("the certificate that worked cannot be kept as the current one", file=str(path), error=str(error))
        else:
            log.info("the new certificate is in use")
