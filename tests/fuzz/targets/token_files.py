"""Tokens of roles, and files of private keys: the first byte chooses which. Sets of public keys are only written."""

from __future__ import annotations

from collections.abc import Iterable

from cryptography.hazmat.primitives.asymmetric import ec

from tests.fuzz.bounds import check_refusal
from waybill.identity.errors import OperatorKeyRefused
from waybill.identity.signatures import OperatorKey
from waybill.identity.tokens import InvalidToken, TokenKey, read_claims

KEY = TokenKey(ec.generate_private_key(ec.SECP256R1()))
TOKEN = KEY.token("gateway-eu", issuer="https://keys.example", now_s=1_764_000_000, life_s=3600)

OTHER_KIND = (
    b"-----BEGIN PRIVATE KEY-----\nMC4CAQAwBQYDK2VxBCIEIDftOWwJOMz9qnBwj8MHhGhXMZwcmpKuN9H7j4/nxNJM\n"
    b"-----END PRIVATE KEY-----\n"
)


def seeds() -> Iterable[bytes]:
    """A good one of each kind, and such as are cut, of another kind, deep, or end at no moment."""
    head, _, signature = TOKEN.split(".")
    for kind, whole in enumerate((TOKEN.encode(), KEY.to_pem(), OperatorKey.generate().private_pem())):
        yield bytes([kind]) + whole
        yield bytes([kind]) + whole[:-20]
        yield bytes([(kind + 1) % 3]) + whole
    # an Ed25519 key that calls itself X448: an internal error of OpenSSL
    yield b"\x01" + OTHER_KIND
    yield b"\x02" + OTHER_KIND
    yield b"\x00" + f"{head}.eyJleHAiOiBOYU59.{signature}".encode()
    yield b"\x00" + f"{head}.{'W' * 15_000}.{signature}".encode()
    yield b"\x00" + b"." * 60_000
    yield b"\x01-----BEGIN PRIVATE KEY-----\n" + b"A" * 60_000 + b"\n-----END PRIVATE KEY-----\n"


def judge(data: bytes) -> None:
    """A token says a role and when it ends, a key signs; or the typed error, in bounded words."""
    kind, content = data[0] % 3 if data else 0, data[1:]
    try:
        if kind == 0:
            claims = read_claims(content.decode("utf-8", "replace"))
            assert claims.expires_s == claims.expires_s, "nothing is later than NaN"
        elif kind == 1:
            assert TokenKey.from_pem(TokenKey.from_pem(content).to_pem()).key_id
        else:
            assert OperatorKey.from_pem(OperatorKey.from_pem(content).private_pem()).key_id
    except (InvalidToken, OperatorKeyRefused) as error:
        check_refusal(error)
