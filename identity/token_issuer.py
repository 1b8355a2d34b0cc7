"""A folder with the keys of tokens and a token for each role, and how a key is changed while everybody runs.

keys/0001.pem ...        private keys, oldest first; which one signs is named in `keys/signer`
published/               what brokers are served: the discovery document and the keys that tokens are checked with
tokens/ROLE.token        a role's token: who holds it reads it again at each connection
"""

import json
from collections.abc import Collection
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import ec

from identity.errors import IdentityError
from identity.tokens import CHECK_KEYS_PATH, DISCOVERY_PATH, InvalidToken, TokenKey, check_keys, discovery, read_claims
from runtime import read_bounded, replace_durably

__all__ = ["KeyStepRefused", "OtherIssuer", "TokenIssuer", "check_issuer"]

_SECRET = 0o600
_MAX_DISCOVERY_BYTES = 64 << 10


class KeyStepRefused(IdentityError):
    """A step of a change of keys is out of order or too early; the message says which comes first, or since when."""


class OtherIssuer(IdentityError):
    """The tokens of a folder are of another issuer, or an issuer is none that a broker can trust."""


def check_issuer(folder: Path, issuer: str, *, may_change: bool = False) -> None:
    """Raises OtherIssuer: every broker takes what the folder publishes, and tokens of the issuer named there alone."""
    if not issuer.startswith("https://"):
        raise OtherIssuer(f"{issuer}: an issuer is reached by https://, or anybody on the way could give out keys")
    try:
        content = read_bounded(folder / "published" / DISCOVERY_PATH.removeprefix("/"), _MAX_DISCOVERY_BYTES)
        known = json.loads(content)["issuer"]
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return
    if known != issuer and not may_change:
        raise OtherIssuer(
            f"{folder} is of the issuer {known}, and brokers refuse tokens of {issuer}: say that one, or --new-issuer"
        )


def _refuse_early(what: str, age_s: float, wait_s: float) -> None:
    # A file of the future is one of before a clock was set: refused, for it says nothing of how long anybody waited.
    if age_s >= wait_s:
        return
    ago, wait = (f"{round(one_s / 60):,} min" for one_s in (age_s, wait_s))
    raise KeyStepRefused(f"too early: {what} {ago} ago, and the wait is {wait}; --early where you saw that all have it")


