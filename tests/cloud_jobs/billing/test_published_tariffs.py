"""Each published tariff of docs/tariffs gives the amount that stands in its first lines, to the cent."""

import re
import tomllib
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from cloud_jobs.billing.billing_period import BillingPeriod
from cloud_jobs.billing.contracts import Contracts, contracts_of_toml
from cloud_jobs.billing.rating import PeriodUsage, RatedAccount, cells_of_usage, difference, rate
from cloud_jobs.billing.units import amount_text
from simulator.truth import TrueContracts, TruthError, month_of
from tests.cloud_jobs.billing.contracts.makers import account, device, legal_entity, payer, rows
from tests.cloud_jobs.billing.rating.test_against_the_truth import true_facts
from tests.cloud_jobs.billing.rating.worlds import Row, facts, passage, row, table, true_quarters, visit
from tests.truth.owed import owed_by

FILES = sorted((Path(__file__).resolve().parents[3] / "docs" / "tariffs").glob("*.toml"))
USED = re.compile(r"# (\d{4}-\d\d-\d\d \d\d:\d\d) (\S+): (.+)")
FACT = re.compile(r"(visit|passage) of (\S+?)(?: (until) ([\d -]*\d\d:\d\d)| (forward|backward))?")
HAS = re.compile(r"^# (\S+) has (.+)", re.MULTILINE)
OWED = re.compile(r"# (\d{4}-\d\d) = ([\d.]+) ([A-Z]{3})(?:, note ([-\d.]+))?(?:, VAT ([\d.]+))?(?:, to pay ([\d.]+))?")
COLUMN = {
    "km": ("distance_mm", 1_000_000),
    "mi": ("distance_mm", 1_609_344),
    **dict.fromkeys(("entry", "entries"), ("entries", 1)),
    "min": ("duration_ms", 60_000),
    **dict.fromkeys(("event", "events"), ("events", 1)),
    **dict.fromkeys(("crossing", "crossings"), ("crossings", 1)),
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
    attributes = {name: tomllib.loads(f"of = {{ {said} }}")["of"] for name, said in HAS.findall(text)}
    stated = {one["device"] for body in bodies for one in body.get("devices", ())}
    assigned = [device(name, attributes=attributes.get(name, {})) for name in devices if name not in stated]
    for body in bodies:
        yield body | {"devices": [*body.get("devices", ()), *assigned]} if "payer" in body else body


def utc(moment: str, time_zone: str) -> datetime:
    return datetime.fromisoformat(moment).replace(tzinfo=ZoneInfo(time_zone)).astimezone(UTC)


def events_of(text: str, time_zone: str) -> Iterator[Row]:
    """The events of visits, which end on the same day if they have no date, and of passages."""
    for moment, name, said in USED.findall(text):
        for found in filter(None, map(FACT.fullmatch, said.split(", "))):
            what, place, ends, end, direction = found.groups()
            begin = utc(moment, time_zone)
            if what == "visit":
                until = utc(end if "-" in end else f"{moment[:10]} {end}", time_zone) if ends else None
                yield from visit(place, begin, until, name)
            else:
                yield from passage(place, begin, direction or "forward", name)


def usage_of(text: str, time_zone: str, *, as_invoiced: bool) -> list[Row]:
    made = []
    for moment, name, said in USED.findall(text):
        begin = utc(moment, time_zone)
        for part in said.split(", "):
            billed = part.removeprefix("invoiced as ")
            if FACT.fullmatch(billed):
                continue
            if as_invoiced == (billed != part) or "invoiced as " not in said:
                count, unit, *zone = billed.replace(" in ", " ").split()
                column, base = COLUMN[unit]
                quarters: Any = [int(Decimal(count) * base) if at == begin.minute // 15 else 0 for at in range(4)]
                place = zone[0] if zone else "*" if column == "events" else ""
                made.append(row(begin.replace(minute=0), place, name, **{column: quarters}))
    return made


def rated(
    contracts: Contracts, payer_id: str, period: BillingPeriod, usage: list[Row], events: list[Row]
) -> RatedAccount:
    contract = contracts.contract_of(payer_id, period)
    of = (*contract.earlier, contract)
    *earlier, last = (PeriodUsage(*cells_of_usage([one], table(usage))[0], facts(events, one, usage)) for one in of)
    return rate(contract, last.cells, last.metered, facts=last.facts, earlier=earlier)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_published_tariff_gives_its_amount_to_the_cent(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    assert text.count("\n") <= 30
    bodies = [*bodies_of(text, sorted({name for _, name, _ in USED.findall(text)}))]
    contracts, pays = Contracts(rows(*bodies)), next(body for body in bodies if "payer" in body)
    time_zone = pays["payer"]["time_zone"]
    periods, events = OWED.findall(text), [*events_of(text, time_zone)]
    for month, net, currency, note, vat, to_pay in periods:
        period = BillingPeriod.parse(month, time_zone)
        found = rated(contracts, pays["id"], period, usage_of(text, time_zone, as_invoiced=False), events)
        assert (amount_text(found.net_minor, found.currency), found.currency) == (net, currency)
        if note:
            before = rated(contracts, pays["id"], period, usage_of(text, time_zone, as_invoiced=True), events)
            found = difference(before, found)
            assert amount_text(found.net_minor, currency) == note
        if vat:
            assert amount_text(found.tax_minor, currency) == vat
        if to_pay:
            assert amount_text(found.payable_minor, currency) == to_pay
    assert periods


def kind_of(body: dict[str, Any]) -> str:
    keys = {"prices": "tariff", "into": "exchange_rate", "tariff": "account", "number_prefix": "legal_entity"}
    return next((kind for key, kind in keys.items() if key in body), "calendar")


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_the_truth_gives_the_same_amount(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    bodies = [*bodies_of(text, sorted({name for _, name, _ in USED.findall(text)}))]
    pays = next(body for body in bodies if "payer" in body)
    time_zone = pays["payer"]["time_zone"]
    try:
        contracts = TrueContracts([{kind_of(body): [body]} for body in bodies])
    except TruthError as error:
        pytest.skip(str(error))
    for month, net, currency, *_ in OWED.findall(text):
        days = month_of(time_zone, *map(int, month.split("-")))
        usage = true_quarters(usage_of(text, time_zone, as_invoiced=False))
        found = owed_by(contracts, pays["id"], days, usage, true_facts([*events_of(text, time_zone)]))
        assert (amount_text(found.net_minor, found.currency), found.currency) == (net, currency)


def test_all_of_them_are_there() -> None:
    numbers = {int(file.stem.partition("-")[0]) for file in FILES}
    assert numbers >= {
        1,
        2,
        3,
        5,
        6,
        7,
        9,
        11,
        12,
        13,
        14,
        15,
        18,
        19,
        21,
        23,
        25,
        28,
        29,
        31,
        32,
        33,
        35,
        37,
        38,
        22,
        30,
        45,
        51,
        52,
        53,
        54,
        61,
        62,
        63,
        64,
    }
