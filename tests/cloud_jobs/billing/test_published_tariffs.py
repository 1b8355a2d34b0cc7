"""Each published tariff of docs/tariffs gives the amount that stands in its first lines, to the cent."""

import re
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from cloud_jobs.billing.billing_period import BillingPeriod
from cloud_jobs.billing.contracts import Contracts, contracts_of_toml
from cloud_jobs.billing.rating import RatedAccount, cells_of_usage, difference, rate
from cloud_jobs.billing.units import amount_text
from tests.cloud_jobs.billing.contracts.makers import account, device, legal_entity, payer, rows
from tests.cloud_jobs.billing.rating.worlds import Row, row, table

FILES = sorted((Path(__file__).resolve().parents[3] / "docs" / "tariffs").glob("*.toml"))
USED = re.compile(r"# (\d{4}-\d\d-\d\d \d\d:\d\d) (\S+): (.+)")
OWED = re.compile(r"# (\d{4}-\d\d) = ([\d.]+) ([A-Z]{3})(?:, note ([-\d.]+))?(?:, VAT ([\d.]+))?")
COLUMN = {
    "km": ("distance_mm", 1_000_000),
    "mi": ("distance_mm", 1_609_344),
    **dict.fromkeys(("entry", "entries"), ("entries", 1)),
    **dict.fromkeys(("event", "events"), ("events", 1)),
}


def bodies_of(text: str, devices: Iterable[str]) -> Iterator[dict[str, Any]]:
    """The contracts of a file; what it leaves out is as small as it can be."""
    found, faults = contracts_of_toml(text)
    assert faults == []
    bodies = [one.made.model_dump(mode="json", exclude_defaults=True) for one in found]
    yield legal_entity(id="seller")
    paid = [body for body in bodies if "payer" in body]
    if not paid:
        into = next((body["into"] for body in bodies if "into" in body), bodies[0].get("currency"))
        bodies.append(account(tariff=bodies[0]["id"], payer=payer(legal_entity="seller", currency=into)))
    for body in bodies:
        yield body | {"devices": [device(name) for name in devices]} if "payer" in body else body


def usage_of(text: str, time_zone: str, *, as_invoiced: bool) -> list[Row]:
    made = []
    for moment, name, said in USED.findall(text):
        begin = datetime.fromisoformat(moment).replace(tzinfo=ZoneInfo(time_zone)).astimezone(UTC)
        for part in said.split(", "):
            billed = part.removeprefix("invoiced as ")
            if as_invoiced == (billed != part) or "invoiced as " not in said:
                count, unit, *zone = billed.replace(" in ", " ").split()
                column, base = COLUMN[unit]
                quarters: Any = [int(Decimal(count) * base) if at == begin.minute // 15 else 0 for at in range(4)]
                place = zone[0] if zone else "*" if column == "events" else ""
                made.append(row(begin.replace(minute=0), place, name, **{column: quarters}))
    return made


def rated(contracts: Contracts, payer_id: str, period: BillingPeriod, usage: list[Row]) -> RatedAccount:
    contract = contracts.contract_of(payer_id, period)
    [used] = cells_of_usage([contract], table(usage))
    return rate(contract, *used)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_published_tariff_gives_its_amount_to_the_cent(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    assert text.count("\n") <= 30
    bodies = [*bodies_of(text, sorted({name for _, name, _ in USED.findall(text)}))]
    contracts, pays = Contracts(rows(*bodies)), next(body for body in bodies if "payer" in body)
    time_zone = pays["payer"]["time_zone"]
    periods = OWED.findall(text)
    for month, net, currency, note, vat in periods:
        period = BillingPeriod.parse(month, time_zone)
        found = rated(contracts, pays["id"], period, usage_of(text, time_zone, as_invoiced=False))
        assert (amount_text(found.net_minor, found.currency), found.currency) == (net, currency)
        if note:
            before = rated(contracts, pays["id"], period, usage_of(text, time_zone, as_invoiced=True))
            found = difference(before, found)
            assert amount_text(found.net_minor, currency) == note
        if vat:
            assert amount_text(found.tax_minor, currency) == vat
    assert periods


def test_all_of_them_are_there() -> None:
    numbers = {int(file.stem.partition("-")[0]) for file in FILES}
    assert numbers >= {1, 2, 3, 5, 6, 7, 13, 15, 18, 19, 25, 28, 29, 31, 32, 33, 37, 38}
