"""A price that changes and an account that ends in the middle of a month, as `waybill bill close` bills them."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from cloud_jobs.billing.register.commands import app
from tests.cloud_jobs.billing.contracts.makers import account, device, legal_entity, price, tariff, tiered
from tests.cloud_jobs.billing.register.billed_lake import BilledLake, used

MIDDLE = "2026-03-16T23:00:00Z"
LAST_DAY = "2026-03-30T22:00:00Z"
MARCH_BEGINS = "2026-02-28T23:00:00Z"


def closed(billed: BilledLake) -> dict[str, int]:
    """What each payer owes for March; all closings are final."""
    found = CliRunner().invoke(app, ["close", "--period", "2026-03", "--json", "--lake", str(billed.lake.location)])
    assert found.exit_code == 0, found.output
    return {one["payer"]: one["net_minor"] for one in json.loads(found.stdout)}


def two_prices(name: str, first: dict[str, Any], second: dict[str, Any]) -> list[dict[str, Any]]:
    return [tariff(first, id=name), tariff(second, id=name, effective_from=MIDDLE)]


def test_a_price_that_changes_keeps_what_is_left_of_the_allowance_and_the_place_in_the_tiers(tmp_path: Path) -> None:
    """60 km before and 60 km after the change. It was 9.10 and 102.10: allowance and first tier were given twice."""
    names = [f"van-{number}" for number in range(1, 6)]
    billed = BilledLake.create(tmp_path, *names)
    free = {"allowance": "50"}
    tariffs = [
        tariff(price("0.45", **free), id="same"),
        *two_prices("rise", price("0.45", **free), price("0.46", **free)),
        *two_prices("tier", tiered(("50", "1.00"), (None, "0.10")), tiered(("50", "1.00"), (None, "0.11"))),
        *two_prices("more", price("0.45", **free), price("0.45", allowance="60")),
        *two_prices("repeated", price("0.45", **free), price("0.450", **free)),
    ]
    agreed = ["same", "rise", "tier", "more", "repeated"]
    payers = [account(name, device(van), tariff=name) for name, van in zip(agreed, names, strict=True)]
    billed.publish(legal_entity(), *tariffs, *payers)
    days = [datetime(2026, 3, day, 6, tzinfo=UTC) for day in (10, 20)]
    billed.use(*(used(van, 60_000, day) for van in names for day in days))
    assert closed(billed) == {
        "same": 3150,
        # 10 km at 0.45 and 60 at 0.46
        "rise": 3210,
        # 50 km at 1.00, 10 at 0.10 and 60 at 0.11
        "tier": 5760,
        # 10 of the 60 free kilometres were left
        "more": 2700,
        "repeated": 3150,
    }


def test_who_is_there_for_a_part_of_the_month_pays_a_part_of_the_minimum_and_who_has_no_device_none(
    tmp_path: Path,
) -> None:
    """Each of these paid the whole fee, for ever."""
    names = [f"van-{number}" for number in range(1, 6)]
    billed = BilledLake.create(tmp_path, *names)
    late: dict[str, Any] = {"effective_from": LAST_DAY}
    billed.publish(
        legal_entity(),
        tariff(price(), minimum_amount="100"),
        tariff(price(), minimum_amount="100", proration="whole", id="whole"),
        tariff(price(), minimum_amount="100", minimum_without_devices=True, id="standby"),
        account("begins-31st", device("van-1", begin=LAST_DAY), **late),
        account("begins-31st-whole", device("van-2", begin=LAST_DAY), tariff="whole", **late),
        account("ends-17th", device("van-3"), effective_until=MIDDLE),
        account("device-ended", device("van-4", end="2026-01-14T23:00:00Z")),
        account("gone", device("van-4", begin="2026-01-20T23:00:00Z"), effective_until=MARCH_BEGINS),
        account("no-device"),
        account("no-device-standby", tariff="standby"),
        account("whole-month", device("van-5")),
    )
    billed.use()
    assert closed(billed) == {
        "begins-31st": 323,
        "begins-31st-whole": 10000,
        "ends-17th": 5161,
        "device-ended": 0,
        "no-device": 0,
        "no-device-standby": 10000,
        "whole-month": 10000,
    }
