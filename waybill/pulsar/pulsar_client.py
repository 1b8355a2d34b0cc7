"""Access to a Pulsar cluster: tokens, TLS, and the one function that opens a client of its brokers.

The package `pulsar-client` is imported only where a client is opened.
"""

from __future__ import annotations

import base64
import contextlib
import json
import math
import os
import ssl
import string
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

import structlog
from pydantic import Field, SecretStr, model_validator

from waybill.daemon.tls import TlsSettings, certificate_faults, check_key_pair, load_key_pair, tls_context
from waybill.settings import Settings, file_fault, open_file

if TYPE_CHECKING:
    import pulsar


# Validity of a token (JWT, RFC 7519), without checking its signature. Pure.

_ENDS_SOON_S: Final = 2 * 86_400.0
_SOON_SHARE: Final = 0.2
"""Tokens that are renewed in the first half of their life never reach this share."""
_CLOCKS_APART_S: Final = 60.0
"""Our clock may be behind the issuer's by this much."""
_MAX_TOKEN: Final = 16 << 10
_LATEST_S: Final = 253_402_300_799.0
"""The last second of the year 9999, after which no moment has a name."""


class TokenLife(NamedTuple):
    """The role of a token ("": none), and its validity (seconds since 1970)."""

    role: str
    begins_s: float = -math.inf
    ends_s: float = math.inf

    def problem(self, now_s: float) -> str:
        """Why it is not valid now, as the end of a sentence; "": no problem is known."""
        if now_s >= self.ends_s:
            return f"ended at {_moment(self.ends_s)} (it is {_moment(now_s)} here): get a new one"
        if now_s < self.begins_s - _CLOCKS_APART_S:
            here = f"it is {_moment(now_s)} here"
            return f"is not valid before {_moment(self.begins_s)} ({here}): correct the clock, or get another token"
        return ""

    def ends_soon(self, now_s: float) -> str:
        """That it expires soon, as the end of a sentence; else ""."""
        # Without a start of its validity the share is unknown.
        soon_s = min(_ENDS_SOON_S, _SOON_SHARE * (self.ends_s - self.begins_s)) if math.isfinite(self.begins_s) else 0.0
        if not 0 < self.ends_s - now_s <= soon_s:
            return ""
        return f"ends at {_moment(self.ends_s)}, and was not renewed: get a new one"


def token_life(token: str) -> TokenLife | None:
    """None: the text is not a JWT, and only the cluster knows its validity."""
    parts = token.split(".")
    if len(parts) != 3 or len(token) > _MAX_TOKEN:
        return None
    try:
        claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
        role = claims.get("sub")
        begins_s = [_moment_s(claims[name]) for name in ("nbf", "iat") if name in claims]
        ends_s = _moment_s(claims["exp"]) if "exp" in claims else math.inf
    except (ValueError, TypeError, AttributeError, RecursionError, OverflowError):
        return None
    return TokenLife(role if isinstance(role, str) else "", min(begins_s, default=-math.inf), ends_s)


