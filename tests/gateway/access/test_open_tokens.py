"""The tokens that may log in: as many are kept and looked at as are open, however many were used."""

from __future__ import annotations

from datetime import datetime, timedelta

from gateway.access.enrolment import REPEAT_WITHIN, OpenTokens
from tests.gateway.access.test_enrolment_core import CLAIM, HASH, NOW, World, expected
from waybill.identity.registry import Claim, DeviceChange, DeviceEntry, revoke

CHANGE = DeviceChange(NOW, "ana", "stolen")
OPEN = {CLAIM: HASH}


def passwords(entry: DeviceEntry, at: datetime = NOW, region: str = "eu") -> dict[str, str]:
    tokens = OpenTokens(region)
    tokens.take(entry, NOW)
    return tokens.passwords(at)


def enrolled() -> DeviceEntry:
    world = World(expected())
    world.ask()
    return world.entry


def test_a_token_logs_in_while_it_is_open_and_for_a_while_after_it_was_used() -> None:
    assert passwords(expected()) == OPEN
    assert passwords(expected(), region="us") == {}
    assert passwords(expected(), NOW + timedelta(days=7)) == {}
    assert passwords(enrolled()) == OPEN
    assert passwords(enrolled(), NOW + REPEAT_WITHIN) == {}
    assert passwords(revoke(enrolled(), CHANGE)) == {}
    assert passwords(expected(claim=Claim(id="SN-1"))) == {}


def test_a_token_that_opens_is_used_or_ends_by_a_change_of_its_device_changes_something() -> None:
    tokens = OpenTokens("eu")
    assert tokens.take(expected(), NOW)
    assert not tokens.take(expected(), NOW), "the same again"
    assert tokens.take(enrolled(), NOW)
    assert tokens.take(revoke(enrolled(), CHANGE), NOW)
