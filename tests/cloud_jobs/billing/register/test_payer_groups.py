"""Payers in groups, and their devices in parts: neither is more than a task can hold."""

from __future__ import annotations

import pytest

from cloud_jobs.billing.contracts import PayerContract
from cloud_jobs.billing.register import payer_groups as groups
from tests.cloud_jobs.billing.contracts.makers import MARCH, account, contracts, device, legal_entity, tariff


@pytest.fixture(scope="module")
def payers() -> list[PayerContract]:
    fleets = [account(f"payer-{at}", *(device(f"van-{at}-{number}") for number in range(3))) for at in range(20)]
    made = contracts(legal_entity(), tariff(), *fleets)
    return [made.contract_of(f"payer-{at}", MARCH) for at in range(20)]


def test_there_are_more_groups_than_tasks_where_one_group_would_be_too_large(
    payers: list[PayerContract], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(groups, "DEVICES_AT_ONCE", 16)
    monkeypatch.setattr(groups, "_LEAST_DEVICES", 1)
    made = groups.payer_groups(payers, tasks=2)
    assert [len(group) for group in made] == [2] * 10
    assert sorted(one.id for group in made for one in group) == sorted(one.id for one in payers)


@pytest.mark.parametrize(("rows_each", "parts"), [(0, 1), (100, 1), (20_000, 6), (10**9, 60)])
def test_devices_with_many_rows_are_read_fewer_at_a_time(
    payers: list[PayerContract], rows_each: int, parts: int
) -> None:
    made = [*groups.device_parts(payers, rows_each)]
    assert len(made) == parts
    assert sorted(device for part in made for device in part) == sorted(one for of in payers for one in of.devices)
