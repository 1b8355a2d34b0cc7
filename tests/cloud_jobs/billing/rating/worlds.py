"""Contracts and usage for the laws of rating: as rating takes them, and as the truth of the simulator reads them."""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from itertools import pairwise
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from cloud_jobs.billing.billing_period import BillingPeriod
from cloud_jobs.billing.contracts import (
    Account,
    AccountContract,
    Assigned,
    FeeSpan,
    LegalEntity,
    PayerContract,
    Tariff,
    TariffSpan,
)
from cloud_jobs.billing.contracts.published import EVER, micros
from cloud_jobs.billing.rating import Charge, PeriodUsage, RatedAccount, cells_of_usage, rate
from cloud_jobs.billing.rating.facts import EVENT_COLUMNS, DeviceFacts, driven_quarters, facts_of
from cloud_jobs.explain import explain
from cloud_jobs.explain.explanation import Explanation
from cloud_jobs.lake.coverage import TenantDevice
from cloud_jobs.lake.schemas import GEOFENCE_EVENTS
from simulator.truth import TrueContracts, TrueDays, TrueQuarter, quarters_of
from tests.cloud_jobs.billing.contracts.makers import legal_entity

QUANTITIES = ("distance_mm", "duration_ms", "entries", "crossings", "events", "content_bytes", "inferred_entries")
QUARTER = timedelta(minutes=15)
ALWAYS = datetime(2025, 1, 1, tzinfo=UTC)
UNITS = {
    "distance": "km",
    "duration": "h",
    "entry": "each",
    "crossing": "each",
    "event": "each",
    "transmitted": "MB",
    "active day": "day",
    "inferred entry": "each",
}
PERIODS = (
    TrueDays("UTC", date(2026, 3, 1), date(2026, 3, 2)),
    TrueDays("Europe/Berlin", date(2026, 3, 28), date(2026, 3, 29)),
    TrueDays("Europe/Berlin", date(2026, 10, 25), date(2026, 10, 25)),
    TrueDays("Asia/Kolkata", date(2026, 3, 31), date(2026, 4, 1)),
    TrueDays("Australia/Lord_Howe", date(2026, 4, 4), date(2026, 4, 5)),
    TrueDays("America/Santiago", date(2026, 9, 5), date(2026, 9, 6)),
)
"""Also the nights when clocks change: by an hour, by half an hour, and across midnight."""

Row = dict[str, Any]


def row(hour: datetime, zone: str = "", device: str = "van", commit: int = 1, **quarters: Sequence[int]) -> Row:
    """A row of usage; each quantity as the four quarters of the hour."""
    made: Row = {"tenant": "fleet", "device": device, "hour": hour, "zone": zone}
    made |= {name: list(quarters.get(name, (0, 0, 0, 0))) for name in QUANTITIES}
    digest = hashlib.sha256(repr(sorted(made.items())).encode()).hexdigest()[:16]
    return made | {"digest": digest, "commit_number": commit}


def table(rows: Iterable[Row]) -> pa.Table:
    lists = [pa.field(name, pa.list_(pa.int64()), nullable=False) for name in QUANTITIES]
    texts = [pa.field(name, pa.string(), nullable=False) for name in ("tenant", "device", "zone", "digest")]
    hour = pa.field("hour", pa.timestamp("us", tz="UTC"), nullable=False)
    commit = pa.field("commit_number", pa.int64(), nullable=False)
    return pa.Table.from_pylist(list(rows), schema=pa.schema([*texts, hour, *lists, commit]))


def visit(zone: str, begin: datetime, end: datetime | None = None, device: str = "van") -> list[Row]:
    """The events of a visit; without an end, it lasts."""
    inside = 0.0 if end is None else (end - begin).total_seconds()
    return [_event("enter", zone, device, begin)] + [_event("exit", zone, device, end, inside)] * (end is not None)


def passage(gate: str, moment: datetime, direction: str = "forward", device: str = "van") -> list[Row]:
    return [_event(direction, gate, device, moment)]


def _event(kind: str, place: str, device: str, moment: datetime | None, value: float = 0.0) -> Row:
    made = {"id": f"{kind} {place} {device} {moment}", "revision": 0, "tenant": "fleet", "device": device, "kind": kind}
    return made | {"place": place, "time": moment, "value": value, "retracted": False}


