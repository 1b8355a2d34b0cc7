"""Certificate authorities: they sign certificates and revocation lists. Pure: time, serials and keys are arguments.

A root signs regional authorities; its key is not needed again until one of them is renewed. A regional authority signs
devices, clients, and servers of the names that the root permits, but no further authority. Every broker trusts only the
root, so a device of one region may fail over to another. Pulsar's servers have a root of their own: no regional
authority can make a server certificate that Pulsar's clients accept.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from ipaddress import ip_address, ip_network
from typing import NamedTuple, Self

from cryptography import x509
from cryptography.exceptions import InternalError, InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from waybill.identity.errors import (
    AuthorityError,
    KeyRefused,
    NameRefused,
    NotAnAuthority,
    RequestFault,
    RequestRefused,
)
from waybill.identity.names import MAX_NAME_CHARACTERS, DeviceName, PrincipalName, device_name, parse_name
from waybill.identity.pem_keys import pem_fault, private_key_of

# Private keys and certificate requests.

MAX_REQUEST_BYTES = 8192
"""A request with an RSA key of 4096 bits has 1.7 kB."""
_RSA_BITS = range(2048, 4097)

PublicKey = ec.EllipticCurvePublicKey | rsa.RSAPublicKey


class KeyPair:
    """A private key that can be certified: P-256, P-384, or RSA of 2048 to 4096 bits (as many TPMs have).

    No Ed25519: not all TLS libraries and verification profiles accept it.
    """

    def __init__(self, private: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey) -> None:
        self._private = private

    @classmethod
    def generate(cls) -> Self:
        return cls(ec.generate_private_key(ec.SECP256R1()))

    @classmethod
    def from_pem(cls, pem: bytes) -> Self:
        """Raises KeyRefused, also for a key with a passphrase."""
        try:
            private = private_key_of(pem)
        except ValueError as error:
            raise KeyRefused(str(error)) from error
        if not (
            isinstance(private, ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey) and _is_taken(private.public_key())
        ):
            raise KeyRefused("the private key is neither P-256, P-384 nor RSA of 2048 to 4096 bits: make another")
        return cls(private)

    @property
    def private(self) -> ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey:
        return self._private

    @property
    def public(self) -> PublicKey:
        return self._private.public_key()

    def private_pem(self) -> bytes:
        """PKCS 8 in PEM without a passphrase: for a file of mode 0600."""
        return self._private.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )


class CertificateRequest(NamedTuple):
    """The name and key of a request. The sender chose the name: an authority decides whether it is right."""

    common_name: str
    public_key: PublicKey


def make_request(key: KeyPair, cn: str) -> bytes:
    """A request (PEM) for a certificate of this name, signed by its key."""
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, cn)])
    request = x509.CertificateSigningRequestBuilder().subject_name(subject).sign(key.private, hashes.SHA256())
    return request.public_bytes(serialization.Encoding.PEM)


def read_request(pem: bytes) -> CertificateRequest:
    """The name and key of a request that its key signed. Raises RequestRefused."""
    # The parser is not bounded.
    if len(pem) > MAX_REQUEST_BYTES:
        raise RequestRefused(RequestFault.TOO_LARGE, f"{len(pem)} bytes, and at most {MAX_REQUEST_BYTES} are read")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # such as a country of ten letters
            request = x509.load_pem_x509_csr(pem)
            names = request.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
            key = request.public_key()
    except Exception as error:
        raise RequestRefused(RequestFault.NOT_A_REQUEST, pem_fault(error)) from error
    if not (isinstance(key, PublicKey) and _is_taken(key)):
        raise RequestRefused(RequestFault.KEY_NOT_TAKEN, "take a key on P-256 or P-384, or RSA of 2048 to 4096 bits")
    if not _is_signed(request):
        raise RequestRefused(RequestFault.BAD_SIGNATURE, "it is not signed by the key that it names")
    # Of two names, one tool would read the first and another the last.
    if len(names) != 1 or not isinstance(names[0].value, str):
        raise RequestRefused(RequestFault.WRONG_NAME, f"it has {len(names)} common names, and must have one")
    return CertificateRequest(names[0].value, key)


def _is_signed(request: x509.CertificateSigningRequest) -> bool:
    try:
        return request.is_signature_valid
    except (ValueError, TypeError, UnsupportedAlgorithm, InternalError, InvalidSignature):
        return False


def _is_taken(key: PublicKey) -> bool:
    if isinstance(key, rsa.RSAPublicKey):
        return key.key_size in _RSA_BITS
    return isinstance(key.curve, ec.SECP256R1 | ec.SECP384R1)


# Server names that a regional authority may certify (RFC 5280, 4.2.1.10).

_HOST = re.compile(r"(\*\.)?[A-Za-z0-9_][A-Za-z0-9_.-]{0,250}")
_NO_HOST = "waybill.invalid"
"""The permitted DNS name of an authority without any: an empty list would permit all."""
_ALL_ADDRESSES = ip_network("0.0.0.0/0"), ip_network("::/0")


def check_permitted(authority: x509.Certificate, names: Sequence[str]) -> None:
    """Raises NameRefused for a name that the servers of this authority may not have."""
    who = str(authority.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value)
    permitted = permitted_servers(authority)
    for name in names if permitted is not None else ():
        if not any(_is_within(server_name(name), _permitted(one)) for one in permitted or ()):
            may = f"may sign servers of {', '.join(permitted)}" if permitted else "may sign no server"
            what = f"{who} {may}, and not of {name}: `waybill pki region --renew --servers` permits others"
            raise NameRefused(what)


def server_names(certificate: x509.Certificate) -> list[str]:
    """The DNS names and addresses of a server's certificate; empty for a client's."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    return [*names.get_values_for_type(x509.DNSName), *map(str, names.get_values_for_type(x509.IPAddress))]


