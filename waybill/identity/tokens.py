"""Tokens (JWT, ES256) that say which role their bearer has, and the keys that sign and check them. Pure.

RFC 7519 for tokens, RFC 7517 for the set of public keys, OpenID Connect Discovery 1.0 for the document that names it:
what Pulsar's `AuthenticationProviderOpenID` asks for, and so a key can be changed while brokers run.
"""

import base64
import binascii
import hashlib
import json
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass

from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

from waybill.identity.errors import IdentityError
from waybill.identity.pem_keys import private_key_of

__all__ = [
    "AUDIENCE",
    "CHECK_KEYS_PATH",
    "DISCOVERY_PATH",
    "InvalidToken",
    "TokenClaims",
    "TokenKey",
    "check_keys",
    "check_role_name",
    "discovery",
    "read_claims",
]

AUDIENCE = "pulsar"
"""For whom our tokens are: a token for another service opens no cluster."""
DISCOVERY_PATH = "/.well-known/openid-configuration"
CHECK_KEYS_PATH = "/keys.json"
_BYTES = 32
# a broker whose clock is a little behind takes a new token, too
_SKEW_S = 60
_ROLE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,126}")
_MAX_TOKEN = 16 << 10


class InvalidToken(IdentityError, ValueError):
    """A text is no token or no key of tokens, or a role cannot be written into a token; the message says why."""


def check_role_name(role: str) -> None:
    """Raises InvalidToken for a name that is no role's."""
    if not _ROLE.fullmatch(role):
        raise InvalidToken(f"{role!r} is not the name of a role: letters, digits, dot, dash and underscore")


@dataclass(frozen=True, slots=True)
class TokenKey:
    """A private key (ECDSA on P-256) that signs tokens; its id begins its public part's SHA-256."""

    private: ec.EllipticCurvePrivateKey

    @classmethod
    def from_pem(cls, pem: bytes) -> "TokenKey":
        """A key as `to_pem` wrote it. Raises InvalidToken for anything else."""
        try:
            key = private_key_of(pem)
        except ValueError as error:
            raise InvalidToken(f"is not a private key on the curve P-256: {error}") from error
        if not isinstance(key, ec.EllipticCurvePrivateKey) or not isinstance(key.curve, ec.SECP256R1):
            raise InvalidToken("is not a private key on the curve P-256")
        return cls(key)

    def to_pem(self) -> bytes:
        """PKCS 8, without a passphrase."""
        form = serialization.PrivateFormat.PKCS8
        return self.private.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())

    @property
    def key_id(self) -> str:
        """What a token names its key by."""
        point = self.private.public_key().public_bytes(
            serialization.Encoding.X962, serialization.PublicFormat.UncompressedPoint
        )
        return hashlib.sha256(point).hexdigest()[:16]

    def public_jwk(self) -> dict[str, str]:
        """The public part as a JSON web key."""
        numbers = self.private.public_key().public_numbers()
        point = {name: _encoded(value.to_bytes(_BYTES)) for name, value in (("x", numbers.x), ("y", numbers.y))}
        return {"kty": "EC", "crv": "P-256", "alg": "ES256", "use": "sig", "kid": self.key_id, **point}

    def token(self, role: str, *, issuer: str, now_s: float, life_s: float) -> str:
        """A token for a role, good from now on for so long. Raises InvalidToken for a name that is no role's."""
        check_role_name(role)
        # From a minute ago: a broker whose clock is behind would refuse what is signed now.
        now = int(now_s)
        claims = {"iss": issuer, "sub": role, "aud": AUDIENCE, "iat": now - _SKEW_S, "nbf": now - _SKEW_S}
        claims["exp"] = int(now_s + life_s)
        parts = {"alg": "ES256", "typ": "JWT", "kid": self.key_id}, claims
        text = ".".join(_encoded(json.dumps(part, separators=(",", ":")).encode()) for part in parts)
        # DER from the library, two numbers side by side in a token (RFC 7518, 3.4).
        first, second = decode_dss_signature(self.private.sign(text.encode(), ec.ECDSA(hashes.SHA256())))
        return f"{text}.{_encoded(first.to_bytes(_BYTES) + second.to_bytes(_BYTES))}"


@dataclass(frozen=True, slots=True)
class TokenClaims:
    """What a token says of itself."""

    role: str
    issuer: str
    key_id: str
    issued_s: float
    expires_s: float

    @property
    def life_s(self) -> float:
        """For how long it was made."""
        return self.expires_s - self.issued_s - _SKEW_S


def read_claims(token: str) -> TokenClaims:
    """What it says; nothing is checked but its form. Raises InvalidToken. Who lets somebody in asks a broker."""
    # By the broker a signature is checked, with the keys that are in force there: here it would say nothing.
    parts = token.split(".")
    if len(parts) != 3 or len(token) > _MAX_TOKEN:
        raise InvalidToken("is not a token: it has not three parts")
    try:
        head, claims = (json.loads(_decoded(part)) for part in parts[:2])
        said = claims["sub"], claims["iss"], head["kid"]
        if not all(isinstance(one, str) for one in said):
            raise TypeError("a name is no text")
        # Who else issues tokens need not say since when.
        ends_s = _moment_s(claims["exp"])
        return TokenClaims(*said, issued_s=_moment_s(claims.get("iat", ends_s)), expires_s=ends_s)
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
        raise InvalidToken(f"is not a token of ours: {error}") from error


def check_keys(keys: Iterable[TokenKey]) -> bytes:
    """The set of keys with which tokens are checked (JWKS), for `CHECK_KEYS_PATH`."""
    return json.dumps({"keys": [key.public_jwk() for key in keys]}, indent=2).encode()


def discovery(issuer: str) -> bytes:
    """The document that says where an issuer's keys are, for `DISCOVERY_PATH`."""
    return json.dumps(
        {
            "issuer": issuer,
            "jwks_uri": issuer + CHECK_KEYS_PATH,
            # Nobody logs in here, and the standard demands an address for it.
            "authorization_endpoint": issuer,
            "response_types_supported": ["id_token"],
            "subject_types_supported": ["public"],
            "id_token_signing_alg_values_supported": ["ES256"],
        },
        indent=2,
    ).encode()


def _moment_s(value: object) -> float:
    # Nothing is later than NaN: a token that ended then would be good for ever.
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError("it ends at no moment")
    return float(value)


def _encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except binascii.Error as error:
        raise ValueError(str(error)) from error
