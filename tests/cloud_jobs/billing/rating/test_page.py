"""The page about rating: each contract and usage on it gives the charges that stand below it."""

import re
import tomllib
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from cloud_jobs.billing.rating import Charge, ChargeKind, RatedAccount, cells_of_usage, rate
from cloud_jobs.billing.units import amount_text
from simulator.truth import TrueDays
from tests.cloud_jobs.billing.rating.worlds import ALWAYS, World, assigned, facts, row, table, visit

PAGE = (Path(__file__).resolve().parents[4] / "docs" / "rating.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"^```toml\n(.*?)^```\n.*?^```\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def world_of(example: dict[str, Any]) -> World:
    days = example.get("first_day", date(2026, 3, 1)), example.get("last_day", date(2026, 3, 31))
    return World(
        days=TrueDays(example.get("time_zone", "UTC"), *days),
        tariffs=tuple({"id": "standard", "effective_from": ALWAYS} | one for one in example["tariff"]),
        devices=tuple(
            assigned(device, begin=example.get("devices_from", ALWAYS)) for device in example.get("devices", ["van"])
        ),
        rates=tuple(example.get("rates", {}).items()),
    )


def line(charge: Charge, currency: str) -> str:
    key = charge.key
    if key.kind is ChargeKind.USAGE:
        assert key.meter is not None
        about = [key.device, key.meter.value, key.zone or "outside", key.window, str(charge.quantity), str(charge.free)]
    else:
        about = [key.device, key.kind.value]
    return f"{' '.join(filter(None, about))} | {key.price} | {amount_text(charge.amount_minor, currency)}\n"


def printed(found: RatedAccount) -> str:
    lines = [line(charge, found.currency) for charge in found.charges]
    sums = (amount_text(minor, found.currency) for minor in (found.net_minor, found.tax_minor, found.gross_minor))
    return "".join(lines) + "net {}, tax {}, gross {}\n".format(*sums)


@pytest.mark.parametrize(("contract", "expected"), EXAMPLES)
def test_the_example_gives_what_stands_below_it(contract: str, expected: str) -> None:
    example = tomllib.loads(contract)
    rows = [row(**one) for one in example.get("usage", [])]
    whole = world_of(example).contract
    alone = replace(whole, accounts=whole.accounts[:1])
    (used,) = cells_of_usage([alone], table(rows))
    events = [event for one in example.get("visit", []) for event in visit(**one)]
    assert printed(rate(alone, *used, facts=facts(events, alone))) == expected


def test_every_block_of_the_page_is_one_of_the_examples() -> None:
    assert len(EXAMPLES) == PAGE.count("```toml") == PAGE.count("\n```\n") // 3 > 6