def _moment_s(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _LATEST_S:
        raise ValueError("is not a time")
    return float(value)


def _moment(moment_s: float) -> str:
    return f"{datetime.fromtimestamp(min(moment_s, _LATEST_S), UTC):%Y-%m-%dT%H:%M:%SZ}"


# TLS for connections without a Pulsar client: admin interface, clock, binary protocol.


def access_tls_context(access: PulsarAccess) -> ssl.SSLContext:
    """The TLS context of a connection without a Pulsar client. Raises PulsarAccessError."""
    pair = access.key_pair()
    if access.tls_ca is None and pair is None and access.tls_validate_hostname:
        return _usual_context()
    try:
        if access.tls_ca is None:
            context = ssl.create_default_context()
            if pair:
                load_key_pair(context, *pair)
        else:
            context = tls_context(TlsSettings(ca=access.tls_ca, certificate=access.tls_certificate, key=access.tls_key))
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        files = ", ".join(str(file) for file in (access.tls_ca, *(pair or ())) if file)
        raise PulsarAccessError(f"the TLS files cannot be used ({files}): {error}") from error
    context.check_hostname = access.tls_validate_hostname
    return context


@cache
def _usual_context() -> ssl.SSLContext:
    """Building one takes 20 ms: it reads every certificate of the machine."""
    return ssl.create_default_context()


# Warnings before a daemon's tokens expire.

_LOOK_S: Final = 10.0


def token_faults(accesses: Mapping[str, PulsarAccess], now_s: float) -> list[str]:
    """A line for each token that is not valid now; `accesses` by the table of the settings."""
    return [f"{_key(table, one)}: {said}" for table, one in accesses.items() if (said := one.token_problem(now_s))]


def tokens_ending(accesses: Mapping[str, PulsarAccess], now_s: float) -> list[str]:
    return [f"{_key(table, one)}: {said}" for table, one in accesses.items() if (said := one.token_ends_soon(now_s))]


def _key(table: str, access: PulsarAccess) -> str:
    return f"{table}.{'token_file' if access.token_file else 'token'}"


class TokenWatch:
    """Reads the tokens of a daemon again while it runs. `clock`: seconds since 1970."""

    def __init__(self, accesses: Iterable[PulsarAccess], clock: Callable[[], float] = time.time) -> None:
        # Two parts of a daemon may share an access.
        self._accesses, self._clock = tuple(dict.fromkeys(accesses)), clock
        self._look_at_s, self._ended, self._ending = -math.inf, "", ""

    @property
    def ended(self) -> str:
        """The tokens that are not valid now: role, file and expiry; "": none."""
        self._look()
        return self._ended

    @property
    def ending(self) -> str:
        """The tokens that expire soon: role, file and expiry; "": none."""
        self._look()
        return self._ending

    def _look(self) -> None:
        now_s = self._clock()
        # Also after the clock was set back.
        if self._look_at_s <= now_s < self._look_at_s + _LOOK_S:
            return
        self._look_at_s = now_s
        self._ended = "; ".join(filter(None, (one.token_problem(now_s) for one in self._accesses)))
        self._ending = "; ".join(filter(None, (one.token_ends_soon(now_s) for one in self._accesses)))


_log = structlog.get_logger(__name__)
_MAX_TOKEN_BYTES = 64 << 10
_TOKEN_CHARACTERS = frozenset(string.ascii_letters + string.digits + string.punctuation)


class PulsarAccessError(ValueError):
    """A token or a file of an access cannot be used; the message names the field and the file."""


class TokenNotGood(PulsarAccessError):
    """A token has expired or is not valid yet. The message names the role, the file and the expiry."""


class AccessRefusal(StrEnum):
    """Why a cluster refuses access; waiting does not help."""

    UNUSABLE = "unusable"
    """Our token or a TLS file cannot be used."""
    UNKNOWN = "unknown"
    """The cluster does not accept our token."""
    NO_RIGHT = "no-right"
    """Our role has no right to this."""
    HELD = "held"
    """Another producer has the topic exclusively (access mode Exclusive or ExclusiveWithFencing)."""


def close_quietly(opened: Any) -> None:
    """Close a client, or what one opened, even if the cluster does not answer; None is ignored."""
    import pulsar  # noqa: PLC0415 - as in `open_pulsar_client`

    if opened is not None:
        with contextlib.suppress(pulsar.PulsarException):
            opened.close()


def access_refusal(error: Exception) -> AccessRefusal | None:
    """The refusal that an error of a client means; None: the error may be temporary."""
    import pulsar  # noqa: PLC0415

    if isinstance(error, PulsarAccessError):
        return AccessRefusal.UNUSABLE
    if isinstance(error, pulsar.AuthorizationError):
        return AccessRefusal.NO_RIGHT
    if isinstance(error, pulsar.ProducerBusy | pulsar.ProducerFenced):
        return AccessRefusal.HELD
    return AccessRefusal.UNKNOWN if isinstance(error, pulsar.AuthenticationError) else None


def connected_producer(client: Any, topic: str, producer: Any, timeout_s: float) -> Any:
    """`producer` if it is connected, else a new one.

    A producer that lost its topic to another would keep messages until their time-out; a new one is refused at once.
    """
    if producer is not None and producer.is_connected():
        return producer
    close_quietly(producer)
    return client.create_producer(topic, send_timeout_millis=round(timeout_s * 1000))


class PulsarAccess(Settings):
    """Token and TLS files for a cluster; the same for brokers and admin REST."""

    token: SecretStr | None = Field(None, description="token (JWT) of our role")
    token_file: Path | None = Field(None, description="file that holds the token; read again at each use")
    tls_ca: Path | None = Field(None, description="PEM of the authorities that signed the brokers")
    tls_certificate: Path | None = Field(None, description="PEM of our own certificate (mutual TLS)")
    tls_key: Path | None = Field(None, description="PEM of our own private key (mutual TLS)")
    tls_validate_hostname: bool = Field(True, description="whether a broker's certificate must name its host")

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.token and self.token_file:
            raise ValueError(f"give {self._named('token')} or {self._named('token_file')}, not both")
        if bool(self.tls_certificate) != bool(self.tls_key):
            raise ValueError(f"{self._named('tls_certificate')} and {self._named('tls_key')} belong together")
        return self

    def token_problem(self, now_s: float) -> str:
        """Why our token is not valid now: role, file and expiry; "": no problem is known."""
        life = self._token_life()
        return self._token_text(said, life.role) if life is not None and (said := life.problem(now_s)) else ""

    def token_ends_soon(self, now_s: float) -> str:
        """That our token expires soon: role, file and expiry; else ""."""
        life = self._token_life()
        return self._token_text(said, life.role) if life is not None and (said := life.ends_soon(now_s)) else ""

    def check_token(self, now_s: float) -> None:
        """Raises TokenNotGood for a token that is not valid now.

        For commands. A daemon tries all the same: its file is read again, and its own clock may be wrong.
        """
        if problem := self.token_problem(now_s):
            raise TokenNotGood(problem)

    @property
    def role(self) -> str:
        """The role that our token names; "" where there is none."""
        life = self._token_life()
        return "" if life is None else life.role

    def _token_life(self) -> TokenLife | None:
        try:
            token = PulsarToken(self)
        except PulsarAccessError:
            return None  # `file_faults` names it
        return token_life(token()) if token else None

    def _token_text(self, said: str, role: str) -> str:
        whose = f"of {role}" if role else "of a role that it does not name"
        return f"token {whose}{f' in {self.token_file}' if self.token_file else ''} {said}"

    def as_toml(self) -> str:
        """Its fields as lines of a TOML table, without a token in clear text."""
        given = self.model_dump(exclude_none=True, exclude={"token"}, exclude_defaults=True)
        return "".join(
            f"{name} = {json.dumps(value if isinstance(value, bool) else str(value))}\n"
            for name, value in given.items()
        )

    def key_pair(self) -> tuple[Path, Path] | None:
        """Our certificate and key; None without mutual TLS."""
        if self.tls_certificate is None or self.tls_key is None:
            return None
        return self.tls_certificate, self.tls_key

    def file_faults(self) -> Iterator[tuple[str, str]]:
        """Faults of the token and the files: the field ("": all), and the reason."""
        try:
            PulsarToken(self)
        except PulsarAccessError as error:
            yield ("token_file" if self.token_file else "token"), str(error)
        for name, fault in certificate_faults(self.tls_ca, self.tls_certificate, self.tls_key):
            yield (name and f"tls_{name}"), fault

    @classmethod
    def _named(cls, field: str) -> str:
        return cls.model_fields[field].alias or field


class PulsarToken:
    """The token of an access; a file is read at each use, so that a rotated token takes effect at once.

    If the file cannot be read or is incomplete, the former token is used. It is callable, as the Pulsar client
    requires; calls never raise.
    """

    def __init__(self, access: PulsarAccess) -> None:
        """Raises PulsarAccessError if the first token cannot be read."""
        self._file = access.token_file
        self._warned = False
        self._last = access.token.get_secret_value() if access.token else None
        if self._file:
            self._last = _read_token(self._file)
        elif self._last is not None and not _is_token(self._last):
            raise PulsarAccessError("token: is not a valid token")

    def __bool__(self) -> bool:
        return self._last is not None

    def __call__(self) -> str:
        if self._file:
            try:
                self._last = _read_token(self._file)
                self._warned = False
            except PulsarAccessError as error:
                if not self._warned:
                    _log.warning("former token kept", error=str(error))
                self._warned = True
        assert self._last is not None  # callers look first whether there is one
        return self._last


def open_pulsar_client(
    service_url: str,
    access: PulsarAccess,
    *,
    timeout_s: int,
    connect_timeout_s: float | None = None,
    listener: str | None = None,
) -> pulsar.Client:
    """A client of a cluster's brokers. It connects at its first use; its log is silent.

    `timeout_s` bounds each operation, `connect_timeout_s` each connection (None: the same). A token file is read at
    each new connection. Raises PulsarAccessError; ValueError and RuntimeError for an invalid address.
    """
    import pulsar  # noqa: PLC0415 - an agent is installed without it

    authentication = None
    if pair := access.key_pair():
        _refuse_passphrase(*pair)
        authentication = pulsar.AuthenticationTLS(*map(str, pair))
    if token := PulsarToken(access):
        authentication = pulsar.AuthenticationToken(token)
    return pulsar.Client(
        service_url,
        authentication=authentication,
        operation_timeout_seconds=timeout_s,
        connection_timeout_ms=int((timeout_s if connect_timeout_s is None else connect_timeout_s) * 1000),
        listener_name=listener,
        tls_trust_certs_file_path=_text(access.tls_ca),
        tls_validate_hostname=access.tls_validate_hostname,
        tls_certificate_file_path=_text(access.tls_certificate),
        tls_private_key_file_path=_text(access.tls_key),
        # Results come as exceptions or receipts. The client's own log repeats them for each attempt to connect, and its
        # console logger writes to standard output.
        logger=pulsar.FileLogger(pulsar.LoggerLevel.Error, os.devnull),
    )


def _refuse_passphrase(certificate: Path, key: Path) -> None:
    """Raises for a key with a passphrase, for which the client would ask a terminal."""
    try:
        check_key_pair(certificate, key)
    except OSError:
        return  # half rotated, for instance: the client reads them again with each connection
    except ValueError as error:
        raise PulsarAccessError(f"tls_key: {key}: {error}") from error


def _read_token(path: Path) -> str:
    try:
        with open_file(path) as file:
            text = file.read(_MAX_TOKEN_BYTES).decode("ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise PulsarAccessError(f"token file {path} cannot be read: {file_fault(error)}") from error
    if not _is_token(text):
        raise PulsarAccessError(f"token file {path} holds no token")
    return text


def _is_token(text: str) -> bool:
    return bool(text) and _TOKEN_CHARACTERS.issuperset(text)


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)
