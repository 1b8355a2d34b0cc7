"""Issues the tokens of a folder, a token for each role, and changes their key while everybody runs.

What is in the folder: see `token_folder`. `keys/lock` keeps two commands at once from crossing each other.
"""

import fcntl
import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import ec

from waybill.daemon.durable_file import replace_durably
from waybill.identity.errors import IdentityError
from waybill.identity.token_folder import KeyStep, KeyStepRefused, KeyUse, TokenFolder, TokenKeyState, until_file
from waybill.identity.tokens import CHECK_KEYS_PATH, DISCOVERY_PATH, TokenKey, check_keys, discovery

__all__ = ["OtherIssuer", "TokenIssuer", "as_owner_of", "check_issuer"]

# who reads a token is its role
_SECRET = 0o600


class OtherIssuer(IdentityError):
    """The tokens of a folder are of another issuer, or an issuer is none that a broker can trust."""


def check_issuer(folder: Path, issuer: str, *, may_change: bool = False) -> None:
    """Raises OtherIssuer: every broker takes what the folder publishes, and tokens of the issuer named there alone."""
    if not issuer.startswith("https://"):
        raise OtherIssuer(f"{issuer}: an issuer is reached by https://, or anybody on the way could give out keys")
    if issuer.endswith("/"):
        raise OtherIssuer(f"{issuer}: an issuer is written without a slash at the end, as its tokens have it")
    found = TokenFolder(folder)
    known = found.known_issuers()
    if may_change or known == {issuer}:
        return
    if known:
        others = ", ".join(sorted(known - {issuer}))
        raise OtherIssuer(
            f"{folder} is of the issuer {others}, and brokers refuse tokens of {issuer}: say that one, or --new-issuer"
        )
    if found.discovery_file.exists() or found.has_signed:
        raise OtherIssuer(
            f"{found.discovery_file} is missing or damaged, so nobody knows of which issuer {folder} is: "
            f"--new-issuer says that it is {issuer}"
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
        self.folder = TokenFolder(folder)
        self.published = self.folder.published
        self.issuer = issuer
        for made in (self.folder.keys, self.folder.tokens):
            made.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.published.mkdir(exist_ok=True)
        with self._locked():
            if not self.folder.key_files():
                self._add_key()
            self._publish()

    def token_file(self, role: str) -> Path:
        """Where the token of a role is."""
        return self.folder.token_file(role)

    def issue(self, role: str, *, now_s: float, life_s: float) -> Path:
        """Write a role's token anew. Raises InvalidToken for a name that is no role's."""
        with self._locked():
            return self._issue(role, now_s, life_s)

    def renew(self, roles: Collection[str], *, now_s: float, life_s: float) -> list[str]:
        """Issue anew what is missing, of another key or issuer, or in the second half of its life; says which."""
        with self._locked():
            return self._renew(dict.fromkeys(roles, life_s), now_s)

    def publish_new_key(self) -> str:
        """Make a key and let brokers know it; tokens are signed by the former one still. Returns its id.

        Raises KeyStepRefused where one is published already that does not sign yet.
        """
        with self._locked():
            if self.folder.next_step().step is KeyStep.SIGN:
                raise KeyStepRefused("a new key is published already and does not sign yet: waybill pki token-key sign")
            # The signer is named in a file and is not the newest key: who is killed here signs with the former one.
            self._add_key()
            self._publish()
            return self.folder.key_states()[-1].key_id

    def newest_token(self, role: str, *, now_s: float, life_s: float) -> str:
        """A token of the newest key, whether or not that signs yet: to see whether a cluster knows it."""
        with self._locked():
            return self._token(self.folder.key_states()[-1], role, now_s, life_s)

    def sign_with_newest(self, lives_s: dict[str, float], *, now_s: float) -> list[str]:
        """From now on tokens are of the newest key; those of these roles are written anew, each for its life.

        Raises KeyStepRefused where no change of keys has begun.
        """
        with self._locked():
            newest, step = self.folder.key_states()[-1], self.folder.next_step().step
            if step is KeyStep.PUBLISH:
                raise KeyStepRefused("no new key is published that could sign: waybill pki token-key publish first")
            if step is KeyStep.SIGN:
                replace_durably(self.folder.signer_file, newest.key_id.encode())
            return self._renew(lives_s, now_s)

    def retire_former_keys(self) -> list[str]:
        """Delete every key but the one that signs; returns the ids of those that are gone.

        Raises KeyStepRefused where that would be the new one, or where there is no other.
        """
        with self._locked():
            step = self.folder.next_step().step
            if step is KeyStep.SIGN:
                raise KeyStepRefused(
                    "the newest key does not sign yet, and would be lost: waybill pki token-key sign first"
                )
            if step is KeyStep.PUBLISH:
                raise KeyStepRefused("there is no former key to retire: brokers are served the one that signs alone")
            former = [one for one in self.folder.key_states() if one.use is KeyUse.FORMER]
            # Deleted first: a key that is published and that nobody has signs nothing; the next start publishes anew.
            for one in former:
                one.file.unlink()
                until_file(one.file).unlink(missing_ok=True)
            self._publish()
            return [one.key_id for one in former]

    def check_wait(self, step: KeyStep, now_s: float) -> None:
        """Raises KeyStepRefused where this step is the next one, and the wait before it is not over."""
        wanted = self.folder.next_step()
        if wanted.step is not step or (wanted.from_s is not None and now_s >= wanted.from_s):
            return
        seen = "--early where you saw that everybody has what the step before brought"
        if wanted.from_s is None:
            raise KeyStepRefused(f"{wanted.why}: {seen}")
        moment = datetime.fromtimestamp(wanted.from_s, UTC)
        raise KeyStepRefused(f"too early: {wanted.why}, until {moment:%Y-%m-%dT%H:%M:%SZ}; {seen}")

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with (self.folder.keys / "lock").open("ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _issue(self, role: str, now_s: float, life_s: float) -> Path:
        (signer,) = (one for one in self.folder.key_states() if one.use is KeyUse.SIGNS)
        replace_durably(self.token_file(role), self._token(signer, role, now_s, life_s).encode(), mode=_SECRET)
        return self.token_file(role)

    def _token(self, key: TokenKeyState, role: str, now_s: float, life_s: float) -> str:
        token = self.folder.key_in(key.file).token(role, issuer=self.issuer, now_s=now_s, life_s=life_s)
        # Before anybody has the token: its key must not be retired sooner. What is unknown of a key stays unknown.
        if key.tokens_until_s is not None and key.tokens_until_s < now_s + life_s:
            replace_durably(until_file(key.file), str(int(now_s + life_s)).encode())
        return token

    def _renew(self, lives_s: dict[str, float], now_s: float) -> list[str]:
        due = [role for role, life_s in lives_s.items() if self._is_due(role, now_s, life_s)]
        for role in due:
            self._issue(role, now_s, lives_s[role])
        return due

    def _is_due(self, role: str, now_s: float, life_s: float) -> bool:
        claims = self.folder.claims(role)
        if claims is None:
            return True
        (signer,) = (one for one in self.folder.key_states() if one.use is KeyUse.SIGNS)
        # Half a life early: whoever reads its file once in that time never meets one that is over.
        former = (claims.key_id, claims.issuer) != (signer.key_id, self.issuer)
        return former or claims.expires_s - now_s < life_s / 2

    def _add_key(self) -> None:
        files = self.folder.key_files()
        file = self.folder.keys / f"{int(files[-1].stem) + 1 if files else 1:04}.pem"
        key = TokenKey(ec.generate_private_key(ec.SECP256R1()))
        # First: a key without it is one of which nobody knows what it signed.
        replace_durably(until_file(file), b"0")
        replace_durably(file, key.to_pem(), mode=_SECRET)
        if not files:
            replace_durably(self.folder.signer_file, key.key_id.encode())

    def _publish(self) -> None:
        documents = {
            DISCOVERY_PATH: discovery(self.issuer),
            CHECK_KEYS_PATH: check_keys(map(self.folder.key_in, self.folder.key_files())),
        }
        for path, content in documents.items():
            file = self.published / path.removeprefix("/")
            file.parent.mkdir(exist_ok=True)
            replace_durably(file, content)
