"""Requests for a certificate, certificates in PEM, and the names in both.

The first byte chooses: a request as it is, a request whose DER the rest is, certificates, or a name.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import serialization

from tests.fuzz.bounds import check_refusal
from waybill.identity.authority import (
    KeyPair,
    common_name,
    issue_device,
    make_request,
    make_root,
    read_certificates,
    read_request,
)
from waybill.identity.errors import IdentityError, RequestRefused
from waybill.identity.names import parse_name

NOW, LIFETIME = datetime(2026, 1, 5, tzinfo=UTC), timedelta(days=30)
KEY = KeyPair.generate()
ROOT = make_root("root", KEY, now=NOW, serial=1, lifetime=LIFETIME)
_PEM, _DER, _CERTIFICATES, _NAME = range(4)
_KINDS = 4


def in_pem(der: bytes) -> bytes:
    kind = b"CERTIFICATE REQUEST"
    return b"-----BEGIN " + kind + b"-----\n" + base64.encodebytes(der) + b"-----END " + kind + b"-----\n"


def seeds() -> Iterable[bytes]:
    """A request, its DER, a certificate and names; and such as are cut, large, or of another kind."""
    request = make_request(KEY, "acme/bus-1")
    der = x509.load_pem_x509_csr(request).public_bytes(serialization.Encoding.DER)
    certificate = ROOT.certificate.public_bytes(serialization.Encoding.PEM)
    yield bytes([_PEM]) + request
    yield bytes([_PEM]) + request[: len(request) // 2]
    yield bytes([_PEM]) + certificate
    yield bytes([_PEM]) + b"-----BEGIN CERTIFICATE REQUEST-----\n" + b"A" * 60_000
    yield bytes([_DER]) + der
    yield bytes([_DER]) + der[:-9]
    yield bytes([_DER]) + b"\x30\x80" * 2500
    yield bytes([_DER]) + der.replace(b"acme/bus-1", b"acme/bus-2")
    yield bytes([_CERTIFICATES]) + certificate * 3
    yield bytes([_CERTIFICATES]) + certificate[:-40]
    for name in ("acme/bus-1", "gateway@eu-1", "root@eu", "a/b/c", "@", "x" * 5000, "acme/bus\n"):
        yield bytes([_NAME]) + name.encode()


def judge(data: bytes) -> None:
    """A request that is granted is for its own name; a name that somebody has is written as it was read."""
    kind, rest = data[:1], data[1:]
    if not kind:
        return
    if kind[0] % _KINDS in {_PEM, _DER}:
        judge_request(rest if kind[0] % _KINDS == _PEM else in_pem(rest))
    elif kind[0] % _KINDS == _CERTIFICATES:
        try:
            for certificate in read_certificates(rest):
                common_name(certificate.subject)
        except IdentityError as error:
            check_refusal(error)
    else:
        text = rest.decode("utf-8", "replace")
        found = parse_name(text)
        assert found is None or str(found) == text


def judge_request(pem: bytes) -> None:
    try:
        asked = read_request(pem).common_name
        issued = issue_device(ROOT, pem, "acme", "bus-1", now=NOW, serial=7, lifetime=LIFETIME)
    except RequestRefused as error:
        check_refusal(error)
        return
    assert asked == "acme/bus-1" == common_name(issued.certificate.subject)
