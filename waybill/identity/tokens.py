"""Tokens (JWT, ES256) that say which role their bearer has, the keys that sign them, and the folder that holds both.

RFC 7519 for tokens, RFC 7517 for the set of public keys, OpenID Connect Discovery 1.0 for the document that names it:
what Pulsar's `AuthenticationProviderOpenID` asks for, and so a key can be changed while brokers run.

keys/0001.pem ...        private keys, oldest first; which one signs is named in `keys/signer`
keys/0001.until ...      when the last token that a key signed ends (seconds since 1970; 0: it signed none)
published/               what brokers are served: the discovery document and the keys that tokens are checked with
tokens/ROLE.token        a role's token: who holds it reads it again at each connection
"""

from __future__ import annotations

import base64
import binascii
import fcntl
import hashlib
import json
import math
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

from waybill.daemon.bounded_file import read_bounded
from waybill.daemon.durable_file import replace_durably
from waybill.identity.errors import IdentityError
from waybill.identity.pem_keys import private_key_of
from waybill.settings import read_file

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
    def from_pem(cls, pem: bytes) -> TokenKey:
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


# The folder of tokens, and the rotation of its key in three steps.

CLUSTERS_READ_S = 600
"""Ten times what brokers are made to wait before they read the keys again (`waybill topology broker-conf`)."""
_MAX_DISCOVERY_BYTES = 64 << 10
_MAX_UNTIL_BYTES = 11
# who reads a token is its role
_SECRET = 0o600
FORMER, SIGNS, WAITS = "former", "signs", "waits"
"""What a key is for: its tokens are taken and it signs none; tokens are signed with it; brokers are served it."""
PUBLISH, SIGN, RETIRE = "publish", "sign", "retire"
"""The steps of a change of keys, with a wait before each of the last two."""


class KeyStepRefused(IdentityError):
    """A step of a change of keys is out of order or too early; the message says which comes first, or since when."""


class OtherIssuer(IdentityError):
    """The tokens of a folder are of another issuer, or an issuer is none that a broker can trust."""


class TokenKeyState(NamedTuple):
    """A key in its folder. `tokens_until_s`: when its last token ends; 0: it signed none; None: nobody knows."""

    key_id: str
    use: str
    file: Path
    made_s: float
    tokens_until_s: float | None


class NextStep(NamedTuple):
    """The step that is next, and from when on it is taken without `--early`; None: nobody knows."""

    step: str
    from_s: float | None
    why: str


def check_issuer(folder: Path, issuer: str, *, may_change: bool = False) -> None:
    """Raises OtherIssuer: every broker takes what the folder publishes, and tokens of the issuer named there alone."""
    if not issuer.startswith("https://") or issuer.endswith("/"):
        why = "an issuer begins with https://, so that nobody can inject keys, and ends without a slash"
        raise OtherIssuer(f"{issuer}: {why}")
    found = TokenFolder(folder)
    known = found.published_issuer
    if may_change or known == issuer or (known is None and not found.key_files()):
        return
    if known is None:
        why = f"{found.published} is missing or damaged, so the issuer of {folder} is unknown"
        raise OtherIssuer(f"{why}: --new-issuer says that it is {issuer}")
    raise OtherIssuer(
        f"{folder} is of the issuer {known}, and brokers refuse tokens of {issuer}: say that one, or --new-issuer"
    )


@contextmanager
def as_owner_of(folder: Path) -> Iterator[None]:
    """Root acts as the owner of a folder, for a command: a file of root's would stop the timers that renew tokens.

    The whole process changes its user for the time of the block, with all its threads.
    """
    if os.geteuid() == 0 and folder.exists():
        os.setegid(folder.stat().st_gid)
        os.seteuid(folder.stat().st_uid)
    try:
        yield
    finally:
        os.seteuid(os.getuid())
        os.setegid(os.getgid())


