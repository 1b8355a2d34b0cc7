"""The operator of a local stack: a key in its folder, by which what is published and pushed on it is signed."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from waybill.identity.registry_messages import ENROLMENT_KIND
from waybill.identity.signatures import (
    NewOperator,
    OperatorKey,
    read_operator_key,
    read_operators,
    trust_operator,
    trusted_key,
    write_operator,
)

NAME = "operator"
_EVERY = ("*",)


class StackOperator(NamedTuple):
    """Where the private key is, and the file of the public keys that are trusted on the stack."""

    key_file: Path
    operators_file: Path

    @property
    def key(self) -> OperatorKey:
        """The private key. Raises OperatorKeyRefused."""
        return read_operator_key(self.key_file)

    def settings(self, service_url: str, admin_url: str, regions: Iterable[str], tenants: Iterable[str]) -> str:
        """What `waybill device` takes by itself, but for `[access]`."""
        facts = {
            "service_url": service_url,
            "admin_url": admin_url,
            "regions": sorted(regions),
            "tenants": sorted(tenants),
            "key": str(self.key_file),
            "operators": str(self.operators_file),
        }
        return "".join(f"{name} = {json.dumps(value)}\n" for name, value in facts.items())

    def reference_settings(self) -> str:
        """What the settings of the jobs say of whom they trust."""
        return f'[reference]\noperators = "{self.operators_file}"\n'


def stack_operator(folder: Path) -> StackOperator:
    """The operator of the stack in a folder: made when it is first asked for, and may do everything there.

    Raises SettingsError for a file of trusted keys that is none.
    """
    made = StackOperator(folder / f"{NAME}.key", folder / "operators.toml")
    if not made.key_file.exists():
        write_operator(made.key_file, _everything(OperatorKey.generate()))
    # apart from the key: whoever takes the file away and starts again finds the same operator
    if not (made.operators_file.exists() and made.key.key_id in read_operators(made.operators_file).keys):
        trust_operator(made.operators_file, _everything(made.key))
    return made


def daemon_key(operator: StackOperator, folder: Path, name: str) -> Path:
    """The key of an access daemon, made once and trusted on the stack for what it enrols alone."""
    file = folder / f"{name}.key"
    if not file.exists():
        write_operator(file, _enrolling(OperatorKey.generate(), name))
    key = read_operator_key(file)
    if key.key_id not in read_operators(operator.operators_file).keys:
        trust_operator(operator.operators_file, _enrolling(key, name))
    return file


def _enrolling(key: OperatorKey, name: str) -> NewOperator:
    return NewOperator(key, trusted_key(key, name, tenants=_EVERY, kinds=(ENROLMENT_KIND,)))


def _everything(key: OperatorKey) -> NewOperator:
    return NewOperator(key, trusted_key(key, NAME, tenants=_EVERY, kinds=_EVERY))
