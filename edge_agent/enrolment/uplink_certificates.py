"""Which certificate a connection to a region shows: the newest; the one before until the newest has worked."""

from __future__ import annotations

import threading
from pathlib import Path

import structlog

from edge_agent.config import UplinkSettings
from edge_agent.enrolment.certificate_folder import CertificateFolder, HeldCertificate
from edge_agent.errors import NoCertificate

log = structlog.get_logger("edge_agent.enrolment")

MAX_REFUSALS = 5
"""A new certificate that failed so often, each time where the one before worked, is given up. An agent that starts
anew counts anew."""


class UplinkCertificates:
    """Used by the drain's thread and by the probe's.

    A new certificate is tried with the next connection. After an attempt that failed with it, whatever the reason, the
    one before has its turn, then the new one again. One that fails where the one before works is given up at last.
    """

    def __init__(self, folder: CertificateFolder) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._next_failed = False
        self._refusals, self._refused_serial = 0, ""
        self.problem = ""
        """Why the newest certificate is not in use; "" while nothing is known against it."""

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
                if worked and self._next_failed and following is not None:
                    self._on_refused(following)
                self._next_failed = is_next
                return
            self._next_failed = False
            self._forget_refusals()
            self._promote(uplink.tls.certificate)

    def _on_refused(self, following: HeldCertificate) -> None:
        """The one before worked directly after the new one had failed: it is not the region that is away."""
        serial = f"{following.validity.serial:x}"
        if serial != self._refused_serial:
            self._refused_serial, self._refusals = serial, 0
        self._refusals += 1
        if self._refusals < MAX_REFUSALS:
            self.problem = f"the new certificate {serial} failed {self._refusals} times where the one before worked"
            return
        try:
            self._folder.give_up_next()
        except OSError as error:
            self.problem = f"the new certificate {serial} cannot be given up: {error}"
            return
        self.problem = (
            f"the new certificate {serial} failed {self._refusals} times and is given up; another is asked for"
        )
        log.error("a new certificate is given up", serial=serial, refusals=self._refusals)
        self._refusals = 0

    def _forget_refusals(self) -> None:
        self._refusals, self._refused_serial, self.problem = 0, "", ""

    def _promote(self, path: Path) -> None:
        try:
            self._folder.promote()
        except OSError as error:
            # It is tried first again with the next connection, so nothing is lost by it.
            log.error("the certificate that worked cannot be kept as the current one", file=str(path), error=str(error))
        else:
            log.info("the new certificate is in use")