class TokenFolder:
    """The files of one folder, read again with each question."""

    def __init__(self, folder: Path) -> None:
        self.keys, self.tokens, self.published = folder / "keys", folder / "tokens", folder / "published"

    @property
    def published_issuer(self) -> str | None:
        """Whose tokens these are, by what is published; None where nothing is."""
        try:
            content = read_bounded(self.published / DISCOVERY_PATH.removeprefix("/"), _MAX_DISCOVERY_BYTES)
            issuer = json.loads(content)["issuer"]
        except (OSError, ValueError, TypeError, KeyError, RecursionError):
            return None
        return issuer if isinstance(issuer, str) else None

    @property
    def roles(self) -> list[str]:
        """The roles that have a token."""
        return sorted(file.stem for file in self.tokens.glob("*.token"))

    def token_file(self, role: str) -> Path:
        """Where the token of a role is."""
        return self.tokens / f"{role}.token"

    def claims(self, role: str) -> TokenClaims | None:
        """What a role's token says; None where it is missing, is no text, or is no token."""
        try:
            return read_claims(read_file(self.token_file(role)).decode())
        except (OSError, ValueError):
            return None

    def key_files(self) -> list[Path]:
        """The oldest first."""
        return sorted(self.keys.glob("*.pem"))

    def key_in(self, file: Path) -> TokenKey:
        """The key of a file. Raises InvalidToken, which names it, OSError."""
        try:
            return TokenKey.from_pem(read_file(file))
        except InvalidToken as error:
            raise InvalidToken(f"{file}: {error}") from error

    def key_states(self) -> list[TokenKeyState]:
        """The keys, oldest first. Raises InvalidToken where one is none, or none is there to sign; OSError."""
        files = self.key_files()
        ids = [self.key_in(file).key_id for file in files]
        if not ids:
            raise InvalidToken(f"{self.keys} has no key of tokens: waybill pki token ROLE makes the first one")
        try:
            named = read_file(self.keys / "signer").decode(errors="replace")
        except FileNotFoundError:
            # Killed between the first key and its naming: there is no other one.
            named = ids[0]
        if named not in ids:
            raise InvalidToken(f"{self.keys}: signer names {named!r:.40}, and no key here is called so")
        at = ids.index(named)
        uses = [FORMER] * at + [SIGNS] + [WAITS] * (len(ids) - at - 1)
        return [
            TokenKeyState(key_id, use, file, file.stat().st_mtime, _until_s(file))
            for key_id, use, file in zip(ids, uses, files, strict=True)
        ]

    def next_step(self) -> NextStep:
        """The next step of a change of keys. Raises InvalidToken, OSError."""
        keys = self.key_states()
        if keys[-1].use == WAITS:
            why = "clusters may not have read the new key yet"
            return NextStep(SIGN, keys[-1].made_s + CLUSTERS_READ_S, why)
        former = [one for one in keys if one.use == FORMER]
        if not former:
            return NextStep(PUBLISH, 0, "one key is published, and it signs")
        last = max(former, key=lambda one: math.inf if one.tokens_until_s is None else one.tokens_until_s)
        if last.tokens_until_s is None:
            return NextStep(RETIRE, None, f"the expiry of tokens signed with key {last.key_id} is not recorded")
        return NextStep(RETIRE, last.tokens_until_s, f"a token of the former key {last.key_id} may be in use")


