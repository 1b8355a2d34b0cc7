"""Tokens are what a standard reader of them expects, and say what they were made to say."""

import base64
import json

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, PrivateFormat
from hypothesis import given
from hypothesis import strategies as st

from waybill.identity.tokens import InvalidToken, TokenKey, check_keys, discovery, read_claims

KEY = TokenKey(ec.derive_private_key(7, ec.SECP256R1()))
OTHER = TokenKey(ec.derive_private_key(8, ec.SECP256R1()))
ISSUER = "https://127.0.0.1:1"
LOCKED = KEY.private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"word"))


def decoded(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def check(token: str, jwk: dict[str, str]) -> None:
    """As the standard says it, with the public part alone. Raises InvalidSignature."""
    x, y = (int.from_bytes(decoded(jwk[name])) for name in "xy")
    text, _, signature = token.rpartition(".")
    pair = decoded(signature)
    der = encode_dss_signature(int.from_bytes(pair[:32]), int.from_bytes(pair[32:]))
    ec.EllipticCurvePublicNumbers(x, y, ec.SECP256R1()).public_key().verify(
        der, text.encode(), ec.ECDSA(hashes.SHA256())
    )


@given(st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,30}", fullmatch=True), st.integers(1, 10**9), st.integers(1, 10**6))
def test_a_token_is_checked_by_the_published_key_and_by_no_other(role: str, now_s: int, life_s: int) -> None:
    token = KEY.token(role, issuer=ISSUER, now_s=now_s, life_s=life_s)
    check(token, KEY.public_jwk())
    with pytest.raises(InvalidSignature):
        check(token, OTHER.public_jwk())
    said = read_claims(token)
    assert (said.role, said.issuer, said.key_id, said.expires_s) == (role, ISSUER, KEY.key_id, now_s + life_s)


def test_a_token_has_every_claim_that_a_broker_asks_for() -> None:
    claims = json.loads(decoded(KEY.token("jobs", issuer=ISSUER, now_s=1000, life_s=60).split(".")[1]))
    assert claims == {"iss": ISSUER, "sub": "jobs", "aud": "pulsar", "iat": 940, "nbf": 940, "exp": 1060}


@pytest.mark.parametrize("role", ["", "a/b", "-a", "a b", "a\nb", "ü", "a" * 200])
def test_what_is_no_role_gets_no_token(role: str) -> None:
    with pytest.raises(InvalidToken):
        KEY.token(role, issuer=ISSUER, now_s=0, life_s=1)


@given(st.text() | st.from_regex(r"[A-Za-z0-9_-]*\.[A-Za-z0-9_-]*\.[A-Za-z0-9_-]*", fullmatch=True))
def test_what_is_no_token_is_called_so(text: str) -> None:
    with pytest.raises(InvalidToken):
        read_claims(text)


@pytest.mark.parametrize("ends", ["1" + "0" * 400, "1e999", "NaN", "-Infinity", '"9"', "true", "null"])
def test_a_token_that_ends_at_no_moment_is_none(ends: str) -> None:
    head, claims = b'{"kid": "k"}', f'{{"sub": "jobs", "iss": "i", "exp": {ends}}}'.encode()
    with pytest.raises(InvalidToken):
        read_claims(".".join(base64.urlsafe_b64encode(part).rstrip(b"=").decode() for part in (head, claims, b"")))


@pytest.mark.parametrize(
    "pem", [b"", b"-----BEGIN", KEY.to_pem()[:90], LOCKED], ids=["empty", "begun", "cut", "locked"]
)
def test_what_is_no_key_is_called_so(pem: bytes) -> None:
    with pytest.raises(InvalidToken, match="P-256"):
        TokenKey.from_pem(pem)


def test_an_issuer_says_where_its_keys_are() -> None:
    assert json.loads(discovery(ISSUER))["jwks_uri"] == f"{ISSUER}/keys.json"
    assert [key["kid"] for key in json.loads(check_keys([KEY, OTHER]))["keys"]] == [KEY.key_id, OTHER.key_id]
