"""Accounts, tariffs and usage for the laws of the bill."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal

from hypothesis import strategies as st

from cloud_jobs.billing import Account, BilledVehicle, Meter, Period, Price, SeqRanges, Tariff, UsageRow
from cloud_jobs.billing.meters import MEASURE_OF
from telemetry import IntervalSet

MARCH = Period.parse("2026-03")
LONG_AFTER = datetime(2027, 1, 1, tzinfo=UTC)
ZONES = ("", "eu-centre", "us-port")
CURRENCIES = ("EUR", "JPY", "KWD")
VEHICLES = (
    BilledVehicle(tenant="fleet", device="eu-0001", region="eu"),
    BilledVehicle(tenant="fleet", device="eu-0002", region="eu"),
    BilledVehicle(tenant="fleet", device="us-0001", region="us"),
)


def account(currency: str = "EUR") -> Account:
    return Account(id="acme", name="Acme Logistics", currency=currency, tariff="standard", vehicles=VEHICLES)


def prices(amounts: dict[tuple[Meter, str], str]) -> tuple[Price, ...]:
    return tuple(
        Price(meter=meter, zone=zone, unit=MEASURE_OF[meter].unit, unit_amount=Decimal(amount))
        for (meter, zone), amount in amounts.items()
    )


@st.composite
def tariff_versions(draw: st.DrawFn, currency: str) -> list[Tariff]:
    """A version from the year's beginning and up to two that take over within March."""
    changes = draw(st.lists(st.integers(0, 31 * 24 - 1), max_size=2, unique=True))
    starts = [datetime(2026, 1, 1, tzinfo=UTC), *(MARCH.start + timedelta(hours=hour) for hour in changes)]
    keys = st.tuples(st.sampled_from([Meter.DISTANCE, Meter.DURATION, Meter.ENTRY]), st.sampled_from(ZONES))
    amounts = st.decimals(0, 100, places=4, allow_nan=False, allow_infinity=False).map(str)
    return [
        Tariff(
            id="standard",
            currency=currency,
            effective_from=start,
            prices=prices(draw(st.dictionaries(keys, amounts, max_size=6))),
        )
        for start in starts
    ]


@st.composite
def seq_ranges(draw: st.DrawFn) -> SeqRanges:
    starts = st.integers(1, 10_000)
    sets = st.lists(st.builds(lambda a, n: (a, a + n), starts, st.integers(0, 50)), min_size=1, max_size=3)
    return SeqRanges.of(draw(st.dictionaries(st.integers(1, 3), sets.map(IntervalSet), min_size=1, max_size=2)))


@st.composite
def usage_rows(draw: st.DrawFn, computed_at: datetime, max_size: int = 25) -> list[UsageRow]:
    """Rows of different keys, all computed at one moment, some of devices and hours that are not the bill's."""
    devices = st.sampled_from([*(vehicle.device for vehicle in VEHICLES), "stranger"])
    hours = st.integers(-5, 31 * 24 + 5).map(lambda hour: MARCH.start + timedelta(hours=hour))
    keys = st.lists(st.tuples(devices, hours, st.sampled_from(ZONES)), max_size=max_size, unique=True)
    return [
        UsageRow(
            tenant="fleet",
            device=device,
            hour=hour,
            zone=zone,
            distance_mm=draw(st.integers(0, 200_000_000)),
            duration_ms=draw(st.integers(0, 3_600_000)),
            entries=draw(st.integers(0, 5)),
            seq_ranges=draw(seq_ranges()),
            computed_at=computed_at,
            commit_number=computed_at.toordinal(),
        )
        for device, hour, zone in draw(keys)
    ]
