"""Certificates, tokens and keys, enrolment, the device registry, and what is signed or sealed."""

import base64
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from gateway.access.revocation import ListRefused, lists_in, next_list, read_list_message
from tests.cloud_jobs.publications import AT, publication_id
from tests.fuzz.bounds import Target, by_first_byte, refused_as, tagged
from tests.identity.makers import (
    CHANGE,
    MONTH,
    NOW,
    OPERATOR,
    HeldDevices,
    active,
    devices_toml,
    operator,
    regional_authority,
    root_authority,
    trusting,
)
from waybill.identity.authority import (
    KeyPair,
    Revoked,
    common_name,
    issue_device,
    make_request,
    make_root,
    read_certificates,
    read_request,
)
from waybill.identity.claims import is_broker_password, make_token, token_user
from waybill.identity.device_files import DeviceFile, StatedDevice, judged
from waybill.identity.enrolment import (
    EnrolmentGranted,
    EnrolmentRefused,
    EnrolmentRequest,
    RefusedBecause,
    decode_enrolment_answer,
    decode_enrolment_request,
    encode_enrolment_answer,
    encode_enrolment_request,
)
from waybill.identity.errors import (
    EnrolmentUnreadable,
    IdentityError,
    NameRefused,
    OperatorKeyRefused,
    RequestRefused,
    SignatureRefused,
    Unsealable,
)
from waybill.identity.names import MAX_VERSION, parse_name
from waybill.identity.operator_keys import OperatorKeys
from waybill.identity.registry import Claim, DeviceEntry, DeviceState, expect, resume, revoke, suspend
from waybill.identity.registry_messages import EntryRefused, entry_body, read_entry
from waybill.identity.sealing import OVERHEAD_BYTES, Sealer, Unsealer
from waybill.identity.signatures import (
    ID_PROPERTY,
    OperatorKey,
    operators_toml,
    read_signed_push,
    sign_push,
    verify_push,
)
from waybill.identity.signatures import MAX_VERSION as MAX_PUSH_VERSION
from waybill.identity.tokens import InvalidToken, TokenKey, read_claims
from waybill.settings import SettingsError, parse
from waybill.settings.loading import MAX_PROBLEM_CHARACTERS, MAX_PROBLEMS

MAX_SETTINGS_REFUSAL = (MAX_PROBLEMS + 1) * (MAX_PROBLEM_CHARACTERS + 10)
JANUARY, LIFETIME = datetime(2026, 1, 5, tzinfo=UTC), timedelta(days=30)
KEY = KeyPair.generate()
ROOT = make_root("root", KEY, now=JANUARY, serial=1, lifetime=LIFETIME)
REQUEST = make_request(KEY, "acme/bus-1")
REQUEST_DER = x509.load_pem_x509_csr(REQUEST).public_bytes(serialization.Encoding.DER)
CERTIFICATE = ROOT.certificate.public_bytes(serialization.Encoding.PEM)


def in_pem(der: bytes, kind: bytes = b"CERTIFICATE REQUEST") -> bytes:
    return b"-----BEGIN " + kind + b"-----\n" + base64.encodebytes(der) + b"-----END " + kind + b"-----\n"


def judge_request(pem: bytes) -> None:
    with refused_as(RequestRefused):
        asked = read_request(pem).common_name
        issued = issue_device(ROOT, pem, "acme", "bus-1", now=JANUARY, serial=7, lifetime=LIFETIME)
        assert asked == "acme/bus-1" == common_name(issued.certificate.subject)


def judge_certificates(data: bytes) -> None:
    with refused_as(IdentityError):
        for certificate in read_certificates(data):
            common_name(certificate.subject)


def judge_name(data: bytes) -> None:
    text = data.decode("utf-8", "replace")
    found = parse_name(text)
    assert found is None or str(found) == text


def judge_devices(data: bytes) -> None:
    """A right device is a change or a fault."""
    with refused_as(SettingsError):
        found = parse(DeviceFile, data.decode("utf-8", "replace"), "f").device
        for registry in (HeldDevices(), HeldDevices(active(one.tenant, one.device) for one in found)):
            changes, faults = judged(found, registry, OPERATOR)
            assert len(changes) + len(faults) == len(found)
            for one in changes:
                entry = one.make(CHANGE, None)(one.held)
                assert (entry is not None) is one.is_change


