"""Every chain that is issued verifies for what it is for, and for nothing else."""

import base64
import stat
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.x509.oid import NameOID
from cryptography.x509.verification import PolicyBuilder, Store, VerificationError
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner, Result

from tests.identity.makers import MONTH, NOW, YEAR, regional_authority, root_authority
from waybill.identity.authority import (
    CLOCK_SKEW,
    MAX_REQUEST_BYTES,
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
    permitted_servers,
    read_certificates,
    read_request,
    regional_name,
    sign_revocation_list,
)
from waybill.identity.authority_folder import AuthorityFolder, certificates_in
from waybill.identity.errors import (
    AuthorityError,
    AuthorityExists,
    KeyRefused,
    NameRefused,
    NotAnAuthority,
    RequestFault,
    RequestRefused,
)
from waybill.identity.pki_cli import app

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
    with pytest.raises(NotAnAuthority, match="not a root"):
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
    with pytest.raises(AuthorityError, match="renew it"):
        device(now=end)
    with pytest.raises(AuthorityError):
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


@pytest.fixture
def root(tmp_path: Path) -> AuthorityFolder:
    return AuthorityFolder.create_root(tmp_path / "root", "Waybill root", now=NOW, lifetime=10 * YEAR)


@pytest.fixture
def regional(tmp_path: Path, root: AuthorityFolder) -> AuthorityFolder:
    return AuthorityFolder.create_regional(tmp_path / "eu", root, "eu", servers=["127.0.0.1"], now=NOW, lifetime=YEAR)


def test_keys_and_folders_are_their_owner_s_alone(tmp_path: Path, regional: AuthorityFolder) -> None:
    for name in ("root", "eu"):
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o700
        assert stat.S_IMODE((tmp_path / name / "authority.key").stat().st_mode) == 0o600


def test_what_was_signed_is_listed_and_each_serial_is_another(root: AuthorityFolder, regional: AuthorityFolder) -> None:
    key = KeyPair.generate()
    for name in ("bus-2", "bus-1"):
        regional.device(make_request(key, f"acme/{name}"), "acme", name, now=NOW, lifetime=MONTH)
    regional.server(key, "broker@eu", ["127.0.0.1"], now=NOW, lifetime=MONTH)
    listed = certificates_in(regional.folder)
    issued = [one for one in listed if one.issuer == regional.authority.name]
    assert {one.name for one in issued} == {"acme/bus-1", "acme/bus-2", "broker@eu"}
    assert len({one.serial for one in issued}) == 3
    assert {one.name for one in certificates_in(root.folder)} == {root.authority.name, regional.authority.name}


def test_what_was_put_away_is_recorded_and_listed_as_before(regional: AuthorityFolder) -> None:
    key = KeyPair.generate()
    signed = [
        regional.device(make_request(key, f"acme/{name}"), "acme", name, now=NOW, lifetime=MONTH)
        for name in ("bus-1", "bus-2")
    ]
    regional.put_away(f"{signed[0].serial:040x}.pem")
    assert {one.name for one in certificates_in(regional.folder)} >= {"acme/bus-1", "acme/bus-2"}
    recorded = [regional.recorded(one.serial) for one in signed]
    assert [one and one.certificate for one in recorded] == [one.certificate for one in signed]
    assert regional.recorded(1) is None


def test_an_authority_is_never_replaced(root: AuthorityFolder) -> None:
    with pytest.raises(AuthorityExists):
        AuthorityFolder.create_root(root.folder, "another", now=NOW, lifetime=YEAR)
    with pytest.raises(AuthorityExists):
        AuthorityFolder.create_regional(root.folder, root, "eu", now=NOW, lifetime=YEAR)
    assert AuthorityFolder.open(root.folder).authority.certificate == root.authority.certificate


def test_the_region_needs_the_root_for_nothing_that_it_issues(root: AuthorityFolder, regional: AuthorityFolder) -> None:
    (root.folder / "authority.key").unlink()
    issued = AuthorityFolder.open(regional.folder).client(KeyPair.generate(), "gateway@eu", now=NOW, lifetime=MONTH)
    assert len(read_certificates(issued.chain_pem)) == 2


