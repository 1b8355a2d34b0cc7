"""Contracts and rows of usage of many payers, made up in arrays: the same for the same number."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from cloud_jobs.billing.contracts import Assignment, Tariff, Vat
from cloud_jobs.billing.rating import AccountTerms, RatingContract, TariffInForce
from cloud_jobs.lake.schemas import QUANTITIES, QUARTERS, USAGE, WHOLE_DEVICE

START, END = datetime(2026, 2, 28, 23, tzinfo=UTC), datetime(2026, 3, 31, 22, tzinfo=UTC)
HOURS = (END - START) // timedelta(hours=1)
ALWAYS = datetime(2026, 1, 1, tzinfo=UTC)
TENANT = "fleet"
ZONES = ("", "depot", "port", WHOLE_DEVICE)
ZONE_SHARES = (0.4, 0.15, 0.15, 0.3)


def tariff(effective_from: datetime, *, daily_cap: bool) -> Tariff:
    """Distance and time by zone, the first 100 km free, a price at night, bytes and active days."""
    distance = {"meter": "distance", "unit": "km"}
    prices: list[dict[str, Any]] = [
        distance | {"zone": zone, "unit_amount": amount} for zone, amount in (("", "0.45"), ("*", "0.2475"))
    ]
    if not daily_cap:
        prices = [one | {"allowance": "100"} for one in prices]
    hour = {"meter": "duration", "unit": "h"}
    prices += [hour | {"zone": zone, "unit_amount": "1.2"} for zone in ("", "*")]
    prices += [hour | {"window": "night", "unit_amount": "0.9"}]
    prices += [{"meter": "entry", "unit": "each", "zone": "*", "unit_amount": "2.5"}]
    prices += [{"meter": "transmitted", "unit": "MB", "unit_amount": "0.1", "pool": "account"}]
    prices += [{"meter": "active day", "unit": "day", "unit_amount": "0.35"}]
    night = {"id": "night", "days": ["mon", "tue", "wed", "thu", "fri"], "begin": "22:00:00", "end": "06:00:00"}
    cap = {"pool": "device", "per": "day", "amount": "15", "meters": ["distance", "duration"]}
    return Tariff.model_validate(
        {"id": "standard", "effective_from": effective_from, "currency": "EUR", "prices": prices, "windows": [night]}
        | {"caps": [cap] if daily_cap else [], "minimum_amount": "5"}
    )


def contracts(first: int, payers: int, devices: int, *, daily_cap: bool) -> list[RatingContract]:
    """Payers with so many devices each; the tariff changes in the middle of the month."""
    middle = datetime(2026, 3, 15, 12, tzinfo=UTC)
    versions = tuple(TariffInForce(begin, tariff(begin, daily_cap=daily_cap)) for begin in (ALWAYS, middle))
    vat = Vat.model_validate({"category": "S", "rate": Decimal(19)})
    return [
        RatingContract(
            payer=f"payer-{payer:06}",
            currency="EUR",
            time_zone="Europe/Berlin",
            start=START,
            end=END,
            vat=vat,
            accounts=(
                AccountTerms(
                    account=f"payer-{payer:06}",
                    tariffs=versions,
                    devices=tuple(
                        Assignment(tenant=TENANT, device=_name(payer, number), region="eu", begin=ALWAYS)
                        for number in range(devices)
                    ),
                ),
            ),
        )
        for payer in range(first, first + payers)
    ]


def _name(payer: int, number: int) -> str:
    return f"van-{payer:06}-{number:05}"


def usage(first: int, payers: int, devices: int, rows: int) -> pa.Table:
    """So many rows for each device of these payers, in a random order, each key once."""
    random = np.random.default_rng(first)
    count = payers * devices * rows
    device = np.repeat(np.arange(payers * devices), rows)
    zone = random.choice(len(ZONES), count, p=ZONE_SHARES)
    # hours of a device ascend by at least one, so no key is there twice
    step = random.integers(1, max(2, HOURS // rows), (payers * devices, rows))
    hour = np.cumsum(step, axis=1).reshape(-1) - 1
    order = random.permutation(count)
    device, zone, hour = device[order], zone[order], hour[order]
    names = np.array([_name(first + payer, number) for payer in range(payers) for number in range(devices)])
    whole = zone == ZONES.index(WHOLE_DEVICE)
    columns: dict[str, Any] = {
        "tenant": pa.array([TENANT] * count),
        "device": pa.array(names).take(pa.array(device)),
        "hour": pa.array(int(START.timestamp()) * 1_000_000 + hour * 3_600_000_000).cast(USAGE.field("hour").type),
        "zone": pa.array(ZONES).take(pa.array(zone)),
        "digest": pa.array([f"{number:016x}" for number in range(count)]),
        "commit_number": pa.array(np.ones(count, np.int64)),
        **quantities(random, zone, whole),
    }
    return pa.table(columns)


def quantities(random: np.random.Generator, zone: NDArray[np.int64], whole: NDArray[np.bool_]) -> dict[str, pa.Array]:
    """The columns of QUANTITIES for rows with these zones (numbers of ZONES); `whole`: rows of the whole device."""
    count, found = len(zone), {}
    most = {"distance_mm": 12_000_000, "duration_ms": 900_001, "entries": 2, "events": 2, "content_bytes": 4_000}
    for name in QUANTITIES:
        values = random.integers(0, most.get(name, 1), (count, QUARTERS))
        values[whole != (name in {"events", "content_bytes"})] = 0
        if name == "entries":
            values[zone == ZONES.index("")] = 0
        offsets = pa.array(np.arange(count + 1, dtype=np.int32) * QUARTERS)
        found[name] = pa.ListArray.from_arrays(offsets, pa.array(values.reshape(-1)))
    return found