def facts(events: Iterable[Row], contract: PayerContract, rows: Iterable[Row] = ()) -> dict[TenantDevice, DeviceFacts]:
    """The facts of the contract's period; the device drove where rows of usage have distance in zones."""
    schema = pa.schema([GEOFENCE_EVENTS.field(name) for name in EVENT_COLUMNS])
    start, end = micros(contract.period.start), micros(contract.period.end)
    return facts_of(pa.Table.from_pylist(list(events), schema=schema), start, end, driven_quarters(table(rows)))


def price(meter: str, amount: str | None = "1.00", **more: object) -> dict[str, Any]:
    made: dict[str, Any] = {"meter": meter, "unit": UNITS[meter], **more}
    return made if amount is None or "tiers" in more else made | {"unit_amount": amount}


def tariff(*prices: dict[str, Any], begin: datetime = ALWAYS, currency: str = "EUR", **more: object) -> dict[str, Any]:
    """A price of a named pool may have its `scope`, `pool_span` and allowance; those of the first price count."""
    made, pools = [], dict[str, dict[str, Any]]()
    for one in prices:
        if one.get("pool", "device") not in {"device", "account"}:
            stated = {"scope": "scope", "pool_span": "span", "allowance": "allowance"}
            pool = {"id": one["pool"], "unit": one["unit"]} | {stated[key]: one[key] for key in stated if key in one}
            pools.setdefault(one["pool"], pool)
            made.append({key: value for key, value in one.items() if key not in stated})
        else:
            made.append(one)
    listed = {"pools": list(pools.values())} if pools else {}
    return {"id": "standard", "effective_from": begin, "currency": currency, "prices": made, **listed, **more}


def assigned(device: str = "van", begin: datetime = ALWAYS, end: datetime | None = None) -> dict[str, Any]:
    made: dict[str, Any] = {"tenant": "fleet", "device": device, "region": "eu", "begin": begin}
    return made if end is None else made | {"end": end}


@dataclass(frozen=True, kw_only=True)
class World:
    """A payer, `acme`, and its child `acme-west`, for one period; everything as it is published.

    `child_times`: from when until when (None: for good) the child is in force.
    """

    days: TrueDays
    tariffs: tuple[dict[str, Any], ...]
    devices: tuple[dict[str, Any], ...] = (assigned(),)
    child_devices: tuple[dict[str, Any], ...] = ()
    child_times: tuple[datetime, datetime | None] = (ALWAYS, None)
    fees: tuple[dict[str, Any], ...] = ()
    currency: str = "EUR"
    rates: tuple[tuple[str, str], ...] = ()

    @property
    def published(self) -> dict[str, Any]:
        vat = {"category": "S", "rate": "19"}
        address = {"line": "Kai 1", "city": "Hamburg", "country": "DE"}
        payer = {"legal_entity": "seller", "currency": self.currency, "time_zone": self.days.time_zone}
        acme = {"id": "acme", "effective_from": ALWAYS, "name": "Acme", "tariff": "standard"}
        acme |= {"payer": payer | {"vat": vat, "address": address}, "devices": list(self.devices)}
        acme |= {"fees": list(self.fees)}
        begin, end = self.child_times
        west = {"id": "acme-west", "effective_from": begin, "name": "West", "tariff": "standard", "parent": "acme"}
        west |= {"devices": list(self.child_devices)} | ({} if end is None else {"effective_until": end})
        rates = [
            {"id": f"{of}-{self.currency}", "effective_from": ALWAYS, "currency": of, "into": self.currency}
            | {"rate": rate, "source": "bank"}
            for of, rate in self.rates
        ]
        return {"tariff": list(self.tariffs), "account": [acme, west], "exchange_rate": rates}

    @property
    def truth(self) -> TrueContracts:
        return TrueContracts([self.published])

    @property
    def contract(self) -> PayerContract:
        versions = sorted((Tariff.model_validate(one) for one in self.tariffs), key=lambda one: one.effective_from)
        accounts = [Account.model_validate(one) for one in self.published["account"]]
        period = BillingPeriod(*self.days)
        start, end = micros(period.start), micros(period.end)
        begins = [*(micros(one.effective_from) for one in versions), EVER]
        spans = tuple(TariffSpan(*times, one) for times, one in zip(pairwise(begins), versions, strict=True))
        made = []
        for one in accounts:
            until = end if one.effective_until is None else min(end, micros(one.effective_until))
            made.append(
                AccountContract(
                    id=one.id,
                    name=one.name,
                    times=((max(start, micros(one.effective_from)), until),),
                    spans=tuple(span for span in spans if span.begin_us < until),
                    assigned=assignments(one, start, end),
                    fees=(FeeSpan(micros(one.effective_from), one.fees),) if one.fees else (),
                    priced=spans,
                    held=assignments(one, 0, EVER),
                )
            )
        return PayerContract(
            account=accounts[0],
            period=period,
            seller=LegalEntity.model_validate(legal_entity()),
            accounts=tuple(made),
            rates={of: Decimal(rate) for of, rate in self.rates},
            digest="",
        )