def test_a_renewed_region_keeps_its_key_and_what_it_signed(root: AuthorityFolder, regional: AuthorityFolder) -> None:
    before = regional.client(KeyPair.generate(), "gateway@eu", now=NOW, lifetime=MONTH)
    later = NOW + YEAR / 2
    renewed = root.renew_regional(regional, "eu", now=later, lifetime=YEAR)
    assert renewed.authority.certificate == AuthorityFolder.open(regional.folder).authority.certificate
    assert renewed.authority.certificate.not_valid_after_utc == later + YEAR
    before.certificate.verify_directly_issued_by(renewed.authority.certificate)


REQUEST = make_request(KEY, "acme/bus-1")
REQUEST_DER = x509.load_pem_x509_csr(REQUEST).public_bytes(serialization.Encoding.DER)


def in_pem(der: bytes) -> bytes:
    kind = b"CERTIFICATE REQUEST"
    return b"-----BEGIN " + kind + b"-----\n" + base64.encodebytes(der) + b"-----END " + kind + b"-----\n"


def refused(pem: bytes) -> RequestFault:
    with pytest.raises(RequestRefused) as caught:
        read_request(pem)
    return caught.value.reason


def test_a_request_says_its_name_and_its_key() -> None:
    read = read_request(REQUEST)
    assert read.common_name == "acme/bus-1"
    assert read.public_key == KEY.public


@pytest.mark.parametrize("key", [ec.generate_private_key(ec.SECP384R1()), rsa.generate_private_key(65537, 2048)])
def test_a_key_of_a_tpm_is_taken(key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey) -> None:
    pair = KeyPair.from_pem(KeyPair(key).private_pem())
    assert read_request(make_request(pair, "acme/bus-1")).public_key == key.public_key()


@pytest.mark.parametrize(
    "key",
    [
        rsa.generate_private_key(65537, 1024),  # noqa: S505 - it is refused
        ec.generate_private_key(ec.SECP521R1()),
        ec.generate_private_key(ec.SECP256K1()),
        ed25519.Ed25519PrivateKey.generate(),
    ],
    ids=["rsa-1024", "p-521", "secp256k1", "ed25519"],
)
def test_another_key_is_refused(
    key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey | ed25519.Ed25519PrivateKey,
) -> None:
    algorithm = None if isinstance(key, ed25519.Ed25519PrivateKey) else hashes.SHA256()
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "acme/bus-1")])
    request = x509.CertificateSigningRequestBuilder().subject_name(subject).sign(key, algorithm)
    assert refused(request.public_bytes(serialization.Encoding.PEM)) is RequestFault.KEY_NOT_TAKEN
    with pytest.raises(KeyRefused):
        KeyPair.from_pem(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )


def test_a_request_signed_by_another_key_is_refused() -> None:
    changed = bytearray(REQUEST_DER)
    changed[-1] ^= 1
    assert refused(in_pem(bytes(changed))) is RequestFault.BAD_SIGNATURE


def test_a_large_request_is_not_read() -> None:
    assert refused(b" " * MAX_REQUEST_BYTES + REQUEST) is RequestFault.TOO_LARGE


@given(st.integers(0, len(REQUEST_DER) - 1), st.integers(1, 255))
def test_a_request_changed_on_the_way_is_refused(at: int, bits: int) -> None:
    changed = bytearray(REQUEST_DER)
    changed[at] ^= bits
    refused(in_pem(bytes(changed)))


def test_a_key_with_a_passphrase_is_refused_with_a_reason() -> None:
    pem = KEY.private.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.BestAvailableEncryption(b"secret")
    )
    with pytest.raises(KeyRefused, match="without a passphrase"):
        KeyPair.from_pem(pem)


SERVER_ROOT, SERVER_KEY = root_authority(), KeyPair.generate()