class TokenIssuer(TokenFolder):
    """Issues the tokens of one folder. `keys/lock` keeps two commands at once from crossing each other.

    A change of keys has three steps, so that no broker meets a token of a key that it does not know, and nobody holds
    one of a key that it does not know any more:

        issuer.publish_new_key()        # then wait until each cluster takes `issuer.newest_token(...)`
        issuer.sign_with_newest(...)    # then wait until every holder has read its token again
        issuer.retire_former_keys()     # from here on a token of a former key is refused
    """

    def __init__(self, folder: Path, issuer: str) -> None:
        """Makes the first key where there is none, and publishes. `issuer`: the URL that serves `published`.

        Raises InvalidToken where a key's file is none, OSError.
        """
        super().__init__(folder)
        self.issuer = issuer
        for made in (self.keys, self.tokens):
            made.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.published.mkdir(exist_ok=True)
        with self._locked():
            if not self.key_files():
                self._add_key()
            self._publish()

    def issue(self, role: str, *, now_s: float, life_s: float) -> Path:
        """Write a role's token anew. Raises InvalidToken for a name that is no role's."""
        with self._locked():
            self._issue(role, now_s, life_s)
            return self.token_file(role)

    def renew(self, roles: Collection[str], *, now_s: float, life_s: float) -> list[str]:
        """Issue anew what is missing, of another key or issuer, or in the second half of its life; says which."""
        with self._locked():
            return self._renew(dict.fromkeys(roles, life_s), now_s)

    def publish_new_key(self) -> str:
        """Make a key and let brokers know it; tokens are signed by the former one still. Returns its id.

        Raises KeyStepRefused where one is published already that does not sign yet.
        """
        with self._locked():
            if self.next_step().step == SIGN:
                raise KeyStepRefused("a new key is published already and does not sign yet: waybill pki token-key sign")
            # The signer is named in a file and is not the newest key: who is killed here signs with the former one.
            self._add_key()
            self._publish()
            return self.key_states()[-1].key_id

    def newest_token(self, role: str, *, now_s: float, life_s: float) -> str:
        """A token of the newest key, whether or not that signs yet: to see whether a cluster knows it."""
        with self._locked():
            return self._token(self.key_states()[-1], role, now_s, life_s)

    def sign_with_newest(self, lives_s: Mapping[str, float], *, now_s: float) -> list[str]:
        """From now on tokens are of the newest key; those of these roles are written anew, each for its life.

        Raises KeyStepRefused where no change of keys has begun.
        """
        with self._locked():
            step = self.next_step().step
            if step == PUBLISH:
                raise KeyStepRefused("no new key is published that could sign: waybill pki token-key publish first")
            if step == SIGN:
                replace_durably(self.keys / "signer", self.key_states()[-1].key_id.encode())
            return self._renew(lives_s, now_s)

    def retire_former_keys(self) -> list[str]:
        """Delete every key but the one that signs; returns the ids of those that are gone.

        Raises KeyStepRefused where that would be the new one, or where there is no other.
        """
        with self._locked():
            step = self.next_step().step
            if step == SIGN:
                why = "the newest key does not sign yet, and would be lost: waybill pki token-key sign first"
                raise KeyStepRefused(why)
            if step == PUBLISH:
                raise KeyStepRefused("there is no former key to retire")
            former = [one for one in self.key_states() if one.use == FORMER]
            # Deleted first: a key that is published and that nobody has signs nothing; the next start publishes anew.
            for one in former:
                one.file.unlink()
                _until_file(one.file).unlink(missing_ok=True)
            self._publish()
            return [one.key_id for one in former]

    def check_wait(self, step: str, now_s: float) -> None:
        """Raises KeyStepRefused where this step is the next one, and the wait before it is not over."""
        wanted = self.next_step()
        if wanted.step != step or (wanted.from_s is not None and now_s >= wanted.from_s):
            return
        until = (
            "" if wanted.from_s is None else f", until {datetime.fromtimestamp(wanted.from_s, UTC):%Y-%m-%dT%H:%M:%SZ}"
        )
        seen = "--early where you saw that everybody has what the step before brought"
        raise KeyStepRefused(f"too early: {wanted.why}{until}; {seen}")

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with (self.keys / "lock").open("ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _signer(self) -> TokenKeyState:
        return next(one for one in self.key_states() if one.use == SIGNS)

    def _issue(self, role: str, now_s: float, life_s: float) -> None:
        token = self._token(self._signer(), role, now_s, life_s)
        replace_durably(self.token_file(role), token.encode(), mode=_SECRET)

    def _token(self, key: TokenKeyState, role: str, now_s: float, life_s: float) -> str:
        token = self.key_in(key.file).token(role, issuer=self.issuer, now_s=now_s, life_s=life_s)
        # Before anybody has the token: its key must not be retired sooner. What is unknown of a key stays unknown.
        if key.tokens_until_s is not None and key.tokens_until_s < now_s + life_s:
            replace_durably(_until_file(key.file), str(int(now_s + life_s)).encode())
        return token

    def _renew(self, lives_s: Mapping[str, float], now_s: float) -> list[str]:
        signer = self._signer().key_id, self.issuer
        due = list[str]()
        for role, life_s in lives_s.items():
            claims = self.claims(role)
            # Half a life early: whoever reads its file once in that time never meets one that is over.
            is_good = claims is not None and claims.expires_s - now_s >= life_s / 2
            if claims is None or not is_good or (claims.key_id, claims.issuer) != signer:
                self._issue(role, now_s, life_s)
                due.append(role)
        return due

    def _add_key(self) -> None:
        files = self.key_files()
        file = self.keys / f"{int(files[-1].stem) + 1 if files else 1:04}.pem"
        key = TokenKey(ec.generate_private_key(ec.SECP256R1()))
        # First: a key without it is one of which nobody knows what it signed.
        replace_durably(_until_file(file), b"0")
        replace_durably(file, key.to_pem(), mode=_SECRET)
        if not files:
            replace_durably(self.keys / "signer", key.key_id.encode())

    def _publish(self) -> None:
        keys = check_keys(map(self.key_in, self.key_files()))
        for path, content in ((DISCOVERY_PATH, discovery(self.issuer)), (CHECK_KEYS_PATH, keys)):
            file = self.published / path.removeprefix("/")
            file.parent.mkdir(exist_ok=True)
            replace_durably(file, content)


def _until_file(key_file: Path) -> Path:
    return key_file.with_suffix(".until")


def _until_s(key_file: Path) -> float | None:
    try:
        return float(int(read_bounded(_until_file(key_file), _MAX_UNTIL_BYTES)))
    except (OSError, ValueError):
        return None
