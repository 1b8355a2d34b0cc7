"""From when to when a certificate is valid, read from PEM without a library for certificates.

That library is 13 MB of memory, and is loaded only to be enrolled and to renew. What a certificate says of its issuer
and its key is checked there and by TLS; here only the head of the structure is walked through (RFC 5280, 4.1).
"""

from __future__ import annotations

import base64
import binascii
import re
from datetime import UTC, datetime
from typing import NamedTuple

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
