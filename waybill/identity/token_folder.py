"""What a folder of tokens holds, and which step of a change of keys is next. Nothing here writes.

keys/0001.pem ...        private keys, oldest first; which one signs is named in `keys/signer`
keys/0001.until ...      when the last token that a key signed ends (seconds since 1970; 0: it signed none)
published/               what brokers are served: the discovery document and the keys that tokens are checked with
tokens/ROLE.token        a role's token: who holds it reads it again at each connection
"""

import json
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

from waybill.daemon.bounded_file import read_bounded
from waybill.identity.errors import IdentityError
from waybill.identity.tokens import DISCOVERY_PATH, InvalidToken, TokenClaims, TokenKey, read_claims
from waybill.settings import read_file

__all__ = ["CLUSTERS_READ_S", "KeyStep", "KeyStepRefused", "KeyUse", "NextStep", "TokenFolder", "TokenKeyState"]

CLUSTERS_READ_S = 600
"""Ten times what brokers are made to wait before they read the keys again (`waybill topology broker-conf`)."""
_MAX_DISCOVERY_BYTES = 64 << 10
_MAX_UNTIL_BYTES = 11


class KeyStepRefused(IdentityError):
    """A step of a change of keys is out of order or too early; the message says which comes first, or since when."""


class KeyStep(StrEnum):
    """A change of keys has three steps, and a wait before each of the last two."""

    PUBLISH = "publish"
    SIGN = "sign"
    RETIRE = "retire"


class KeyUse(StrEnum):
    """What a key is for now."""

    FORMER = "former"
    """Tokens that it signed are taken until it is retired; it signs none."""
    SIGNS = "signs"
    """Tokens are signed with it."""
    WAITS = "waits"
    """Brokers are served it, and it does not sign yet."""


class TokenKeyState(NamedTuple):
    """A key in its folder. `tokens_until_s`: when its last token ends; 0: it signed none; None: nobody knows."""

    key_id: str
    use: KeyUse
    file: Path
    made_s: float
    tokens_until_s: float | None


class NextStep(NamedTuple):
    """The step that is next, and from when on it is taken without `--early`; None: nobody knows."""

    step: KeyStep
    from_s: float | None
    why: str


class TokenFolder:
    """The files of one folder, read anew with each question."""

    def __init__(self, folder: Path) -> None:
        self.keys, self.tokens, self.published = folder / "keys", folder / "tokens", folder / "published"

    @property
    def signer_file(self) -> Path:
        """It names the key that signs."""
        return self.keys / "signer"

    @property
    def discovery_file(self) -> Path:
        """It names the issuer to brokers."""
        return self.published / DISCOVERY_PATH.removeprefix("/")

    @property
    def issuer(self) -> str | None:
        """Whose tokens these are, by what is published; None where nothing is."""
        try:
            content = read_bounded(self.discovery_file, _MAX_DISCOVERY_BYTES)
            issuer = json.loads(content)["issuer"]
        except (OSError, ValueError, TypeError, KeyError, RecursionError):
            return None
        return issuer if isinstance(issuer, str) else None

    def known_issuers(self) -> set[str]:
        """Whose tokens these are: by what is published, and where that cannot be read by the tokens themselves."""
        if (published := self.issuer) is not None:
            return {published}
        return {claims.issuer for role in self.roles if (claims := self.claims(role)) is not None}

    @property
    def has_signed(self) -> bool:
        """Whether a key may have signed a token."""
        return any(_until_s(file) != 0 for file in self.key_files())

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
        at = ids.index(self._signer_among(ids))
        uses = [KeyUse.FORMER] * at + [KeyUse.SIGNS] + [KeyUse.WAITS] * (len(ids) - at - 1)
        return [
            TokenKeyState(key_id, use, file, file.stat().st_mtime, _until_s(file))
            for key_id, use, file in zip(ids, uses, files, strict=True)
        ]

    def next_step(self) -> NextStep:
        """The next step of a change of keys. Raises InvalidToken, OSError."""
        keys = self.key_states()
        if keys[-1].use is KeyUse.WAITS:
            why = "clusters may not have read the new key yet"
            return NextStep(KeyStep.SIGN, keys[-1].made_s + CLUSTERS_READ_S, why)
        former = [one for one in keys if one.use is KeyUse.FORMER]
        if not former:
            return NextStep(KeyStep.PUBLISH, 0, "one key is published, and it signs")
        if unknown := next((one for one in former if one.tokens_until_s is None), None):
            why = f"nobody recorded until when the tokens of the key {unknown.key_id} are good"
            return NextStep(KeyStep.RETIRE, None, why)
        last = max(former, key=lambda one: one.tokens_until_s or 0)
        return NextStep(KeyStep.RETIRE, last.tokens_until_s, f"a token of the former key {last.key_id} may be in use")

    def _signer_among(self, ids: list[str]) -> str:
        try:
            named = read_file(self.signer_file).decode(errors="replace")
        except FileNotFoundError:
            if not ids:
                raise InvalidToken(
                    f"{self.keys} has no key of tokens: waybill pki token ROLE makes the first one"
                ) from None
            # Killed between the first key and its naming: there is no other one.
            return ids[0]
        if named not in ids:
            raise InvalidToken(f"{self.keys}: signer names {named!r:.40}, and no key here is called so")
        return named


def until_file(key_file: Path) -> Path:
    """Where is recorded when the last token of a key ends."""
    return key_file.with_suffix(".until")


def _until_s(key_file: Path) -> float | None:
    try:
        return float(int(read_bounded(until_file(key_file), _MAX_UNTIL_BYTES)))
    except (OSError, ValueError):
        return None
