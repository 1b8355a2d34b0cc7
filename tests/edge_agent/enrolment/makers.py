"""An authority that answers requests as a region does, and settings of a device that is to be enrolled."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from edge_agent.config import DeviceSettings, EnrolmentSettings
from waybill.identity.authority import Authority, Issued, KeyPair, issue_device, make_root
from waybill.identity.claims import make_token
from waybill.identity.enrolment import (
    EnrolmentGranted,
    EnrolmentRefused,
    RefusedBecause,
    decode_enrolment_request,
    encode_enrolment_answer,
)

DEVICE = DeviceSettings(id="bus-1", tenant="acme")
ROOT_KEY = KeyPair.generate()
DECADE = timedelta(days=3650)


class Issuer:
    """Certifies whatever it is asked for, from `now` for `lifetime`; each is the same root, if `key` is."""

    def __init__(
        self, now: datetime | None = None, lifetime: timedelta = timedelta(days=30), key: KeyPair = ROOT_KEY
    ) -> None:
        self.now = now or datetime.now(UTC)
        self.lifetime = lifetime
        self.authority: Authority = make_root("Waybill root", key, now=self.now, serial=1, lifetime=DECADE)
        self.requests: list[bytes] = []

    def issue(self, request: bytes, *, device: str = "bus-1") -> Issued:
        serial = x509.random_serial_number()
        return issue_device(
            self.authority, request, "acme", device, now=self.now, serial=serial, lifetime=self.lifetime
        )

    def grant(self, message: bytes) -> bytes:
        self.requests.append(message)
        request = decode_enrolment_request(message)
        return encode_enrolment_answer(EnrolmentGranted(request.nonce, self.issue(request.csr).chain_pem))

    def refuse(self, message: bytes, reason: RefusedBecause = RefusedBecause.CLAIM_USED) -> bytes:
        self.requests.append(message)
        return encode_enrolment_answer(EnrolmentRefused(decode_enrolment_request(message).nonce, reason, "no"))


def root_file(folder: Path) -> Path:
    file = folder / "root.pem"
    file.write_bytes(Issuer().authority.certificate.public_bytes(Encoding.PEM))
    return file


def enrolment_settings(folder: Path, **more: object) -> EnrolmentSettings:
    token = folder / "token"
    token.write_text(make_token().text.get_secret_value() + "\n")
    tables = {"host": "127.0.0.1", "ca": root_file(folder), "token_file": token, "answer_timeout_s": 0.2, **more}
    return EnrolmentSettings.model_validate(tables)
