"""Every chain that is issued verifies for what it is for, and for nothing else."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.x509.oid import NameOID
from cryptography.x509.verification import PolicyBuilder, Store, VerificationError
from hypothesis import given
from hypothesis import strategies as st

from tests.identity.makers import MONTH, NOW, YEAR, regional_authority, root_authority
from waybill.identity.authority import (
    CLOCK_SKEW,
    Authority,
    Issued,
    KeyPair,
    Revoked,
    common_name,
    is_chain_to,
    issue_client,
    issue_device,
    issue_server,
    make_regional,
    make_request,
    make_root,
    read_certificates,
    regional_name,
    sign_revocation_list,
)
from waybill.identity.errors import AuthorityExpired, NameRefused, NotAnAuthority

ROOT = root_authority()
REGIONAL = regional_authority(ROOT)
OTHER_ROOT = root_authority()
KEY = KeyPair.generate()
NAMES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,30}", fullmatch=True)
SERIALS = st.integers(1, (1 << 159) - 1)


def device(
    tenant: str = "acme", name: str = "bus-1", *, now: datetime = NOW, serial: int = 7, lifetime: timedelta = MONTH
) -> Issued:
    request = make_request(KEY, f"{tenant}/{name}")
    return issue_device(REGIONAL, request, tenant, name, now=now, serial=serial, lifetime=lifetime)


def server(*names: str) -> Issued:
    return issue_server(REGIONAL, KEY.public, "broker@eu", names, now=NOW, serial=8, lifetime=MONTH)


def verify_client(issued: Issued, *, root: Authority = ROOT, now: datetime = NOW) -> list[x509.Certificate]:
    """As OpenSSL's profile for the public web does, which is stricter than any broker."""
    leaf, *between = read_certificates(issued.chain_pem)
    verifier = PolicyBuilder().store(Store([root.certificate])).time(now).build_client_verifier()
    return verifier.verify(leaf, between).chain


def verify_server(issued: Issued, name: str, *, root: Authority = ROOT) -> list[x509.Certificate]:
    leaf, *between = read_certificates(issued.chain_pem)
    verifier = PolicyBuilder().store(Store([root.certificate])).time(NOW).build_server_verifier(x509.DNSName(name))
    return verifier.verify(leaf, between)


@given(NAMES, NAMES, SERIALS, st.integers(1, 900))
def test_each_device_s_chain_verifies_and_names_it(tenant: str, name: str, serial: int, days: int) -> None:
    issued = device(tenant, name, serial=serial, lifetime=timedelta(days=days))
    assert [common_name(one.subject) for one in verify_client(issued)] == [
        f"{tenant}/{name}",
        regional_name("eu"),
        "Waybill root",
    ]
    assert issued.certificate.subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)[0].value == tenant
    assert issued.serial == serial
    assert issued.not_after == min(NOW + timedelta(days=days), REGIONAL.certificate.not_valid_after_utc)


def test_a_device_is_no_server() -> None:
    with pytest.raises(VerificationError):
        verify_server(device(), "acme")


def test_a_server_is_no_client_and_is_where_it_says_it_is() -> None:
    issued = server("localhost", "127.0.0.1")
    assert len(verify_server(issued, "localhost")) == 3
    with pytest.raises(VerificationError):
        verify_server(issued, "example.com")
    with pytest.raises(VerificationError):
        verify_client(issued)


def test_a_region_s_authority_makes_no_authority() -> None:
    with pytest.raises(NotAnAuthority, match="no root"):
        make_regional(REGIONAL, "us", KEY.public, now=NOW, serial=9, lifetime=YEAR)


def test_an_authority_below_a_region_s_is_believed_by_nobody() -> None:
    forged = Authority(REGIONAL.certificate, REGIONAL.key)
    builder = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "sub")]))
        .issuer_name(forged.certificate.subject)
        .public_key(KEY.public)
        .serial_number(77)
        .not_valid_before(NOW)
        .not_valid_after(NOW + MONTH)
    )
    for extension in REGIONAL.certificate.extensions:
        builder = builder.add_extension(extension.value, extension.critical)
    below = builder.sign(forged.key.private, hashes.SHA256())
    under = Authority(below, KEY)
    issued = issue_client(under, KEY.public, "gateway@eu", now=NOW, serial=78, lifetime=MONTH)
    leaf, *_ = read_certificates(issued.chain_pem)
    verifier = PolicyBuilder().store(Store([ROOT.certificate])).time(NOW).build_client_verifier()
    with pytest.raises(VerificationError):
        verifier.verify(leaf, [below, REGIONAL.certificate])


