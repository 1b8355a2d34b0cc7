"""What revocation lists say of certificates: which are on one, why, and of which nobody knows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Final

from cryptography import x509

from waybill.daemon.bounded_file import read_bounded
from waybill.identity.authority import common_name

__all__ = ["NOT_REVOKED", "UNKNOWN", "ListedRevocations", "read_revocations"]

UNKNOWN: Final = "unknown"
"""No list of the issuer is here, or the one that is here has ended, and it does not name the certificate."""
NOT_REVOKED: Final = "no"
_REVOKED: Final = "revoked"
# What the access daemon writes of a device that is not let in.
_STATES: Final = {
    x509.ReasonFlags.certificate_hold: "suspended",
    x509.ReasonFlags.affiliation_changed: "moved",
    x509.ReasonFlags.superseded: "replaced",
}
_MAX_FILE_BYTES: Final = 64 << 20
_END: Final = b"-----END X509 CRL-----"


@dataclass(frozen=True, slots=True)
class _List:
    number: int
    until: datetime
    states: Mapping[int, str]


@dataclass(frozen=True, slots=True)
class ListedRevocations:
    """The last list of each issuer."""

    _lists: Mapping[str, _List] = field(default_factory=dict)

    def state(self, issuer: str, serial: int, now: datetime) -> str:
        """`revoked`, `suspended`, `moved`, `replaced`, `no`, or `unknown` where no list of today says so."""
        found = self._lists.get(issuer)
        if found is None:
            return UNKNOWN
        return found.states.get(serial) or (NOT_REVOKED if now < found.until else UNKNOWN)


def read_revocations(files: Iterable[Path], authorities: Iterable[x509.Certificate]) -> ListedRevocations:
    """The lists of these files (PEM, many in one file) that these authorities signed; others are passed over.

    Raises OSError.
    """
    signers, lists = {one.subject: one for one in authorities}, dict[str, _List]()
    for part in (part for file in files for part in _parts(file)):
        try:
            issuer, found = _read(part, signers)
        except ValueError:
            continue
        if issuer not in lists or found.number > lists[issuer].number:
            lists[issuer] = found
    return ListedRevocations(lists)


def _parts(file: Path) -> list[bytes]:
    try:
        return [part + _END for part in read_bounded(file, _MAX_FILE_BYTES).split(_END)[:-1]]
    except ValueError:  # too large for one that was written here
        return []


def _read(pem: bytes, signers: Mapping[x509.Name, x509.Certificate]) -> tuple[str, _List]:
    """A list, and whose it is. Raises ValueError."""
    try:
        found = x509.load_pem_x509_crl(pem)
        if not found.is_signature_valid(signers[found.issuer].public_key()):  # type: ignore[arg-type]
            raise ValueError("its issuer did not sign it")
        number = found.extensions.get_extension_for_class(x509.CRLNumber).value.crl_number
        until, states = found.next_update_utc, {one.serial_number: _state(one) for one in found}
    # Of half a dozen kinds: the library looks at a part only when it is asked for.
    except Exception as error:
        raise ValueError(f"it is no list of an authority here: {error!s:.200}") from error
    if until is None:
        raise ValueError("it does not say until when it holds")
    return common_name(found.issuer), _List(number, until, states)


def _state(revoked: x509.RevokedCertificate) -> str:
    try:
        reason = revoked.extensions.get_extension_for_class(x509.CRLReason).value.reason
    except x509.ExtensionNotFound:
        return _REVOKED
    return _STATES.get(reason, _REVOKED)
