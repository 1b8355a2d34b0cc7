"""Operators' keys for tests."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from waybill.identity.operator_keys import OperatorKeys
from waybill.identity.signatures import NewOperator, OperatorKey, trust_operator, trusted_key


def operator(
    name: str = "anna",
    *,
    tenants: tuple[str, ...] = ("*",),
    kinds: tuple[str, ...] = ("*",),
    accounts: tuple[str, ...] = (),
    valid_from: datetime | None = None,
    valid_until: datetime | None = None,
) -> NewOperator:
    """A new key, and what is trusted of it."""
    key = OperatorKey.generate()
    trusted = trusted_key(
        key, name, tenants=tenants, kinds=kinds, accounts=accounts, valid_from=valid_from, valid_until=valid_until
    )
    return NewOperator(key, trusted)


def trusting(*operators: NewOperator) -> OperatorKeys:
    """The trusted keys of operators."""
    return OperatorKeys(keys={one.key.key_id: one.trusted for one in operators})


def operators_file(path: Path, *operators: NewOperator) -> Path:
    """A file of trusted keys."""
    for one in operators:
        trust_operator(path, one)
    return path
