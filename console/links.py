"""Links to one document that anybody may open who has them: signed, expiring, and revocable by their ids."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import re
import secrets
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NamedTuple

from cloud_jobs.job_settings import ConsoleSettings
from console.errors import ConsoleRefused, NotThere
from waybill.daemon.bounded_file import read_bounded, read_secret
from waybill.daemon.durable_file import alone_in, create_durably, replace_durably
from waybill.settings import file_fault

_LEAST_KEY: Final = 32
_MOST_KEY_BYTES: Final = 4_096
_MOST_REVOKED_BYTES: Final = 1_000_000
_PURPOSE: Final = b"waybill console link 1\n"
"""A signature for another purpose is none of a link."""
_TOKEN: Final = re.compile(r"([A-Za-z0-9_-]{8,400})\.([A-Za-z0-9_-]{43})")
_ID: Final = re.compile(r"[0-9a-f]{16}")
_HELP: Final = "this link is not valid, has expired or was revoked; ask its sender for a new one"


class SharedLink(NamedTuple):
    """What a link opens, and until when (excluded). `id`: the name by which it is revoked."""

    id: str
    number: str
    until: datetime


def make_link(settings: ConsoleSettings, number: str, until: datetime) -> tuple[SharedLink, str]:
    """A new link to a document with its token. Makes the file of the key if there is none. Raises ConsoleRefused."""
    if settings.link_key is not None:
        try:
            create_durably(settings.link_key, secrets.token_hex(_LEAST_KEY).encode(), mode=0o600)
        except OSError as error:
            raise ConsoleRefused(f"console.link_key: {settings.link_key}: {file_fault(error)}") from error
    link = SharedLink(secrets.token_hex(8), number, until.astimezone(UTC).replace(microsecond=0))
    text = json.dumps([link.id, link.number, round(link.until.timestamp())], separators=(",", ":")).encode()
    return link, f"{_encoded(text)}.{_encoded(_signature(_key(settings), text))}"


def open_link(settings: ConsoleSettings, token: str, now: datetime) -> SharedLink:
    """The link of a token. Raises NotThere, whatever is wrong with it; ConsoleRefused for wrong settings."""
    found = _TOKEN.fullmatch(token)
    if found is None or settings.link_key is None:
        raise NotThere(_HELP)
    text = _decoded(found.group(1))
    if not hmac.compare_digest(_signature(_key(settings), text), _decoded(found.group(2))):
        raise NotThere(_HELP)
    # signed: this process's own writing
    name, number, until = json.loads(text)
    link = SharedLink(name, number, datetime.fromtimestamp(until, UTC))
    if now >= link.until or link.id in revoked_ids(settings):
        raise NotThere(_HELP)
    return link


def revoked_ids(settings: ConsoleSettings) -> frozenset[str]:
    """The ids of revoked links. Raises ConsoleRefused if the file cannot be read; none is revoked without a file."""
    file = _revoked_file(settings)
    try:
        return frozenset(read_bounded(file, _MOST_REVOKED_BYTES).decode("ascii").split())
    except FileNotFoundError:
        return frozenset()
    except (OSError, ValueError) as error:
        raise ConsoleRefused(f"console.revoked_links: {file}: {file_fault(error)}") from error


def revoke_link(settings: ConsoleSettings, name: str) -> None:
    """Revokes a link; a console that runs refuses it from the next request on. Raises ConsoleRefused."""
    if not _ID.fullmatch(name):
        raise ConsoleRefused(f"{name[:100]!r} is not the id of a link; the command that made it printed 16 hex digits")
    file = _revoked_file(settings)
    try:
        # two commands at once lose no id
        with alone_in(file.absolute().parent):
            kept = sorted({*revoked_ids(settings), name})
            replace_durably(file, "".join(f"{one}\n" for one in kept).encode())
    except OSError as error:
        raise ConsoleRefused(f"console.revoked_links: {file}: {file_fault(error)}") from error


def _revoked_file(settings: ConsoleSettings) -> Path:
    """The file with the ids of revoked links; beside the key, if the settings name none."""
    if settings.revoked_links is None and settings.link_key is None:
        raise ConsoleRefused("console.link_key is not set: there are no links")
    return settings.revoked_links or Path(f"{settings.link_key}.revoked")


def _key(settings: ConsoleSettings) -> bytes:
    """Raises ConsoleRefused; no message has anything of the key."""
    file = settings.link_key
    if file is None:
        raise ConsoleRefused("console.link_key is not set; name a file, which `waybill console-link` makes")
    try:
        text = read_secret(Path(file), _MOST_KEY_BYTES).strip()
    except (OSError, ValueError) as error:
        raise ConsoleRefused(f"console.link_key: {file}: {file_fault(error)}") from None
    if len(text) < _LEAST_KEY:
        raise ConsoleRefused(f"console.link_key: {file}: it has fewer than {_LEAST_KEY} characters")
    return text.encode()


def _signature(key: bytes, text: bytes) -> bytes:
    return hmac.new(key, _PURPOSE + text, hashlib.sha256).digest()


def _encoded(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()


def _decoded(text: str) -> bytes:
    """Never an error: what is no base64 gives bytes that are not signed."""
    try:
        return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except ValueError:
        return b""