def judge_enrolment_request(data: bytes) -> None:
    with refused_as(EnrolmentUnreadable):
        request = decode_enrolment_request(data)
        assert decode_enrolment_request(encode_enrolment_request(request)) == request


def judge_enrolment_answer(data: bytes) -> None:
    with refused_as(EnrolmentUnreadable):
        answer = decode_enrolment_answer(data)
        assert decode_enrolment_answer(encode_enrolment_answer(answer)) == answer


def judge_token_user(data: bytes) -> None:
    with refused_as(NameRefused):
        assert token_user(data.decode("utf-8", "replace")).startswith("claim@")


def judge_password(data: bytes) -> None:
    is_broker_password("another text", data.decode("utf-8", "replace"))


def judge_operators(data: bytes) -> None:
    """Trusted keys that are written and read again as they were, or all that is wrong with them in bounded words."""
    keys = None
    with refused_as(SettingsError, most=MAX_SETTINGS_REFUSAL):
        keys = parse(OperatorKeys, data.decode("utf-8", "replace"), "operators.toml")
    assert keys is None or parse(OperatorKeys, operators_toml(keys.keys) or "keys = {}", "again") == keys


def entry_of(key: str, body: bytes) -> DeviceEntry:
    return read_entry(key, body, {ID_PROPERTY: publication_id(5)}, AT.timestamp() * 1000).entry


def judge_entry(data: bytes) -> None:
    """An entry is of the name of its key, and is written and read again as it was; or it is EntryRefused."""
    key, _, body = data.partition(b"\n")
    entry = None
    with refused_as(EntryRefused):
        entry = entry_of(key.decode("utf-8", "replace"), body)
    assert entry is None or entry_of(entry.name, entry_body(entry)) == entry
    if entry and entry.may_connect and entry.version < MAX_VERSION - 1:
        assert resume(suspend(entry, CHANGE), CHANGE).name == entry.name


AUTHORITY = root_authority()
REGIONAL = regional_authority(AUTHORITY)
LISTED = next_list(REGIONAL, [Revoked(7, NOW)], None, now=NOW, life=MONTH)


def judge_list(message: bytes) -> None:
    """A list that is taken revokes what its issuer signed; a file's lists are those that can be read."""
    assert all(isinstance(found.issuer, str) for found in lists_in(message).values())
    with refused_as(ListRefused):
        assert read_list_message(REGIONAL.name, message, AUTHORITY.certificate).issuer == REGIONAL.name


THEIRS, OURS = (X25519PrivateKey.from_private_bytes(bytes([number]) * 32) for number in (1, 2))
BATCH = b"WB" * 50
SEALED = Sealer(THEIRS.public_key(), OURS, "acme", "eu").seal(BATCH)


def judge_sealed(data: bytes) -> None:
    """What opens is what was sealed; everything else is Unsealable."""
    with refused_as(Unsealable):
        assert Unsealer([THEIRS]).unseal(data, "acme", "eu") == BATCH


ANNA = operator(tenants=("acme",), kinds=("settings",))
BUS, SETTINGS = "acme/bus-17", b"[drain]\nwindow = 7\n"
SIGNED = sign_push(ANNA.key, BUS, 5, SETTINGS)


def judge_push(data: bytes) -> None:
    """Nothing but what anna signed is taken, whatever is made of it; the rest is SignatureRefused in bounded words."""
    with refused_as(SignatureRefused):
        push = read_signed_push(data)
        verify_push(trusting(ANNA), push, BUS, datetime(2026, 11, 23, tzinfo=UTC))
        assert (push.version, push.settings) == (5, SETTINGS)


TOKEN_KEY = TokenKey(ec.generate_private_key(ec.SECP256R1()))
TOKEN = TOKEN_KEY.token("gateway-eu", issuer="https://keys.example", now_s=1_764_000_000, life_s=3600)
OTHER_KIND = (
    b"-----BEGIN PRIVATE KEY-----\nMC4CAQAwBQYDK2VxBCIEIDftOWwJOMz9qnBwj8MHhGhXMZwcmpKuN9H7j4/nxNJM\n"
    b"-----END PRIVATE KEY-----\n"
)
"""An Ed25519 key that calls itself X448: an internal error of OpenSSL."""