def permitted_servers(certificate: x509.Certificate) -> tuple[str, ...] | None:
    """The names and networks that an authority's servers may have; None: it is not restricted."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.NameConstraints).value.permitted_subtrees or ()
    except x509.ExtensionNotFound:
        return None
    return tuple(str(one.value) for one in names if one.value != _NO_HOST)


def name_constraints(servers: Sequence[str]) -> x509.NameConstraints:
    """The extension that permits only these names and networks. Raises NameRefused."""
    permitted = [_permitted(one) for one in servers]
    if not any(isinstance(one, x509.DNSName) for one in permitted):
        permitted.append(x509.DNSName(_NO_HOST))
    versions = {one.value.version for one in permitted if isinstance(one, x509.IPAddress)}
    # Exclude the IP version without a permitted network: some verifiers compare each version by itself.
    excluded = [x509.IPAddress(one) for one in _ALL_ADDRESSES if one.version not in versions]
    return x509.NameConstraints(permitted, excluded or None)


def _permitted(name: str) -> x509.DNSName | x509.IPAddress:
    try:
        return x509.IPAddress(ip_network(name))
    except ValueError:
        pass
    if "*" in name or not _HOST.fullmatch(name):
        raise NameRefused(f"{name!r:.80} is neither a DNS name nor an IP network: write eu.example or 10.0.0.0/8")
    return x509.DNSName(name)


def _is_within(name: x509.GeneralName, permitted: x509.GeneralName) -> bool:
    if isinstance(name, x509.IPAddress) and isinstance(permitted, x509.IPAddress):
        return name.value in permitted.value  # type: ignore[operator]  # an address and a network
    if isinstance(name, x509.DNSName) and isinstance(permitted, x509.DNSName):
        return f".{name.value.lower()}".endswith(f".{permitted.value.lower()}")
    return False


def server_name(name: str) -> x509.GeneralName:
    """A DNS name or IP address for a certificate. Raises NameRefused."""
    # Verifiers ignore an address in a DNS entry.
    try:
        return x509.IPAddress(ip_address(name))
    except ValueError:
        pass
    if not _HOST.fullmatch(name):
        raise NameRefused(
            f"{name!r:.80} is neither a DNS name nor an IP address: write one alone, as broker.eu.example"
        )
    return x509.DNSName(name)


CLOCK_SKEW = timedelta(minutes=5)
"""A certificate is valid from this long before it was signed, for verifiers with a slow clock."""
MAX_PEM_BYTES = 64 << 10
"""Of a file of certificates; each has about 2 kB."""


@dataclass(frozen=True, slots=True)
class Authority:
    """A certificate that signs others, with its key. `issuers`: its issuers, up to the root and without it.

    Raises NotAnAuthority if the certificate does not belong to the key or may not sign.
    """

    certificate: x509.Certificate
    key: KeyPair
    issuers: tuple[x509.Certificate, ...] = ()

    def __post_init__(self) -> None:
        if self.certificate.public_key() != self.key.public:
            raise NotAnAuthority(f"the key is not that of the certificate of {self.name!r}")
        if not _constraints(self.certificate).ca:
            raise NotAnAuthority(f"the certificate of {self.name!r} may not sign others")

    @property
    def name(self) -> str:
        return common_name(self.certificate.subject)

    @property
    def is_root(self) -> bool:
        return self.certificate.issuer == self.certificate.subject

    @property
    def chain(self) -> tuple[x509.Certificate, ...]:
        """The certificates between one of this authority and the root; empty for the root itself."""
        return () if self.is_root else (self.certificate, *self.issuers)


class Issued(NamedTuple):
    """A signed certificate. `chain_pem`: it and the authorities between it and the root, in this order."""

    certificate: x509.Certificate
    chain_pem: bytes
    serial: int
    not_after: datetime


class Revoked(NamedTuple):
    serial: int
    at: datetime
    reason: x509.ReasonFlags = x509.ReasonFlags.unspecified


def make_root(
    name: str, key: KeyPair, *, now: datetime, serial: int, lifetime: timedelta, path_length: int = 1
) -> Authority:
    """A self-signed authority that signs regional authorities; with a `path_length` of 0 no authority."""
    subject = _name(name)
    builder = _begin(subject, subject, key.public, now=now, serial=serial, end=now + lifetime)
    return Authority(_sign_authority(builder, key, path_length=path_length), key)


def regional_name(region: str) -> str:
    return f"Waybill regional authority {region}"


def make_regional(
    root: Authority,
    region: str,
    key: PublicKey,
    *,
    servers: Sequence[str] = (),
    now: datetime,
    serial: int,
    lifetime: timedelta,
) -> Issued:
    """The certificate of a region's authority, which signs devices, clients and servers, but no authority.

    `servers`: DNS names (with their subdomains), IP addresses and networks that its servers may have; verifiers reject
    others. Raises NotAnAuthority where `root` is not a root, AuthorityError, NameRefused.
    """
    if not root.is_root:
        raise NotAnAuthority(f"{root.name!r} is not a root: only a root signs a region's authority")
    # Issued certificates stay valid over a renewal: issuer name and key are the same.
    end = _end(root, now, lifetime)
    builder = _begin(root.certificate.subject, _name(regional_name(region)), key, now=now, serial=serial, end=end)
    builder = builder.add_extension(name_constraints(servers), critical=True)
    return with_chain(_sign_authority(builder, root.key, path_length=0), root)


def issue_device(
    authority: Authority,
    request: bytes,
    tenant: str,
    device: str,
    *,
    now: datetime,
    serial: int,
    lifetime: timedelta,
) -> Issued:
    """The operational certificate of a device, for the key of its request (PEM). Raises RequestRefused, NameRefused.

    The request must have the name of this device.
    """
    cn, asked = device_name(tenant, device), read_request(request)
    if asked.common_name != cn:
        raise RequestRefused(RequestFault.WRONG_NAME, f"it is for {asked.common_name[:80]!r}, not for {cn!r}")
    # The organization is for other tools; only the common name decides about rights.
    subject = _name(cn, organization=tenant)
    return _issue(authority, subject, asked.public_key, now=now, serial=serial, lifetime=lifetime)


def issue_client(
    authority: Authority, key: PublicKey, principal: str, *, now: datetime, serial: int, lifetime: timedelta
) -> Issued:
    """The certificate of a client such as `gateway@eu-1`. Raises NameRefused.

    `claim@SERIAL` is a factory certificate, which a device can only use to enrol.
    """
    if "@" not in principal or parse_name(principal) is None:
        raise NameRefused(f"{principal!r} is not the name of a client, such as gateway@eu-1")
    return _issue(authority, _name(principal), key, now=now, serial=serial, lifetime=lifetime)


def issue_server(
    authority: Authority,
    key: PublicKey,
    cn: str,
    names: Sequence[str],
    *,
    now: datetime,
    serial: int,
    lifetime: timedelta,
) -> Issued:
    """The certificate of a server with these DNS names and IP addresses. Raises NameRefused."""
    if not names:
        raise NameRefused(f"a server's certificate needs an address: give {cn} at least one")
    check_permitted(authority.certificate, names)
    return _issue(authority, _name(cn), key, now=now, serial=serial, lifetime=lifetime, servers=names)


def sign_revocation_list(
    authority: Authority, revoked: Iterable[Revoked], *, number: int, this_update: datetime, next_update: datetime
) -> bytes:
    """The revocation list of this authority (PEM). A newer one needs a higher number and a later `this_update`.

    Of two lists of one issuer OpenSSL accepts the one with the later `this_update`, in whole seconds.
    """
    # The builder's own method copies the whole list for each entry.
    builder = x509.CertificateRevocationListBuilder(revoked_certificates=[_entry(one) for one in revoked])
    signed = (
        builder.issuer_name(authority.certificate.subject)
        .last_update(this_update)
        .next_update(next_update)
        .add_extension(x509.CRLNumber(number), critical=False)
        .add_extension(_key_identifier(authority.key.public), critical=False)
        .sign(authority.key.private, hashes.SHA256())
    )
    return signed.public_bytes(serialization.Encoding.PEM)


def common_name(name: x509.Name) -> str:
    """The common name; "" where there is none."""
    found = name.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(found[0].value) if found else ""


def is_chain_to(certificates: Sequence[x509.Certificate], roots: Iterable[x509.Certificate]) -> bool:
    """Whether each certificate is signed by the next one, and the last one by a root, or is one.

    Validity times are not checked: TLS checks them, and this clock may be wrong.
    """
    chain, known = [*certificates], [*roots]
    while chain:
        signed = chain.pop(0)
        if signed in known or any(_is_signed_by(signed, root) for root in known):
            return True
        if not chain or not _is_signed_by(signed, chain[0]):
            return False
    return False


def _is_signed_by(signed: x509.Certificate, issuer: x509.Certificate) -> bool:
    try:
        # A device has a certificate and a key too, but is not an authority.
        if not issuer.extensions.get_extension_for_class(x509.BasicConstraints).value.ca:
            return False
        signed.verify_directly_issued_by(issuer)
    except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm, x509.ExtensionNotFound):
        return False
    return True


def read_certificates(pem: bytes) -> list[x509.Certificate]:
    """The certificates of a PEM file, in its order. Raises NotAnAuthority.

    Each is read completely: the library parses names and keys only on demand, and would raise there.
    """
    if len(pem) > MAX_PEM_BYTES:
        raise NotAnAuthority(f"certificates of {len(pem)} bytes, and at most {MAX_PEM_BYTES} are read")
    try:
        found = x509.load_pem_x509_certificates(pem)
        for one in found:
            _ = one.subject, one.issuer, one.public_key(), one.extensions, one.not_valid_before_utc, one.serial_number
    except Exception as error:  # of half a dozen kinds
        raise NotAnAuthority(f"no certificates in PEM: {pem_fault(error)}") from error
    return found


def kind_of(certificate: x509.Certificate) -> str:
    """The purpose of a certificate: `root`, `authority`, `server`, `device`, the kind of a client, or `unknown`."""
    if _constraints(certificate).ca:
        return "root" if certificate.issuer == certificate.subject else "authority"
    if server_names(certificate):
        return "server"
    match parse_name(common_name(certificate.subject)):
        case DeviceName():
            return "device"
        case PrincipalName(kind=kind):
            return kind
    return "unknown"


def _issue(
    authority: Authority,
    subject: x509.Name,
    key: PublicKey,
    *,
    now: datetime,
    serial: int,
    lifetime: timedelta,
    servers: Sequence[str] = (),
) -> Issued:
    # One purpose each: a stolen device must not pass for a broker, nor a broker for a client.
    purpose = ExtendedKeyUsageOID.SERVER_AUTH if servers else ExtendedKeyUsageOID.CLIENT_AUTH
    named: list[x509.GeneralName] = [server_name(name) for name in servers]
    # The verification profile requires a name here; brokers use the common name.
    named = named or [x509.UniformResourceIdentifier(f"urn:waybill:{common_name(subject)}")]
    builder = _begin(
        authority.certificate.subject, subject, key, now=now, serial=serial, end=_end(authority, now, lifetime)
    )
    certificate = (
        builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(authority=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
        .add_extension(x509.SubjectAlternativeName(named), critical=False)
        .add_extension(_key_identifier(authority.key.public), critical=False)
        .sign(authority.key.private, hashes.SHA256())
    )
    return with_chain(certificate, authority)


def _sign_authority(builder: x509.CertificateBuilder, signer: KeyPair, *, path_length: int) -> x509.Certificate:
    return (
        # Critical: verifiers that do not understand these must refuse the certificate.
        builder.add_extension(x509.BasicConstraints(ca=True, path_length=path_length), critical=True)
        .add_extension(_usage(authority=True), critical=True)
        .add_extension(_key_identifier(signer.public), critical=False)
        .sign(signer.private, hashes.SHA256())
    )


def _begin(
    issuer: x509.Name, subject: x509.Name, key: PublicKey, *, now: datetime, serial: int, end: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(serial)
        # For devices whose clock is behind.
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(end)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _end(authority: Authority, now: datetime, lifetime: timedelta) -> datetime:
    """The expiry of a certificate signed now: never after its authority's."""
    certificate = authority.certificate
    begins, ends = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if not begins <= now < ends:
        raise AuthorityError(
            f"{authority.name} is valid from {begins:%Y-%m-%d %H:%M} to {ends:%Y-%m-%d %H:%M} UTC, and it is "
            f"{now:%Y-%m-%d %H:%M}: renew it, or set the clock"
        )
    return min(now + lifetime, ends)