def regional_server(servers: Sequence[str]) -> Authority:
    issued = make_regional(SERVER_ROOT, "eu", SERVER_KEY.public, servers=servers, now=NOW, serial=2, lifetime=YEAR)
    return Authority(issued.certificate, SERVER_KEY)


@pytest.mark.parametrize(
    ("servers", "name", "may"),
    [
        ((), "broker.eu.example", False),
        ((), "10.0.0.1", False),
        ((), "fd00::1", False),
        ((), "waybill.invalid", False),
        (("eu.example",), "eu.example", True),
        (("eu.example",), "Broker.EU.example", True),
        (("eu.example",), "*.eu.example", True),
        (("eu.example",), "neu.example", False),
        (("eu.example",), "pulsar.hq.example", False),
        (("eu.example",), "10.0.0.1", False),
        (("10.0.0.0/8",), "10.1.2.3", True),
        (("10.0.0.0/8",), "11.1.2.3", False),
        (("10.0.0.0/8",), "fd00::1", False),
        (("10.0.0.0/8",), "eu.example", False),
        (("fd00::/8", "eu.example"), "fd00::1", True),
        (("fd00::/8", "eu.example"), "10.1.2.3", False),
    ],
)
def test_an_authority_signs_servers_of_its_names_alone(servers: Sequence[str], name: str, may: bool) -> None:
    authority = regional_server(servers)
    assert permitted_servers(authority.certificate) == tuple(servers)
    if may:
        issue_server(authority, SERVER_KEY.public, "broker@eu", [name], now=NOW, serial=3, lifetime=MONTH)
        return
    with pytest.raises(NameRefused, match="--servers"):
        issue_server(authority, SERVER_KEY.public, "broker@eu", [name], now=NOW, serial=3, lifetime=MONTH)


@pytest.mark.parametrize("servers", ["*.eu.example", "https://eu.example", ".eu.example", "10.0.0.1/8"])
def test_what_is_no_name_of_servers_is_refused(servers: str) -> None:
    with pytest.raises(NameRefused, match=r"write eu.example or 10.0.0.0/8"):
        regional_server([servers])


def run(folder: Path, *arguments: object) -> Result:
    return CliRunner().invoke(app, [*map(str, arguments), "--folder", str(folder)])


def test_servers_of_pulsar_are_signed_and_renewed_by_an_authority_of_their_own(tmp_path: Path) -> None:
    pki, out = tmp_path / "pki", tmp_path / "out"
    run(pki, "init")
    run(pki, "region", "eu", "--servers", "eu.example")
    server = ("issue", "pulsar@hq", "--at", "pulsar.hq.example", "--out", out)
    assert "`waybill pki pulsar` makes it" in run(pki, *server).output
    assert run(pki, "pulsar").exit_code == 0
    assert "never replaced" in run(pki, "pulsar").output
    assert "leave out --region eu" in run(pki, *server, "--region", "eu").output
    assert "such as --region eu" in run(pki, "issue", "broker@eu", "--at", "eu.example", "--out", out).output
    assert run(pki, *server).exit_code == 0
    assert run(pki, "renew", out).exit_code == 0
    assert len(read_certificates((out / "certificate.pem").read_bytes())) == 1
    assert (out / "ca.pem").read_bytes() == (pki / "pulsar-authority/root.pem").read_bytes()
    assert (out / "ca.pem").read_bytes() != (pki / "root-authority/root.pem").read_bytes()


def test_a_renewed_authority_keeps_its_names_until_others_are_said(tmp_path: Path) -> None:
    pki = tmp_path / "pki"
    run(pki, "init")
    run(pki, "region", "eu", "--servers", "eu.example")
    own = pki / "regions/eu/authority.pem"
    for more, names in ((), ("eu.example",)), (("--servers", "new.example"), ("new.example",)):
        assert run(pki, "region", "eu", "--renew", *more).exit_code == 0
        assert permitted_servers(read_certificates(own.read_bytes())[0]) == names