def judge_token(data: bytes) -> None:
    with refused_as(InvalidToken):
        claims = read_claims(data.decode("utf-8", "replace"))
        assert claims.expires_s == claims.expires_s, "nothing is later than NaN"


def judge_token_key(data: bytes) -> None:
    with refused_as(InvalidToken):
        assert TokenKey.from_pem(TokenKey.from_pem(data).to_pem()).key_id


def judge_operator_key(data: bytes) -> None:
    with refused_as(OperatorKeyRefused):
        assert OperatorKey.from_pem(OperatorKey.from_pem(data).private_pem()).key_id


NONCE, CLAIM_TOKEN = "0123456789abcdef" * 2, make_token(bytes)
UNTIL = datetime(2027, 1, 1, tzinfo=UTC)
STATED = [StatedDevice(tenant="acme", device=f"b-{n}", region="eu", state=DeviceState.ACTIVE) for n in range(9)]
DEVICES = devices_toml(STATED).encode()
OPERATORS = operators_toml(
    trusting(
        operator(accounts=("acme", "acme-*"), kinds=("account", "settings"), tenants=("acme",), valid_until=UNTIL),
        operator("bea", valid_from=UNTIL, valid_until=UNTIL + timedelta(days=1)),
    ).keys
).encode()
ENTRY = expect("acme", "bus-1", region="eu", claim=Claim(id="serial-1", until=AT), change=CHANGE)
TOKEN_HEAD, _, TOKEN_SIGNATURE = TOKEN.split(".")
KEY_FILES = (TOKEN.encode(), TOKEN_KEY.to_pem(), OperatorKey.generate().private_pem())
TARGETS = {
    "certificate_request": Target(
        (
            *tagged(
                0,
                REQUEST,
                REQUEST[: len(REQUEST) // 2],
                CERTIFICATE,
                b"-----BEGIN CERTIFICATE REQUEST-----\n" + b"A" * 60_000,
            ),
            *tagged(
                1, REQUEST_DER, REQUEST_DER[:-9], b"\x30\x80" * 2500, REQUEST_DER.replace(b"acme/bus-1", b"acme/bus-2")
            ),
            *tagged(2, CERTIFICATE * 3, CERTIFICATE[:-40]),
            *tagged(3, b"acme/bus-1", b"gateway@eu-1", b"root@eu", b"a/b/c", b"@", b"x" * 5000, b"acme/bus\n"),
        ),
        by_first_byte(judge_request, lambda der: judge_request(in_pem(der)), judge_certificates, judge_name),
    ),
    "devices_toml": Target(
        (
            DEVICES,
            DEVICES.replace(b'"active"', b'"revoked"').replace(b'"eu"', b'"us"'),
            b"[[device]]\ntenant = 1\n" * 2000,
            b"[[devce]]\n[device]\n'a b'.\"c\".d = 1e99\n",
            b"device = [" + b"{tenant = 'a'}, " * 3000 + b"]",
        ),
        judge_devices,
        max_seconds=0.15,
        fuzzed_bytes=4096,
    ),
    "enrolment": Target(
        (
            *tagged(
                0,
                encode_enrolment_request(EnrolmentRequest(NONCE, b"-----BEGIN")),
                b'{"version": true, "nonce": [], "request": {}}',
                b'{"version": 1, "nonce": "' + NONCE.encode() + b'", "request": "\xc3\xa4"}',
            ),
            *tagged(
                1,
                encode_enrolment_answer(EnrolmentGranted(NONCE, b"-----BEGIN")),
                encode_enrolment_answer(EnrolmentRefused("", RefusedBecause.CLAIM_USED, "why")),
                b'{"version": 1, "nonce": "' + NONCE.encode() + b'", "refusal": [], "detail": 5}',
            ),
            *tagged(2, CLAIM_TOKEN.text.get_secret_value().encode()),
            *tagged(
                3,
                CLAIM_TOKEN.password_hash.encode(),
                b"$7$9999999$====$" + b"A" * 86 + b"==",
                b"$7$0$AAAA$" + b"A" * 86 + b"==",
            ),
        ),
        by_first_byte(judge_enrolment_request, judge_enrolment_answer, judge_token_user, judge_password),
    ),
    "operators_toml": Target(
        (
            OPERATORS,
            OPERATORS.replace(b'name = "anna"', b'name = "anna\\u0000"'),
            OPERATORS.replace(b"[keys.", b"[keys.0"),
            OPERATORS.replace(b"2027-01-01T00:00:00", b"0001-01-01T00:00:00"),
            OPERATORS.replace(b'public = "', b'public = "A'),
            b"[keys.4be1c87c8f0ee1a2]\ntenants = [" + b'"a", ' * 3000 + b"]\n",
            b"".join(b"[keys.%016x]\nname = 5\n" % number for number in range(500)),
            b"keys = " + b"[" * 9000,
        ),
        judge_operators,
        max_seconds=0.15,
        fuzzed_bytes=4096,
    ),
    "registry_entry": Target(
        (
            *(
                f"{one.name}\n".encode() + entry_body(one)
                for one in (ENTRY, suspend(ENTRY, CHANGE), revoke(ENTRY, CHANGE))
            ),
            b"acme/bus-2\n" + entry_body(ENTRY),
            b"acme/bus-1\n" + b'{"certificates": [' + b"{}, " * 190 + b"{}]}",
            b"acme/bus-1\n" + b"[" * 9000,
            b"acme/bus-1\n" + entry_body(ENTRY).replace(b'"version":1', b'"version":9223372036854775807'),
            b"acme/bus-1\n" + entry_body(ENTRY).replace(AT.isoformat()[:4].encode(), b"0001"),
        ),
        judge_entry,
    ),
    "revocation_list": Target(
        (
            *tagged(
                0,
                LISTED.message,
                LISTED.message[:-50],
                LISTED.pem + LISTED.certificate_pem,
                next_list(
                    REGIONAL, [Revoked(number, NOW) for number in range(1, 1200)], LISTED, now=NOW, life=MONTH
                ).message,
            ),
            *tagged(1, x509.load_pem_x509_crl(LISTED.pem).public_bytes(serialization.Encoding.DER)),
            *tagged(2, REGIONAL.certificate.public_bytes(serialization.Encoding.DER)),
        ),
        by_first_byte(
            judge_list,
            lambda der: judge_list(LISTED.certificate_pem + in_pem(der, b"X509 CRL")),
            lambda der: judge_list(in_pem(der, b"CERTIFICATE") + LISTED.pem),
        ),
    ),
    "sealed_batch": Target(
        (
            SEALED,
            SEALED[: OVERHEAD_BYTES - 1],
            SEALED[:-1],
            SEALED[:4] + bytes(8) + SEALED[12:],
            SEALED[:12] + bytes(32) + SEALED[44:],  # a point of small order
            Sealer(THEIRS.public_key(), OURS, "other", "eu").seal(bytes(60_000)),
        ),
        judge_sealed,
    ),
    "signed_push": Target(
        (
            SIGNED,
            sign_push(ANNA.key, "zeta/bus-1", MAX_PUSH_VERSION, b""),
            SIGNED.replace(b"version=5", b"version=000000000000006"),
            SIGNED.replace(b"device=acme", b"device=../../acme"),
            SIGNED.replace(b"signature=", b"signature====="),
            SIGNED[:100],
            b"#waybill-push 1 device=" + b"a/" * 20_000,
            SETTINGS,
        ),
        judge_push,
    ),
    "token_files": Target(
        (
            *(
                bytes([seen_as]) + content
                for kind, whole in enumerate(KEY_FILES)
                for seen_as, content in ((kind, whole), (kind, whole[:-20]), ((kind + 1) % 3, whole))
            ),
            *tagged(1, OTHER_KIND, b"-----BEGIN PRIVATE KEY-----\n" + b"A" * 60_000 + b"\n-----END PRIVATE KEY-----\n"),
            *tagged(2, OTHER_KIND),
            *tagged(
                0,
                f"{TOKEN_HEAD}.eyJleHAiOiBOYU59.{TOKEN_SIGNATURE}".encode(),
                f"{TOKEN_HEAD}.{'W' * 15_000}.{TOKEN_SIGNATURE}".encode(),
                b"." * 60_000,
            ),
        ),
        by_first_byte(judge_token, judge_token_key, judge_operator_key),
    ),
}
