"""Revocation lists of other regions: the first byte chooses whether the rest is PEM or the DER of a part."""

from __future__ import annotations

import base64
from collections.abc import Iterable

from cryptography import x509
from cryptography.hazmat.primitives import serialization

from gateway.access.revocation import ListRefused, lists_in, next_list, read_list_message
from tests.fuzz.bounds import check_refusal
from tests.identity.makers import MONTH, NOW, regional_authority, root_authority
from waybill.identity.authority import Revoked

ROOT = root_authority()
REGIONAL = regional_authority(ROOT)
MADE = next_list(REGIONAL, [Revoked(7, NOW)], None, now=NOW, life=MONTH)
_WHOLE, _LIST, _CERTIFICATE = range(3)
_KINDS = 3


def in_pem(kind: bytes, der: bytes) -> bytes:
    return b"-----BEGIN " + kind + b"-----\n" + base64.encodebytes(der) + b"-----END " + kind + b"-----\n"


def seeds() -> Iterable[bytes]:
    """A list, a long one, its DER, its certificate's, and such as are cut."""
    yield bytes([_WHOLE]) + MADE.message
    yield bytes([_WHOLE]) + MADE.message[:-50]
    yield bytes([_WHOLE]) + MADE.pem + MADE.certificate_pem
    many = [Revoked(number, NOW) for number in range(1, 1200)]
    yield bytes([_WHOLE]) + next_list(REGIONAL, many, MADE, now=NOW, life=MONTH).message
    yield bytes([_LIST]) + x509.load_pem_x509_crl(MADE.pem).public_bytes(serialization.Encoding.DER)
    yield bytes([_CERTIFICATE]) + REGIONAL.certificate.public_bytes(serialization.Encoding.DER)


def judge(data: bytes) -> None:
    """A list that is taken revokes what its issuer signed; a file's lists are those that can be read."""
    kind, rest = data[:1], data[1:]
    if not kind:
        return
    message = rest
    if kind[0] % _KINDS == _LIST:
        message = MADE.certificate_pem + in_pem(b"X509 CRL", rest)
    elif kind[0] % _KINDS == _CERTIFICATE:
        message = in_pem(b"CERTIFICATE", rest) + MADE.pem
    for found in lists_in(message).values():
        assert isinstance(found.issuer, str)
    try:
        taken = read_list_message(REGIONAL.name, message, ROOT.certificate)
    except ListRefused as error:
        check_refusal(error)
        return
    assert taken.issuer == REGIONAL.name
