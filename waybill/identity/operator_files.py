"""The files of operators' keys: one private key for each person, and the list of the public ones that are trusted."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from waybill.daemon.durable_file import create_durably, replace_durably
from waybill.daemon.folder_lock import alone_in
from waybill.identity.errors import OperatorKeyRefused
from waybill.identity.operator_keys import OperatorKeys, TrustedKey
from waybill.identity.signatures import OperatorKey
from waybill.settings import file_fault, load, open_file, parse

__all__ = [
    "NewOperator",
    "operators_toml",
    "read_operator_key",
    "read_operators",
    "trust_operator",
    "trusted_key",
    "write_operator",
]

_OWNER_ONLY = 0o600
_MAX_KEY_BYTES = 8192


class NewOperator(NamedTuple):
    """The private key of an operator, and what is trusted of it."""

    key: OperatorKey
    trusted: TrustedKey


def write_operator(path: Path, operator: NewOperator) -> None:
    """Writes the private key for its owner alone. Raises OperatorKeyRefused where there is a file; OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not create_durably(path, operator.key.private_pem(), mode=_OWNER_ONLY):
        raise OperatorKeyRefused(f"{path}: there is a file already, and a key is never replaced: take another name")


def trust_operator(path: Path, operator: NewOperator) -> None:
    """Adds the public key to a file of trusted keys, which may not exist yet. Raises SettingsError, OSError."""
    # Of two that add a key at once neither may write what it read before the other had written.
    with alone_in(path.parent):
        known = dict(read_operators(path).keys) if path.exists() else {}
        text = operators_toml(known | {operator.key.key_id: operator.trusted})
        # before the write: what nobody can read would end every check on this machine
        parse(OperatorKeys, text, str(path))
        replace_durably(path, text.encode())


def read_operator_key(path: Path) -> OperatorKey:
    """The private key of a file. Raises OperatorKeyRefused."""
    try:
        with open_file(path) as file:
            return OperatorKey.from_pem(file.read(_MAX_KEY_BYTES))
    except OSError as error:
        raise OperatorKeyRefused(f"{path}: cannot be read: {file_fault(error)}") from error
    except OperatorKeyRefused as refused:
        raise OperatorKeyRefused(f"{path}: {refused}") from refused


def read_operators(path: Path) -> OperatorKeys:
    """The trusted keys of a file. Raises SettingsError."""
    return load(OperatorKeys, path)


def operators_toml(keys: Mapping[str, TrustedKey]) -> str:
    """The text of a file of trusted keys."""
    return "\n".join(_table(key_id, key) for key_id, key in keys.items())


def trusted_key(
    key: OperatorKey,
    name: str,
    *,
    tenants: tuple[str, ...],
    kinds: tuple[str, ...],
    accounts: tuple[str, ...] = (),
    valid_from: datetime | None = None,
    valid_until: datetime | None = None,
) -> TrustedKey:
    """What others trust of a key. Raises pydantic's ValidationError."""
    return TrustedKey(
        name=name,
        public=base64.b64encode(key.public).decode(),
        tenants=tenants,
        kinds=kinds,
        accounts=accounts,
        valid_from=valid_from,
        valid_until=valid_until,
    )


def _table(key_id: str, key: TrustedKey) -> str:
    # the patterns of names, tenants, accounts and kinds let nothing in that TOML would have to quote
    lists = {"tenants": key.tenants, "accounts": key.accounts, "kinds": key.kinds}
    moments = {"valid_from": key.valid_from, "valid_until": key.valid_until}
    lines = [f"[keys.{key_id}]", f'name = "{key.name}"', f'public = "{key.public}"']
    lines += [f"{name} = {json.dumps(some)}" for name, some in lists.items() if some]
    lines += [f"{name} = {moment.isoformat()}" for name, moment in moments.items() if moment is not None]
    return "\n".join(lines) + "\n"