def with_chain(certificate: x509.Certificate, authority: Authority) -> Issued:
    chain = (certificate, *authority.chain)
    pem = b"".join(one.public_bytes(serialization.Encoding.PEM) for one in chain)
    return Issued(certificate, pem, certificate.serial_number, certificate.not_valid_after_utc)


def _entry(revoked: Revoked) -> x509.RevokedCertificate:
    builder = x509.RevokedCertificateBuilder().serial_number(revoked.serial).revocation_date(revoked.at)
    if revoked.reason is not x509.ReasonFlags.unspecified:  # RFC 5280, 5.3.1: absent rather than unspecified
        builder = builder.add_extension(x509.CRLReason(revoked.reason), critical=False)
    return builder.build()


def _name(cn: str, *, organization: str = "") -> x509.Name:
    if not 0 < len(cn) <= MAX_NAME_CHARACTERS:
        raise NameRefused(f"{cn!r} has {len(cn)} characters; a certificate's name has 1 to {MAX_NAME_CHARACTERS}")
    attributes = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, organization)] if organization else []
    return x509.Name([*attributes, x509.NameAttribute(NameOID.COMMON_NAME, cn)])


def _key_identifier(issuer: PublicKey) -> x509.AuthorityKeyIdentifier:
    return x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer)


def _constraints(certificate: x509.Certificate) -> x509.BasicConstraints:
    try:
        return certificate.extensions.get_extension_for_class(x509.BasicConstraints).value
    except x509.ExtensionNotFound:
        return x509.BasicConstraints(ca=False, path_length=None)


def _usage(*, authority: bool) -> x509.KeyUsage:
    # No key encipherment: TLS with forward secrecy signs, and never encrypts to a certificate.
    return x509.KeyUsage(
        digital_signature=not authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=authority,
        crl_sign=authority,
        encipher_only=False,
        decipher_only=False,
    )
