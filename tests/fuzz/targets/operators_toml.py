"""Files of the operators' public keys that are trusted."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

from tests.fuzz.bounds import check_refusal
from tests.identity.operators import operator, trusting
from waybill.identity.operator_keys import OperatorKeys
from waybill.identity.signatures import operators_toml
from waybill.settings import SettingsError, parse
from waybill.settings.loading import MAX_PROBLEM_CHARACTERS, MAX_PROBLEMS

MAX_SECONDS = 0.15
FUZZED_BYTES = 4096
UNTIL = datetime(2027, 1, 1, tzinfo=UTC)


def seeds() -> Iterable[bytes]:
    """Good files, and such with keys that are long, of other names, of wrong types, or without end."""
    anna = operator(accounts=("acme", "acme-*"), kinds=("account", "settings"), tenants=("acme",), valid_until=UNTIL)
    bea = operator("bea", valid_from=UNTIL, valid_until=UNTIL + timedelta(days=1))
    good = operators_toml(trusting(anna, bea).keys).encode()
    yield good
    yield good.replace(b'name = "anna"', b'name = "anna\\u0000"')
    yield good.replace(b"[keys.", b"[keys.0")
    yield good.replace(b"2027-01-01T00:00:00", b"0001-01-01T00:00:00")
    yield good.replace(b'public = "', b'public = "A')
    yield b"[keys.4be1c87c8f0ee1a2]\ntenants = [" + b'"a", ' * 3000 + b"]\n"
    yield b"".join(b"[keys.%016x]\nname = 5\n" % number for number in range(500))
    yield b"keys = " + b"[" * 9000


def judge(data: bytes) -> None:
    """Trusted keys that are written and read again as they were, or all that is wrong with them in bounded words."""
    try:
        keys = parse(OperatorKeys, data.decode(), "operators.toml")
    except UnicodeDecodeError:
        return  # refused by `load`, which reads the file
    except SettingsError as error:
        check_refusal(error, (MAX_PROBLEMS + 1) * (MAX_PROBLEM_CHARACTERS + 10))
        return
    assert parse(OperatorKeys, operators_toml(keys.keys) or "keys = {}", "again") == keys