def test_another_root_believes_nothing_of_it() -> None:
    with pytest.raises(VerificationError):
        verify_client(device(), root=OTHER_ROOT)


def test_a_certificate_is_good_from_a_little_before_it_was_signed_until_its_end_and_no_longer() -> None:
    issued = device(lifetime=timedelta(days=1))
    verify_client(issued, now=NOW - CLOCK_SKEW)
    verify_client(issued, now=NOW + timedelta(days=1))
    for moment in (NOW - CLOCK_SKEW - timedelta(seconds=1), NOW + timedelta(days=1, seconds=1)):
        with pytest.raises(VerificationError):
            verify_client(issued, now=moment)


def test_nothing_outlives_its_authority_and_an_expired_authority_signs_nothing() -> None:
    end = REGIONAL.certificate.not_valid_after_utc
    assert device(lifetime=10 * YEAR).not_after == end
    with pytest.raises(AuthorityExpired, match="renew it"):
        device(now=end)
    with pytest.raises(AuthorityExpired):
        device(now=NOW - MONTH)


@pytest.mark.parametrize("name", ["acme/bus-1", "gateway", "", "nobody@eu"])
def test_a_client_s_certificate_never_names_a_device(name: str) -> None:
    with pytest.raises(NameRefused):
        issue_client(REGIONAL, KEY.public, name, now=NOW, serial=7, lifetime=MONTH)


@pytest.mark.parametrize("names", [(), ("bücher.example",)])
def test_a_server_s_certificate_says_where_it_is_reached(names: tuple[str, ...]) -> None:
    with pytest.raises(NameRefused):
        server(*names)


@given(st.lists(SERIALS, unique=True, max_size=20), st.integers(1, 1 << 60), st.sampled_from(x509.ReasonFlags))
def test_a_revocation_list_names_whom_it_was_given_and_is_its_authority_s(
    serials: list[int], number: int, reason: x509.ReasonFlags
) -> None:
    pem = sign_revocation_list(
        REGIONAL,
        [Revoked(serial, NOW, reason) for serial in serials],
        number=number,
        this_update=NOW,
        next_update=NOW + MONTH,
    )
    read = x509.load_pem_x509_crl(pem)
    assert sorted(one.serial_number for one in read) == sorted(serials)
    assert read.is_signature_valid(REGIONAL.key.public)
    assert read.issuer == REGIONAL.certificate.subject
    assert read.extensions.get_extension_for_class(x509.CRLNumber).value.crl_number == number
    assert read.last_update_utc == NOW


PEM = REGIONAL.certificate.public_bytes(serialization.Encoding.PEM)
DER = REGIONAL.certificate.public_bytes(serialization.Encoding.DER)


def test_a_chain_is_good_if_each_is_signed_by_the_next_authority_and_the_last_by_a_root() -> None:
    now, day = NOW, timedelta(days=1)
    keys = [KeyPair.generate() for _ in range(4)]
    root = make_root("root", keys[0], now=now, serial=1, lifetime=900 * day)
    other = make_root("root", keys[3], now=now, serial=1, lifetime=900 * day)
    eu = make_regional(root, "eu", keys[1].public, now=now, serial=2, lifetime=800 * day)
    authority = Authority(eu.certificate, keys[1])
    device = issue_device(
        authority, make_request(keys[2], "acme/bus-1"), "acme", "bus-1", now=now, serial=3, lifetime=30 * day
    ).certificate
    thief = (
        x509.CertificateBuilder(device.subject, device.subject, keys[3].public, 4, now, now + day)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .sign(keys[2].private, hashes.SHA256())
    )
    regional, roots = eu.certificate, [root.certificate]
    assert is_chain_to([device, regional], roots)
    assert is_chain_to([device, regional, root.certificate], roots)
    assert not is_chain_to([device], roots)
    assert not is_chain_to([], roots)
    assert not is_chain_to([device, regional], [other.certificate])
    assert not is_chain_to([device, other.certificate], roots)
    assert not is_chain_to([thief, device, regional], roots), "a device is no authority"