def assignments(account: Account, start: int, end: int) -> tuple[Assigned, ...]:
    found = []
    for one in account.devices:
        begin, until = max(start, micros(one.begin)), end if one.end is None else min(end, micros(one.end))
        if begin < until:
            found.append(Assigned(one.tenant, one.device, begin, until, account.id, one.region))
    return tuple(found)


def rated(world: World, rows: Iterable[Row]) -> RatedAccount:
    contract = world.contract
    (usage,) = cells_of_usage([contract], table(rows))
    return rate(contract, *usage)


def true_quarters(rows: Iterable[Row]) -> list[TrueQuarter]:
    found = {(one["tenant"], one["device"], one["hour"], one["zone"]): one for one in rows}
    return [
        TrueQuarter(*key[:2], key[2] + number * QUARTER, key[3], *(one[name][number] for name in QUANTITIES))
        for key, one in found.items()
        for number in range(4)
    ]


amounts = st.decimals(0, 9, places=4).map(str)
MINIMA: list[dict[str, Any]] = [
    {},
    {"minimum_amount": "50"},
    {"minimum_amount": "50", "proration": "whole"},
    {"minimum_amount": "50", "minimum_without_devices": True},
]
some_units = st.decimals(0, 40, places=3).map(str)


@st.composite
def tiers(draw: st.DrawFn) -> list[dict[str, str]]:
    ends = sorted(draw(st.sets(st.integers(1, 60), max_size=3)))
    return [{"up_to": str(end), "unit_amount": draw(amounts)} for end in ends] + [{"unit_amount": draw(amounts)}]


@st.composite
def prices(draw: st.DrawFn, windows: Sequence[str], *, flat: bool, complete: bool) -> list[dict[str, Any]]:
    """Prices of some meters; `complete`: for every zone."""
    found = []
    for meter in draw(st.sets(st.sampled_from(sorted(UNITS)), min_size=1)):
        if meter in {"distance", "duration"}:
            zones, all_zones = ["", "a", "*"], {"", "*"}
        elif meter in {"entry", "inferred entry", "crossing"}:
            zones, all_zones = ["a", "*"], {"*"}
        else:
            zones, all_zones = [""], {""}
        chosen = draw(st.sets(st.sampled_from(zones), min_size=1)) | (all_zones if complete else set())
        listed = []
        for zone in sorted(chosen):
            within = draw(st.sets(st.sampled_from(windows))) if windows and meter != "active day" else set()
            listed += [draw(one_price(meter, zone, window, flat=flat)) for window in ("", *sorted(within))]
        if draw(st.booleans()):
            # they have one pool, at their own amounts
            alone = draw(st.sets(st.integers(0, len(listed) - 1)))
            together = {"pool": meter.replace(" ", "-"), "scope": listed[0]["pool"]}
            together |= {"allowance": listed[0]["allowance"]} if "allowance" in listed[0] else {}
            listed = [one if number in alone else one | together for number, one in enumerate(listed)]
        found += listed
    return found


