"""The access daemon's own key: what nobody would take is known before anything is signed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from gateway.access.access_key import AccessKey
from gateway.config import RegistrySettings
from tests.identity.operators import operator, operators_file, trusting
from tests.identity.registry_strategies import CERTIFICATE, CHANGE, expected
from waybill.identity.confirmations import decode_confirmation, encode_confirmation, is_of_its_region
from waybill.identity.errors import SignatureRefused
from waybill.identity.publication_id import next_publication_id
from waybill.identity.registry import enrol
from waybill.identity.registry_messages import WARRANT as WARRANT_PROPERTY
from waybill.identity.registry_messages import entry_body, signed_by
from waybill.identity.signatures import NewOperator, write_operator

NOW = datetime(2026, 11, 23, 12, tzinfo=UTC)
ENTRY = enrol(expected(), CERTIFICATE, CHANGE)


ANNA = operator("anna")
WARRANT = signed_by(ANNA.key)(
    expected(), entry_body(expected()), next_publication_id(None, int(NOW.timestamp() * 1000), 5), ""
)[WARRANT_PROPERTY]


def enroller(name: str = "access@eu", **more: Any) -> NewOperator:
    return operator(name, **({"kinds": ("enrolment",)} | more))


def key_of(folder: Path, own: NewOperator, *trusted: NewOperator) -> AccessKey:
    write_operator(folder / "own.key", own)
    operators = operators_file(folder / "operators.toml", *trusted)
    settings = RegistrySettings(
        tenants=("acme",), service_url="pulsar://host:6650", operators=operators, key=folder / "own.key"
    )
    return AccessKey(settings, "eu", settings.followed())


def test_a_key_that_is_trusted_signs_and_its_end_is_known(tmp_path: Path) -> None:
    own = enroller(valid_until=NOW + timedelta(days=1))
    key = key_of(tmp_path, own, own, ANNA)
    assert (key.problem(NOW), key.ends) == ("", NOW + timedelta(days=1))
    key.check(ENTRY, WARRANT, NOW)
    assert "valid" in key.problem(NOW + timedelta(days=1))
    with pytest.raises(SignatureRefused):
        key.check(ENTRY, WARRANT, NOW + timedelta(days=1))


def test_without_an_operators_word_that_readers_believe_nothing_is_to_be_signed(tmp_path: Path) -> None:
    own = enroller()
    with pytest.raises(SignatureRefused, match="warrant"):
        key_of(tmp_path, own, own, ANNA).check(ENTRY, "", NOW)
    # Her key was taken out: it was stolen.
    (tmp_path / "without").mkdir()
    with pytest.raises(SignatureRefused):
        key_of(tmp_path / "without", own, own).check(ENTRY, WARRANT, NOW)


@pytest.mark.parametrize("trusted", [enroller(), operator("anna")])
def test_a_key_that_the_daemon_itself_does_not_trust_is_a_problem(tmp_path: Path, trusted: NewOperator) -> None:
    key = key_of(tmp_path, enroller(), trusted)
    assert "push key access@eu --tenant '*' --kind enrolment" in key.problem(NOW)
    with pytest.raises(SignatureRefused):
        key.check(ENTRY, WARRANT, NOW)


def test_a_confirmation_counts_only_if_its_region_signed_it(tmp_path: Path) -> None:
    eu, us, anna = enroller(), enroller("access@us"), operator("anna")
    keys = trusting(eu, us, anna)
    body = encode_confirmation("eu", [("acme/bus-1", "an id")], 1.0)
    found = decode_confirmation(body)
    assert found is not None
    signed = {}
    for name, own in {"eu": eu, "us": us, "anna": anna}.items():
        (tmp_path / name).mkdir()
        key = key_of(tmp_path / name, own, eu, us, anna)
        signed[name] = key.sign_confirmation(body, int(NOW.timestamp() * 1000))
    assert is_of_its_region(found, body, signed["eu"], keys)
    for properties in (signed["us"], signed["anna"], {}):
        assert not is_of_its_region(found, body, properties, keys)
    other = encode_confirmation("eu", [("acme/bus-2", "an id")], 1.0)
    changed = decode_confirmation(other)
    assert changed is not None
    assert not is_of_its_region(changed, other, signed["eu"], keys)


@pytest.mark.parametrize("tenants", [[], ["acme", "acme"]])
def test_a_registry_without_tenants_is_an_error_that_says_how_to_name_them(tenants: list[str]) -> None:
    with pytest.raises(ValueError, match=r'as tenants = \["acme"\]: .*persistent://TENANT/registry/devices'):
        RegistrySettings.model_validate({"service_url": "pulsar://host:1", "unsigned": True, "tenants": tenants})