class TokenIssuer:
    """Issues the tokens of one folder.

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
        self._keys, self._tokens = folder / "keys", folder / "tokens"
        self.published = folder / "published"
        self.issuer = issuer
        for made in (self._keys, self._tokens):
            made.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.published.mkdir(exist_ok=True)
        if not self._files():
            self._add_key()
        self._publish()

    def token_file(self, role: str) -> Path:
        """Where the token of a role is."""
        return self._tokens / f"{role}.token"

    def issue(self, role: str, *, now_s: float, life_s: float) -> Path:
        """Write a role's token anew. Raises InvalidToken for a name that is no role's."""
        token = self._signer().token(role, issuer=self.issuer, now_s=now_s, life_s=life_s)
        replace_durably(self.token_file(role), token.encode(), mode=_SECRET)
        return self.token_file(role)

    def renew(self, roles: Collection[str], *, now_s: float, life_s: float) -> list[str]:
        """Issue anew what is missing, of another key or issuer, or in the second half of its life; says which."""
        due = [role for role in roles if self._is_due(role, now_s, life_s)]
        for role in due:
            self.issue(role, now_s=now_s, life_s=life_s)
        return due

    def publish_new_key(self) -> str:
        """Make a key and let brokers know it; tokens are signed by the former one still. Returns its id.

        Raises KeyStepRefused where one is published already that does not sign yet.
        """
        if self.has_waiting_key:
            raise KeyStepRefused("a new key is published already and does not sign yet: waybill pki token-key sign")
        # The signer is named in a file and is not the newest key: who is killed here signs with the former one still.
        self._add_key()
        self._publish()
        return self._load(self._files()[-1]).key_id

    def newest_token(self, role: str, *, now_s: float, life_s: float) -> str:
        """A token of the newest key, whether or not that signs yet: to see whether a cluster knows it."""
        return self._load(self._files()[-1]).token(role, issuer=self.issuer, now_s=now_s, life_s=life_s)

    def sign_with_newest(self, roles: Collection[str], *, now_s: float, life_s: float) -> list[str]:
        """From now on tokens are of the newest key; those of these roles are written anew."""
        newest = self._load(self._files()[-1]).key_id
        if self.has_waiting_key:
            self._sign_with(newest)
        if done := self.renew(roles, now_s=now_s, life_s=life_s):
            # Again: the wait of those who read them begins here, also where somebody was killed between the two.
            self._sign_with(newest)
        return done

    def retire_former_keys(self) -> list[str]:
        """Delete every key but the one that signs; returns the ids of those that are gone.

        Raises KeyStepRefused where that would be the new one.
        """
        if self.has_waiting_key:
            raise KeyStepRefused(
                "the newest key does not sign yet, and would be lost: waybill pki token-key sign first"
            )
        signer = self._signer().key_id
        former = [(file, key_id) for file in self._files() if (key_id := self._load(file).key_id) != signer]
        # Deleted first: a key that is published and that nobody has signs nothing; the next start publishes without it.
        for file, _ in former:
            file.unlink()
        self._publish()
        return [key_id for _, key_id in former]

    def check_sign(self, now_s: float, *, wait_s: float) -> None:
        """Raises KeyStepRefused for a key that waits to sign, and was published less than `wait_s` ago."""
        if self.has_waiting_key:
            what = "clusters may not have read the new key, which was published"
            _refuse_early(what, now_s - self._files()[-1].stat().st_mtime, wait_s)

    def check_retire(self, now_s: float, *, wait_s: float) -> None:
        """Raises KeyStepRefused for former keys, where tokens were signed with the newest less than `wait_s` ago."""
        if len(self._files()) > 1 and not self.has_waiting_key:
            what = "somebody may still hold a token of a former key; all were written anew"
            _refuse_early(what, now_s - (self._keys / "signer").stat().st_mtime, wait_s)

    @property
    def has_waiting_key(self) -> bool:
        """Whether a key is published that does not sign yet."""
        return self._load(self._files()[-1]).key_id != self._signer().key_id

    @property
    def roles(self) -> list[str]:
        """The roles that have a token."""
        return sorted(file.stem for file in self._tokens.glob("*.token"))

    def _is_due(self, role: str, now_s: float, life_s: float) -> bool:
        try:
            claims = read_claims(self.token_file(role).read_text())
        except (OSError, ValueError):  # is missing, is no text, or is no token
            return True
        # Half a life early: whoever reads its file once in that time never meets one that is over.
        former = (claims.key_id, claims.issuer) != (self._signer().key_id, self.issuer)
        return former or claims.expires_s - now_s < life_s / 2

    def _files(self) -> list[Path]:
        return sorted(self._keys.glob("*.pem"))

    def _load(self, file: Path) -> TokenKey:
        try:
            return TokenKey.from_pem(file.read_bytes())
        except InvalidToken as error:
            raise InvalidToken(f"{file}: {error}") from error

    def _add_key(self) -> None:
        last = int(self._files()[-1].stem) if self._files() else 0
        key = TokenKey(ec.generate_private_key(ec.SECP256R1()))
        replace_durably(self._keys / f"{last + 1:04}.pem", key.to_pem(), mode=_SECRET)
        if not last:
            self._sign_with(key.key_id)

    def _signer(self) -> TokenKey:
        try:
            named = (self._keys / "signer").read_bytes().decode(errors="replace")
        except FileNotFoundError:
            # Killed between the first key and its naming: there is no other one.
            return self._load(self._files()[0])
        for file in self._files():
            if (key := self._load(file)).key_id == named:
                return key
        raise InvalidToken(f"{self._keys}: signer names {named!r:.40}, and no key here is called so")

    def _sign_with(self, key_id: str) -> None:
        replace_durably(self._keys / "signer", key_id.encode())

    def _publish(self) -> None:
        documents = {
            DISCOVERY_PATH: discovery(self.issuer),
            CHECK_KEYS_PATH: check_keys(map(self._load, self._files())),
        }
        for path, content in documents.items():
            file = self.published / path.removeprefix("/")
            file.parent.mkdir(exist_ok=True)
            replace_durably(file, content)
