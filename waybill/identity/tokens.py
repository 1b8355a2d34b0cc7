"""Tokens (JWT, ES256) that name the role of a Pulsar client, the keys that sign them, and the folder that holds both.

RFC 7519 for tokens, RFC 7517 for the set of public keys, OpenID Connect Discovery 1.0 for the document that names it.
Pulsar's `AuthenticationProviderOpenID` reads both, so the key can be changed while brokers run.

keys/0001.pem ...        private keys, oldest first
keys/signer              the name of the key file that signs tokens
published/               the files that brokers fetch: the discovery document and the public keys
tokens/ROLE.token        the token of a role
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import math
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

from waybill.daemon.durable_file import alone_in, replace_durably
from waybill.identity.errors import IdentityError
from waybill.identity.pem_keys import private_key_of
from waybill.settings import read_file

AUDIENCE = "pulsar"
"""Brokers refuse tokens for any other audience."""
_DISCOVERY = ".well-known/openid-configuration"
_PUBLIC_KEYS = "keys.json"
_COORDINATE_BYTES = 32
# A token is valid from a minute ago: a broker's clock may be behind.
_SKEW_S = 60
_ROLE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,126}")
_MAX_TOKEN = 16 << 10


class InvalidToken(IdentityError, ValueError):
    """A token, a key or a folder of tokens cannot be used; the message says why."""


@dataclass(frozen=True, slots=True)
class TokenKey:
    """A private key (ECDSA on P-256) that signs tokens."""

    private: ec.EllipticCurvePrivateKey

    @classmethod
    def from_pem(cls, pem: bytes) -> TokenKey:
        """Raises InvalidToken."""
        try:
            key = private_key_of(pem)
        except ValueError as error:
            raise InvalidToken(f"is not a private key on the curve P-256: {error}") from error
        if not isinstance(key, ec.EllipticCurvePrivateKey) or not isinstance(key.curve, ec.SECP256R1):
            raise InvalidToken("is not a private key on the curve P-256")
        return cls(key)

    def to_pem(self) -> bytes:
        """PKCS 8 without a passphrase."""
        form = serialization.PrivateFormat.PKCS8
        return self.private.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())

    @property
    def key_id(self) -> str:
        """The first 16 hex digits of the SHA-256 of the public key."""
        point = self.private.public_key().public_bytes(
            serialization.Encoding.X962, serialization.PublicFormat.UncompressedPoint
        )
        return hashlib.sha256(point).hexdigest()[:16]

    def public_jwk(self) -> dict[str, str]:
        """The public key as a JSON web key (RFC 7517)."""
        numbers = self.private.public_key().public_numbers()
        point = {
            name: _encoded(value.to_bytes(_COORDINATE_BYTES)) for name, value in (("x", numbers.x), ("y", numbers.y))
        }
        return {"kty": "EC", "crv": "P-256", "alg": "ES256", "use": "sig", "kid": self.key_id, **point}

    def token(self, role: str, *, issuer: str, now_s: float, life_s: float) -> str:
        """A token for a role that is valid for `life_s`. Raises InvalidToken for an invalid role name."""
        if not _ROLE.fullmatch(role):
            raise InvalidToken(f"{role!r} is not a role name: use letters, digits, dots, dashes and underscores")
        now = int(now_s)
        claims = {"iss": issuer, "sub": role, "aud": AUDIENCE, "iat": now - _SKEW_S, "nbf": now - _SKEW_S}
        claims["exp"] = int(now_s + life_s)
        parts = {"alg": "ES256", "typ": "JWT", "kid": self.key_id}, claims
        text = ".".join(_encoded(json.dumps(part, separators=(",", ":")).encode()) for part in parts)
        # The library signs in DER; a token has the two numbers side by side (RFC 7518, 3.4).
        first, second = decode_dss_signature(self.private.sign(text.encode(), ec.ECDSA(hashes.SHA256())))
        return f"{text}.{_encoded(first.to_bytes(_COORDINATE_BYTES) + second.to_bytes(_COORDINATE_BYTES))}"


@dataclass(frozen=True, slots=True)
class TokenClaims:
    """The claims of a token; nobody has checked its signature."""

    role: str
    issuer: str
    key_id: str
    expires_s: float


def read_claims(token: str) -> TokenClaims:
    """The claims of a token. Raises InvalidToken. The signature is not checked: brokers do that."""
    parts = token.split(".")
    if len(parts) != 3 or len(token) > _MAX_TOKEN:
        raise InvalidToken("is not a token: it does not have three parts")
    try:
        head, claims = (json.loads(_decoded(part)) for part in parts[:2])
        names = claims["sub"], claims["iss"], head["kid"]
        ends_s = float(claims["exp"])
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
        raise InvalidToken(f"is not a token of Waybill: {error}") from error
    # A token that ends at NaN would never end.
    if not all(isinstance(one, str) for one in names) or not math.isfinite(ends_s):
        raise InvalidToken("is not a token of Waybill: a claim has the wrong type")
    return TokenClaims(*names, expires_s=ends_s)


def public_keys(keys: Iterable[TokenKey]) -> bytes:
    """The JSON web key set with which brokers check tokens."""
    return json.dumps({"keys": [key.public_jwk() for key in keys]}, indent=2).encode()


def discovery(issuer: str) -> bytes:
    return json.dumps(
        {
            "issuer": issuer,
            "jwks_uri": f"{issuer}/{_PUBLIC_KEYS}",
            # The standard requires an address for logins, which nobody uses here.
            "authorization_endpoint": issuer,
            "response_types_supported": ["id_token"],
            "subject_types_supported": ["public"],
            "id_token_signing_alg_values_supported": ["ES256"],
        },
        indent=2,
    ).encode()


def _encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except binascii.Error as error:
        raise ValueError(str(error)) from error


class TokenIssuer:
    """Issues the tokens of one folder, and changes their key in three steps.

    1. `publish_new_key`, then wait until the brokers have fetched the keys again.
    2. `sign_with_newest`, then wait until every client has its new token.
    3. `retire_former_keys`: brokers refuse the tokens of the former key.
    """

    def __init__(self, folder: Path, issuer: str = "") -> None:
        """`issuer`: the URL that serves `published`; "": that of the folder. Makes the first key where there is none.

        Raises InvalidToken, OSError.
        """
        self.keys, self.tokens, self.published = folder / "keys", folder / "tokens", folder / "published"
        self.issuer = self._checked_issuer(issuer)
        for made in (self.keys, self.tokens):
            made.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.published.mkdir(exist_ok=True)
        with alone_in(self.keys):
            if not self.key_files():
                self._add_key()
            self._publish()

    def _checked_issuer(self, issuer: str) -> str:
        # Brokers accept tokens of one issuer only, and fetch keys over HTTPS so that nobody can inject one.
        try:
            known = str(json.loads(read_file(self.published / _DISCOVERY))["issuer"])
        except (OSError, ValueError, TypeError, KeyError):
            known = ""
        if not issuer and not known:
            raise InvalidToken(f"{self.published.parent} has no tokens yet: run `waybill pki token ROLE --issuer URL`")
        if issuer and known and issuer != known:
            raise InvalidToken(f"the tokens of {self.published.parent} have the issuer {known}: use another folder")
        found = issuer or known
        if not found.startswith("https://") or found.endswith("/"):
            raise InvalidToken(f"{found}: an issuer is a URL that begins with https:// and does not end with a slash")
        return found

    @property
    def roles(self) -> list[str]:
        return sorted(file.stem for file in self.tokens.glob("*.token"))

    def token_file(self, role: str) -> Path:
        return self.tokens / f"{role}.token"

    def key_files(self) -> list[Path]:
        """The private keys, oldest first."""
        return sorted(self.keys.glob("*.pem"))

    def signing_key_file(self) -> Path:
        """The key that signs tokens. Raises InvalidToken where it is missing."""
        files = self.key_files()
        try:
            named = self.keys / read_file(self.keys / "signer").decode("ascii", "replace")
        except FileNotFoundError:
            return files[0]
        if named not in files:
            raise InvalidToken(f"{self.keys}/signer names {named.name!r:.40}, which is not there")
        return named

    def issue(self, role: str, *, now_s: float, life_s: float) -> Path:
        """Write a new token of a role. Raises InvalidToken for an invalid role name."""
        with alone_in(self.keys):
            self._issue(role, now_s, life_s)
        return self.token_file(role)

    def renew(self, roles: Collection[str], *, now_s: float, life_s: float) -> list[str]:
        """Issue the tokens that are missing, of another key, or in the second half of their life; returns the roles."""
        with alone_in(self.keys):
            key_id = read_key(self.signing_key_file()).key_id
            due = [role for role in roles if not self._is_good(role, key_id, now_s + life_s / 2)]
            for role in due:
                self._issue(role, now_s, life_s)
        return due

    def publish_new_key(self) -> str:
        """Make a key and publish it; the former key still signs. Returns the new key's id.

        Raises InvalidToken where a published key does not sign yet.
        """
        with alone_in(self.keys):
            self._check_newest_signs()
            file = self._add_key()
            self._publish()
        return read_key(file).key_id

    def sign_with_newest(self, *, now_s: float, life_s: float) -> list[str]:
        """Sign with the newest key from now on, and issue a new token for each role; returns the roles."""
        with alone_in(self.keys):
            replace_durably(self.keys / "signer", self.key_files()[-1].name.encode())
            for role in self.roles:
                self._issue(role, now_s, life_s)
        return self.roles

    def retire_former_keys(self) -> list[str]:
        """Delete every key but the newest; returns the ids of the deleted ones.

        Raises InvalidToken where the newest key does not sign yet.
        """
        with alone_in(self.keys):
            self._check_newest_signs()
            former = self.key_files()[:-1]
            ids = [read_key(file).key_id for file in former]
            for file in former:
                file.unlink()
            self._publish()
        return ids

    def _check_newest_signs(self) -> None:
        if self.signing_key_file() != self.key_files()[-1]:
            raise InvalidToken("the newest key does not sign yet: run `waybill pki token-key sign` first")

    def _is_good(self, role: str, key_id: str, until_s: float) -> bool:
        try:
            claims = read_claims(read_file(self.token_file(role)).decode())
        except (OSError, ValueError):
            return False
        return (claims.key_id, claims.issuer) == (key_id, self.issuer) and claims.expires_s >= until_s

    def _issue(self, role: str, now_s: float, life_s: float) -> None:
        key = read_key(self.signing_key_file())
        token = key.token(role, issuer=self.issuer, now_s=now_s, life_s=life_s)
        replace_durably(self.token_file(role), token.encode(), mode=0o600)

    def _add_key(self) -> Path:
        files = self.key_files()
        file = self.keys / f"{int(files[-1].stem) + 1 if files else 1:04}.pem"
        # Named before the second key is there: an interrupted command must not sign with a key nobody knows.
        if files:
            replace_durably(self.keys / "signer", self.signing_key_file().name.encode())
        replace_durably(file, TokenKey(ec.generate_private_key(ec.SECP256R1())).to_pem(), mode=0o600)
        return file

    def _publish(self) -> None:
        keys = public_keys(map(read_key, self.key_files()))
        for name, content in ((_DISCOVERY, discovery(self.issuer)), (_PUBLIC_KEYS, keys)):
            file = self.published / name
            file.parent.mkdir(exist_ok=True)
            replace_durably(file, content)


def read_key(file: Path) -> TokenKey:
    """The key of a file. Raises InvalidToken, which names the file; OSError."""
    try:
        return TokenKey.from_pem(read_file(file))
    except InvalidToken as error:
        raise InvalidToken(f"{file}: {error}") from error
