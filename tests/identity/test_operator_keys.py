"""A key is trusted for what its table says, for its time, and for nothing else."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.identity.operators import operator, trusting
from waybill.identity.errors import OperatorKeyRefused, SignatureFault, SignatureRefused
from waybill.identity.operator_keys import OperatorKeys, Scope
from waybill.identity.signatures import (
    operators_toml,
    read_operator_key,
    read_operators,
    trust_operator,
    write_operator,
)
from waybill.settings import SettingsError, parse

NOW = datetime(2026, 11, 23, tzinfo=UTC)
SETTINGS = Scope("settings", frozenset({"acme"}))


def fault(keys: OperatorKeys, made: tuple[str, bytes], scope: Scope = SETTINGS, moment: datetime = NOW) -> str:
    with pytest.raises(SignatureRefused) as caught:
        keys.verify(*made, "push", [b"a"], scope=scope, moment=moment)
    return caught.value.fault


def test_a_key_that_is_not_trusted_and_a_signature_of_another_key_are_refused() -> None:
    anna, other = operator(), operator("other")
    keys = trusting(anna)
    assert fault(keys, (other.key.key_id, other.key.sign("push", [b"a"]))) == SignatureFault.UNKNOWN_KEY
    assert fault(keys, (anna.key.key_id, other.key.sign("push", [b"a"]))) == SignatureFault.ALTERED
    assert fault(keys, (anna.key.key_id, anna.key.sign("push", [b"b"]))) == SignatureFault.ALTERED
    assert fault(keys, (anna.key.key_id, b"")) == SignatureFault.ALTERED


@pytest.mark.parametrize(
    "scope",
    [
        Scope("settings", frozenset({"beta"})),
        Scope("settings", frozenset({"acme", "beta"})),
        Scope("device", frozenset({"acme"})),
        Scope("account", frozenset({"acme"}), frozenset({"beta-north"})),
        Scope("account", frozenset({"acme"}), frozenset({"acme"})),
        Scope("account", frozenset({"beta"}), frozenset({"acme-1"})),
        Scope("account", is_shared=True),
    ],
)
def test_a_key_speaks_for_its_tenants_accounts_and_kinds_alone(scope: Scope) -> None:
    one = operator(tenants=("acme",), kinds=("settings", "account"), accounts=("acme-*",))
    made = (one.key.key_id, one.key.sign("push", [b"a"]))
    assert fault(trusting(one), made, scope) == SignatureFault.NO_RIGHT


def test_a_key_speaks_for_what_is_its_own() -> None:
    one = operator(tenants=("acme",), kinds=("settings", "account"), accounts=("acme-*", "main"))
    made = (one.key.key_id, one.key.sign("push", [b"a"]))
    for scope in (SETTINGS, Scope("account", frozenset({"acme"}), frozenset({"acme-1", "main"}))):
        assert trusting(one).verify(*made, "push", [b"a"], scope=scope, moment=NOW) == one.trusted


def test_the_files_of_an_operator_say_what_was_made_and_nobody_else_reads_the_key(tmp_path: Path) -> None:
    anna, paul = operator(tenants=("acme",), accounts=("acme-*",), valid_until=NOW), operator("paul")
    write_operator(tmp_path / "keys" / "anna.key", anna)
    for one in (anna, paul):
        trust_operator(tmp_path / "operators.toml", one)
    assert read_operators(tmp_path / "operators.toml") == trusting(anna, paul)
    assert read_operator_key(tmp_path / "keys" / "anna.key").key_id == anna.key.key_id
    assert (tmp_path / "keys" / "anna.key").stat().st_mode & 0o777 == 0o600
    with pytest.raises(OperatorKeyRefused, match="never replaced"):
        write_operator(tmp_path / "keys" / "anna.key", paul)


@pytest.mark.parametrize("content", [b"", b"no key", b"x" * 10_000, b"-----BEGIN PRIVATE KEY-----\nAA==\n"])
def test_a_file_that_is_no_key_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "anna.key").write_bytes(content)
    with pytest.raises(OperatorKeyRefused, match=r"anna\.key"):
        read_operator_key(tmp_path / "anna.key")
    with pytest.raises(OperatorKeyRefused, match="cannot be read"):
        read_operator_key(tmp_path / "nobody.key")


def test_a_key_under_another_id_is_refused_and_its_id_is_said() -> None:
    one = operator()
    text = operators_toml({"0" * 16: one.trusted})
    with pytest.raises(SettingsError, match=one.key.key_id):
        parse(OperatorKeys, text, "operators.toml")
