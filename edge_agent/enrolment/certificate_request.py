"""Asking for a certificate, and what is done with the answer. The library for certificates is loaded here alone."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import TYPE_CHECKING

from edge_agent.config import DeviceSettings
from edge_agent.enrolment.certificate_folder import CertificateFolder, HeldCertificate
from edge_agent.errors import EnrolmentFailed
from waybill.identity.enrolment import (
    EnrolmentGranted,
    EnrolmentRefused,
    EnrolmentRequest,
    decode_enrolment_answer,
    encode_enrolment_request,
)
from waybill.identity.errors import EnrolmentUnreadable, IdentityError
from waybill.settings import read_file

if TYPE_CHECKING:
    from waybill.identity.requests import KeyPair

NONCE_BYTES = 16


class CertificateRequests:
    """The requests of one device. Until one is answered with a certificate, each has the same key."""

    def __init__(self, device: DeviceSettings, folder: CertificateFolder, ca: Path) -> None:
        """`ca`: the authorities that are trusted; no other's certificate is kept."""
        self._name = f"{device.tenant}/{device.id}"
        self._folder, self._ca = folder, ca
        self._nonce = ""

    def make(self) -> bytes:
        """The message that asks; its key is on disk before it is sent. Raises EnrolmentFailed, OSError."""
        from waybill.identity.requests import KeyPair, make_request  # noqa: PLC0415 - see the module

        key = self._key()
        if key is None:
            key = KeyPair.generate()
            self._folder.keep_requested_key(key.private_pem())
        self._nonce = secrets.token_hex(NONCE_BYTES)
        return encode_enrolment_request(EnrolmentRequest(self._nonce, make_request(key, self._name)))

    def is_answered_by(self, payload: bytes) -> bool:
        """Whether this is the answer to the last request, and not to an earlier one, nor anything else."""
        try:
            return self._nonce != "" and decode_enrolment_answer(payload).nonce == self._nonce
        except EnrolmentUnreadable as error:
            return self._nonce != "" and error.nonce == self._nonce

    def take(self, payload: bytes) -> HeldCertificate:
        """The certificate in the answer, which is on disk now. Raises EnrolmentFailed, OSError."""
        try:
            answer = decode_enrolment_answer(payload)
        except EnrolmentUnreadable as error:
            raise EnrolmentFailed(f"the answer cannot be read: {error}") from error
        self._nonce = ""
        if isinstance(answer, EnrolmentRefused):
            # For any other reason the key is kept: the answer to an earlier question may have been a certificate.
            if answer.reason.takes_another_key:
                self._folder.forget_requested_key()
            raise EnrolmentFailed(f"refused ({answer.reason}): {answer.detail}")
        return self._keep(answer)

    def _keep(self, answer: EnrolmentGranted) -> HeldCertificate:
        from waybill.identity.authority import common_name, is_chain_to, read_certificates  # noqa: PLC0415 - see the module

        key = self._key()
        try:
            certificate, *issuers = read_certificates(answer.chain_pem)
            named = common_name(certificate.subject)
        except (IdentityError, ValueError) as error:
            raise EnrolmentFailed(f"the answer holds no certificate: {error}") from error
        if named != self._name:
            raise EnrolmentFailed(f"the certificate is for {named!r:.80}, and this is {self._name}")
        if key is None or certificate.public_key() != key.public:
            raise EnrolmentFailed("the certificate is for another key than the one that was asked for")
        try:
            trusted = read_certificates(read_file(self._ca))
        except IdentityError as error:
            raise EnrolmentFailed(f"{self._ca}: {error}") from error
        # Whoever gets between may answer: with a certificate that no broker takes it would never ask again.
        if not is_chain_to([certificate, *issuers], trusted):
            raise EnrolmentFailed(f"the certificate is of no authority in {self._ca}")
        self._folder.keep_next(key.private_pem(), answer.chain_pem)
        held = self._folder.next()
        if held is None:
            raise EnrolmentFailed("the certificate's times cannot be read")
        return held

    def _key(self) -> KeyPair | None:
        from waybill.identity.requests import KeyPair  # noqa: PLC0415 - see the module

        pem = self._folder.requested_key()
        try:
            return None if pem is None else KeyPair.from_pem(pem)
        except IdentityError:
            return None  # a damaged key is as good as none: nobody has a certificate for it
