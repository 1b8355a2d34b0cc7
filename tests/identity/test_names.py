"""A name says who somebody is, one way only, and fits into a certificate."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waybill.identity.broker_conf import broker_rules, rules_version
from waybill.identity.errors import NameRefused
from waybill.identity.names import (
    MAX_NAME_CHARACTERS,
    DeviceName,
    PrincipalKind,
    PrincipalName,
    device_name,
    parse_name,
    principal,
)

PARTS = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,30}", fullmatch=True)


@given(PARTS, PARTS)
def test_a_device_s_name_is_read_as_it_was_written(tenant: str, device: str) -> None:
    assert parse_name(device_name(tenant, device)) == DeviceName(tenant, device)


@given(st.sampled_from(PrincipalKind), PARTS)
def test_a_principal_s_name_is_read_as_it_was_written_and_no_device_has_it(kind: PrincipalKind, name: str) -> None:
    written = principal(kind, name)
    assert parse_name(written) == PrincipalName(kind, name)
    assert "/" not in written


@given(st.text(max_size=80))
def test_what_is_read_is_written_the_same(text: str) -> None:
    read = parse_name(text)
    assert read is None or str(read) == text


@pytest.mark.parametrize(
    ("tenant", "device"), [("", "bus"), ("acme", ""), ("a/b", "c"), ("+", "bus"), ("a", "#"), ("a" * 40, "b" * 40)]
)
def test_a_name_that_no_device_can_have_is_refused(tenant: str, device: str) -> None:
    with pytest.raises(NameRefused):
        device_name(tenant, device)


@pytest.mark.parametrize("name", ["gateway@", "@eu", "root@eu", "gateway@a/b", "gateway@+", "gateway@" + "x" * 60])
def test_a_name_that_no_principal_can_have_is_refused(name: str) -> None:
    assert parse_name(name) is None
    with pytest.raises(NameRefused):
        principal(*name.split("@"))


def test_the_longest_name_fits_and_one_more_character_does_not() -> None:
    assert len(device_name("t" * 31, "d" * 32)) == MAX_NAME_CHARACTERS
    with pytest.raises(NameRefused, match="65 characters"):
        device_name("t" * 32, "d" * 32)


def test_a_device_has_its_own_topics_by_patterns_and_a_gateway_every_device_s() -> None:
    lines = broker_rules(3, "eu", ["eu-1"], ()).splitlines()
    assert [line for line in lines if line.startswith("pattern")][:4] == [
        "pattern write waybill/1/%u/batch",
        "pattern write waybill/1/%u/config-result",
        "pattern read waybill/1/%u/ack",
        "pattern read waybill/1/%u/config",
    ]
    begin = lines.index("user gateway@eu-1")
    assert lines[begin + 1 : begin + 5] == [
        "topic read waybill/1/+/+/batch",
        "topic read waybill/1/+/+/config-result",
        "topic write waybill/1/+/+/ack",
        "topic write waybill/1/+/+/config",
    ]


def test_no_rule_is_for_everybody() -> None:
    lines = broker_rules(3, "eu", ["eu-1"], ()).splitlines()
    topics = [number for number, line in enumerate(lines) if line.startswith("topic")]
    assert min(topics) > lines.index("user gateway@eu-1")


def test_the_version_is_read_from_the_first_line() -> None:
    assert rules_version(broker_rules(17, "eu", [], ())) == 17
    assert rules_version("topic readwrite #\n") == 0
