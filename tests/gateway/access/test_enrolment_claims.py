"""Whose a claim is: the device's that asks, by its own entry, and a successor's when its predecessor has ended."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest

from gateway.access.enrolment import EnrolmentRates, EnrolmentRateSettings
from tests.gateway.access.test_enrolment_core import CLAIM, NOW, World, expected, granted, refusal
from waybill.identity.enrolment import RefusedBecause
from waybill.identity.registry import Beginning, Claim, DeviceChange, DeviceEntry, expect, move, revoke


def with_serial(tenant: str, device: str, *, at: datetime = NOW) -> DeviceEntry:
    claim, by = Claim(id="SN-1"), DeviceChange(at, "ana", "new")
    return expect(tenant, device, region="eu", claim=claim, change=by)


def test_a_claim_that_another_tenant_names_too_enrols_the_device_that_asks() -> None:
    for entries in ([with_serial("acme", "bus-1"), with_serial("zeta", "thief")], [with_serial("zeta", "thief")]):
        world = World(*entries)
        mine = world.ask(sender="claim@SN-1")
        if len(entries) == 1:
            assert refusal(mine) is RefusedBecause.UNKNOWN_CLAIM
        else:
            granted(mine)


@pytest.mark.parametrize("ends", [move, revoke, None])
def test_a_successor_has_its_predecessors_claim_once_that_one_has_ended_in_its_favour(ends: Callable[..., Any]) -> None:
    old, change = with_serial("acme", "bus-1"), DeviceChange(NOW, "ana", "sold")
    moved, begun = move(old, "zeta", Beginning(Claim(id="SN-1")), change)
    before = {move: moved, revoke: revoke(old, change), None: old}[ends]
    answer = World(before, begun).ask(name="zeta/bus-1", sender="claim@SN-1")
    if ends is move:
        granted(answer)
    else:
        assert refusal(answer) is RefusedBecause.NOT_ACTIVE, "killed between the two, or another change holds"


def test_who_names_anothers_claim_takes_nothing_of_that_tenants_share() -> None:
    mine, thief = with_serial("acme", "bus-1"), with_serial("zeta", "thief")
    world = World(mine, thief)
    for _ in range(200):  # zeta's own share is used up
        world.desk.rates.try_tenant("zeta", 0.0)
    granted(world.ask(sender="claim@SN-1"))


@pytest.mark.parametrize("claim", [CLAIM, "claim@SN-1"])
def test_a_claim_is_good_at_the_door_of_its_kind_alone(claim: str) -> None:
    world = World(expected() if claim == CLAIM else with_serial("acme", "bus-1"))
    at_the_other = world.send(world.request(), claim, is_factory=claim == CLAIM)
    assert refusal(world.perform(at_the_other)) is RefusedBecause.UNKNOWN_CLAIM
    granted(world.ask(sender=claim))


def test_who_signs_a_tokens_name_takes_nothing_of_the_share_and_turns_of_who_has_its_text() -> None:
    world = World(expected())
    world.desk.rates = EnrolmentRates(EnrolmentRateSettings(tenant_burst=2))
    for _ in range(20):
        world.send(world.request(), CLAIM, is_factory=True)
    granted(world.ask())