@st.composite
def one_price(draw: st.DrawFn, meter: str, zone: str, window: str, *, flat: bool) -> dict[str, Any]:
    more: dict[str, Any] = {"zone": zone, "window": window, "pool": draw(st.sampled_from(["device", "account"]))}
    if not flat:
        more["allowance"] = draw(st.just("0") | some_units)
        if draw(st.booleans()):
            more |= {"tiers": draw(tiers()), "tier_mode": draw(st.sampled_from(["graduated", "volume"]))}
    # few amounts, so that prices that say the same meet
    return price(meter, draw(st.sampled_from(["0.45", "0.450", "1.3333"]) | amounts), **more)


@st.composite
def worlds(draw: st.DrawFn, *, flat: bool = False, complete: bool = True, caps: Sequence[dict[str, Any]] = ()) -> World:
    days = draw(st.sampled_from(PERIODS))
    moments = [moment for moment, _ in quarters_of(days)]
    currency = draw(st.sampled_from(["EUR", "JPY", "KWD"]))
    foreign = draw(st.sampled_from([currency, "USD"]))
    night = {"id": "night", "days": ["sat", "sun", "tue"], "hours": ["22:00-02:30"]}
    windows: list[dict[str, Any]] = draw(st.sampled_from([[], [night]]))
    starts = [ALWAYS, *sorted(draw(st.sets(st.sampled_from(moments), max_size=2)))]
    tariffs = [
        tariff(
            *draw(prices([str(one["id"]) for one in windows], flat=flat, complete=complete)),
            begin=begin,
            currency=foreign,
            windows=windows,
            caps=list(caps),
            **draw(st.sampled_from(MINIMA)),
        )
        for begin in starts
    ]
    moved = draw(st.sampled_from(moments))
    # the child is there for all of the period, or for what is left of it, or leaves; its devices with it
    begin, end = draw(st.sampled_from([(ALWAYS, None), (moved, None), (ALWAYS, moved)]))
    begin, end = (ALWAYS, None) if end == moments[0] else (begin, end)
    trucks = [] if end else [assigned("truck", begin=moved)]
    return World(
        days=days,
        tariffs=tuple(tariffs),
        devices=(assigned("van"), assigned("truck", end=moved)),
        child_devices=(*trucks, *([assigned("bus", begin=begin, end=end)] if draw(st.booleans()) else [])),
        child_times=(begin, end),
        currency=currency,
        rates=(("USD", draw(st.sampled_from(["0.9137", "151.23", "1"]))),),
    )


@st.composite
def usage_rows(draw: st.DrawFn, days: TrueDays, max_size: int = 12) -> list[Row]:
    """Rows of different keys, some of a stranger and of hours around the period."""
    moments = [moment for moment, _ in quarters_of(days)]
    first = min(moments).replace(minute=0) - timedelta(hours=2)
    hours = st.integers(0, len(moments) // 4 + 4).map(lambda number: first + timedelta(hours=number))
    devices = st.sampled_from(["van", "truck", "bus", "stranger"])
    keys = st.lists(st.tuples(devices, hours, st.sampled_from(["", "a", "b", "*"])), max_size=max_size, unique=True)
    return [row(hour, zone, device, **draw(_quantities(zone))) for device, hour, zone in draw(keys)]


@st.composite
def _quantities(draw: st.DrawFn, zone: str) -> dict[str, Any]:
    bounds = {"distance_mm": 30_000_000, "duration_ms": 900_000, "entries": 3, "crossings": 3, "inferred_entries": 2}
    if zone == "":
        bounds |= {"entries": 0, "crossings": 0, "inferred_entries": 0}
    if zone == "*":
        bounds = {"events": 5, "content_bytes": 2_000_000, "inferred_entries": 2}
    return {
        name: draw(st.lists(st.integers(0, most) | st.just(0), min_size=4, max_size=4)) for name, most in bounds.items()
    }


@st.composite
def used_worlds(draw: st.DrawFn, /, **how: Any) -> tuple[World, list[Row]]:
    world = draw(worlds(**how))
    return world, draw(usage_rows(world.days))


def explained(contract: PayerContract, rows: pa.Table, charge: Charge) -> Explanation:
    """A charge taken apart from the usage of its contract's periods."""
    periods = (*contract.earlier, contract)
    return explain(contract, charge, rows, [PeriodUsage(*cells_of_usage([one], rows)[0]) for one in periods])
