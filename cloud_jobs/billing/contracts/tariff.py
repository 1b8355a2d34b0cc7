"""Tariffs: prices by meter, zone and window, with tiers, caps, fees and a minimum fee."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import date, datetime, time
from decimal import Decimal
from enum import StrEnum
from itertools import combinations, islice, pairwise
from typing import Annotated, Final, Literal, NamedTuple, Self, get_args

from pydantic import Field, PlainSerializer, PlainValidator, model_validator

from cloud_jobs.billing.contracts.fields import (
    Amount,
    Contract,
    Currency,
    Id,
    SignedAmount,
    SignedPercent,
    Text,
    UnitAmount,
    Zone,
    decimals_of,
)
from cloud_jobs.billing.units import MEASURE_OF, Meter, MeterZones, exponent
from geo.reference.moments import Moment

# Weekly price windows in local time, by quarters of an hour.

Weekday = Literal["mon", "tue", "wed", "thu", "fri", "sat", "sun"]
QUARTERS_OF_A_DAY: Final = 96
QUARTERS_OF_A_WEEK: Final = 7 * QUARTERS_OF_A_DAY
_MINUTES: Final = 15
_NUMBER_OF: Final[dict[Weekday, int]] = {day: number for number, day in enumerate(get_args(Weekday))}


def _on_a_quarter(given: object) -> time:
    try:
        made = given if isinstance(given, time) else time.fromisoformat(given)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise ValueError("write a time of the day, for instance 22:00:00") from None
    if made.tzinfo is not None:
        raise ValueError(f"{made} has an offset; windows use the payer's local time")
    if made.minute % _MINUTES or made.second or made.microsecond:
        raise ValueError(f"{made} is not on a quarter of an hour, the unit of usage")
    return made


TimeOfDay = Annotated[
    time, PlainValidator(_on_a_quarter), PlainSerializer(lambda one: one.isoformat(), return_type=str, when_used="json")
]


class Window(Contract):
    """A weekly window of local time, on quarters of an hour. `days`: the days on which it begins.

    If `end` is not after `begin`, the window ends on the next day.
    """

    id: Id
    days: tuple[Weekday, ...]
    begin: TimeOfDay
    end: TimeOfDay

    @model_validator(mode="after")
    def _has_days(self) -> Self:
        if not self.days:
            raise ValueError(f'window {self.id!r} has no days; write days = ["mon", "tue"], or so')
        if len(set(self.days)) != len(self.days):
            raise ValueError(f"window {self.id!r} names a day twice")
        return self

    @property
    def quarters(self) -> frozenset[int]:
        """Its quarters of the week, counted from Monday 00:00."""
        begin, end = (one.hour * 4 + one.minute // _MINUTES for one in (self.begin, self.end))
        length = (end - begin) % QUARTERS_OF_A_DAY or QUARTERS_OF_A_DAY
        starts = (_NUMBER_OF[day] * QUARTERS_OF_A_DAY + begin for day in self.days)
        return frozenset((start + number) % QUARTERS_OF_A_WEEK for start in starts for number in range(length))


def quarter_text(quarter: int) -> str:
    """A quarter of the week as text: `mon 06:15`."""
    day, of_day = divmod(quarter, QUARTERS_OF_A_DAY)
    return f"{get_args(Weekday)[day]} {of_day // 4:02}:{of_day % 4 * _MINUTES:02}"


# Prices of a meter by zone and window: flat or in tiers.

ANY_ZONE: Final = "*"
"""The price of every zone that has none of its own; "" is what is outside all zones."""
MAX_TIERS: Final = 100


class TierMode(StrEnum):
    """Graduated: each unit is priced by its own tier. Volume: all units by the tier of the whole quantity."""

    GRADUATED = "graduated"
    VOLUME = "volume"


class Pool(StrEnum):
    """Whose quantities are added up for tiers, allowances and caps: each device's or the whole account's."""

    DEVICE = "device"
    ACCOUNT = "account"


class Tier(Contract):
    """Units up to and including `up_to` (None: all above), in the unit of the price."""

    up_to: Amount | None = None
    unit_amount: UnitAmount


class PoolKey(NamedTuple):
    """The pool of a price in all versions of a tariff: by `pool_id`, or by the place of the price."""

    is_of_account: bool
    meter: Meter
    pool_id: str
    zone: str = ""
    window: str = ""


class Price(Contract):
    """The price of one unit of a meter in a zone and a window ("": when no other window has a price).

    Each price has its own allowance, tiers and rounding; prices with the same `pool_id` share them. `step`: the units
    that a pool pays for are rounded up to whole steps.
    """

    meter: Meter
    zone: Zone = ""
    window: str = ""
    unit: str
    unit_amount: UnitAmount | None = None
    tiers: Annotated[tuple[Tier, ...], Field(max_length=MAX_TIERS)] = ()
    tier_mode: TierMode = TierMode.GRADUATED
    allowance: Amount = Decimal(0)
    step: Annotated[Amount, Field(gt=0)] | None = None
    pool: Pool = Pool.DEVICE
    pool_id: Id | None = None

    @property
    def base_per_unit(self) -> int:
        """Base units of the meter in one unit of the price."""
        return MEASURE_OF[self.meter].sale_units[self.unit].base_per_unit

    @property
    def pool_key(self) -> PoolKey:
        is_of_account = self.pool is Pool.ACCOUNT
        if self.pool_id is not None:
            return PoolKey(is_of_account, self.meter, self.pool_id)
        return PoolKey(is_of_account, self.meter, "", self.zone, self.window)

    @property
    def is_flat(self) -> bool:
        """Whether every unit costs the same."""
        return not self.tiers and not self.allowance and self.step is None

    @model_validator(mode="after")
    def _of_its_meter(self) -> Self:
        measure = MEASURE_OF[self.meter]
        if self.unit not in measure.sale_units:
            units = " or ".join(repr(unit) for unit in measure.sale_units)
            raise ValueError(f"{self.meter} is sold by {units}, not by {self.unit!r}")
        if measure.zones is MeterZones.NONE and self.zone:
            raise ValueError(f"{self.meter} is metered for the whole device; leave out zone {self.zone!r}")
        if measure.zones in {MeterZones.INSIDE, MeterZones.GATES} and not self.zone:
            what = "gate" if measure.zones is MeterZones.GATES else "zone"
            raise ValueError(f'{self.meter} is of a {what}: name its zone, or write "*" for every one')
        if self.meter is Meter.ACTIVE_DAY and self.window:
            raise ValueError(f"{self.meter} counts whole days; leave out window {self.window!r}")
        return self

    @model_validator(mode="after")
    def _one_amount_or_tiers(self) -> Self:
        if (self.unit_amount is None) == (not self.tiers):
            raise ValueError("a price has either a unit_amount or tiers" + (", not both" if self.tiers else ""))
        if not self.tiers:
            if self.tier_mode is TierMode.VOLUME:
                raise ValueError("tier_mode is for prices with tiers, and this one has none")
            return self
        *below, last = self.tiers
        if last.up_to is not None:
            raise ValueError(f"the last tier ends at {last.up_to}; leave out its up_to: it applies to all above")
        bounds = [Decimal(0)]
        for number, tier in enumerate(below):
            if tier.up_to is None:
                raise ValueError(f"tiers.{number} has no up_to; only the last tier may be open")
            bounds.append(tier.up_to)
        for before, after in pairwise(bounds):
            if after <= before:
                raise ValueError(f"tiers must ascend, and up_to {after} follows {before}")
        return self

    def __str__(self) -> str:
        zone = {"": "outside", ANY_ZONE: "in any zone"}.get(self.zone, f"in zone {self.zone!r}")
        where = "" if MEASURE_OF[self.meter].zones is MeterZones.NONE else f" {zone}"
        return f"{self.meter}{where}" + (f" in window {self.window!r}" if self.window else "")


MAX_PRICES: Final = 10_000
MAX_WINDOWS: Final = 100
MAX_CAPS: Final = 100


class CapSpan(StrEnum):
    """The time that a cap limits: each local day, or the whole billing period."""

    DAY = "day"
    PERIOD = "period"


class Proration(StrEnum):
    """What is agreed for part of a period: charged whole, or in proportion to the local days."""

    WHOLE = "whole"
    BY_DAY = "by_day"


class Cap(Contract):
    """The maximum for each device or the account, by local day or period. `meters` (): all meters."""

    pool: Pool
    per: CapSpan
    amount: Amount
    meters: tuple[Meter, ...] = ()

    def holds_for(self, meter: Meter) -> bool:
        return not self.meters or meter in self.meters


# Fees: amounts and percentages, of a tariff or of one account.


def _local_day(given: object) -> date:
    try:
        made = given if isinstance(given, date) else date.fromisoformat(given)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise ValueError("write a local day, for instance 2026-03-01") from None
    if isinstance(made, datetime):
        raise ValueError(f"{made.isoformat()} is a moment; write a local day, for instance 2026-03-01")
    return made


LocalDay = Annotated[
    date, PlainValidator(_local_day), PlainSerializer(lambda one: one.isoformat(), return_type=str, when_used="json")
]


class Every(StrEnum):
    """How often a fee is charged: in each billing period, or in the one that has its first day."""

    PERIOD = "period"
    ONCE = "once"


class Fee(Contract):
    """An amount, or a per cent of usage charges after caps; below 0 it is a credit. It is a charge of its own.

    `name`: printed on documents. `scope`: of the account, or of each of its devices. `begin`, `end` (excluded): local
    days on which it is in force; a fee that is charged once is so in the period that has `begin`. `meters`, `zones`:
    the usage that a per cent is of; (): all. A tariff's amount is in its currency, an account's in the payer's.
    """

    id: Id
    name: Annotated[Text, Field(max_length=200)]
    amount: SignedAmount | None = None
    percent: SignedPercent | None = None
    scope: Pool = Pool.ACCOUNT
    every: Every = Every.PERIOD
    proration: Proration = Proration.BY_DAY
    begin: LocalDay | None = None
    end: LocalDay | None = None
    meters: tuple[Meter, ...] = ()
    zones: tuple[Zone, ...] = ()

    @property
    def is_whole(self) -> bool:
        """Whether a day in force is enough for all of it."""
        return self.every is Every.ONCE or self.proration is Proration.WHOLE

    def holds_on(self, day: date) -> bool:
        if self.every is Every.ONCE:
            return day == self.begin
        return (self.begin is None or self.begin <= day) and (self.end is None or day < self.end)

    def covers(self, meter: Meter, zone: str) -> bool:
        """Whether a per cent is of the usage of this meter in this zone."""
        if self.meters and meter not in self.meters:
            return False
        if not self.zones:
            return True
        has_zone = MEASURE_OF[meter].zones is not MeterZones.NONE
        return has_zone and (zone in self.zones or (zone != "" and ANY_ZONE in self.zones))

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        if (self.amount is None) == (self.percent is None):
            raise ValueError(f"fee {self.id!r} needs either an amount or a percent")
        if self.percent is None and (self.meters or self.zones):
            raise ValueError(f"fee {self.id!r} is an amount; meters and zones choose the usage of a percent")
        if self.every is Every.ONCE and (self.begin is None or self.end is not None):
            raise ValueError(f"fee {self.id!r} is charged once, on its begin: write a begin and no end")
        if self.begin and self.end and self.end <= self.begin:
            raise ValueError(f"fee {self.id!r} ends on {self.end}, which is not after its begin, {self.begin}")
        if ": " in self.name:
            raise ValueError(f"fee {self.id!r}: leave ': ' out of its name; on documents its terms follow it")
        return self


Fees = Annotated[tuple[Fee, ...], Field(max_length=100)]


def repeated_ids(what: str, ids: Iterable[str]) -> Iterator[str]:
    """A fault for each id that two of them have."""
    listed = sorted(ids)
    yield from (f"two {what} have the id {one!r}" for one in dict.fromkeys(listed) if listed.count(one) > 1)


class Tariff(Contract):
    """One version of a price list, in force from `effective_from` until the next version.

    A meter that has a price for one zone needs one for every zone in which it is used, its own or ANY_ZONE's; a missing
    price is an error, never free. A meter without any price is not sold; `not_sold` must name one that the previous
    version sells. `minimum_amount`: the least that an account pays for a period in which it has a device, or for any
    period with `minimum_without_devices`; see `proration`.
    """

    id: Id
    effective_from: Moment
    currency: Currency
    prices: Annotated[tuple[Price, ...], Field(max_length=MAX_PRICES)]
    windows: Annotated[tuple[Window, ...], Field(max_length=MAX_WINDOWS)] = ()
    caps: Annotated[tuple[Cap, ...], Field(max_length=MAX_CAPS)] = ()
    fees: Fees = ()
    minimum_amount: Amount | None = None
    proration: Proration = Proration.BY_DAY
    minimum_without_devices: bool = False
    not_sold: tuple[Meter, ...] = ()

    @model_validator(mode="after")
    def _without_contradictions(self) -> Self:
        faults = [*self._window_faults(), *self._price_faults(), *self._cap_faults(), *self._fee_faults()]
        faults += self._decimal_faults()
        if faults:
            raise ValueError("; ".join(faults))
        return self

    def _window_faults(self) -> Iterator[str]:
        yield from repeated_ids("windows", (window.id for window in self.windows))
        for one, other in combinations(self.windows, 2):
            if shared := one.quarters & other.quarters:
                yield f"windows {one.id!r} and {other.id!r} overlap on {quarter_text(min(shared))}"

    def _price_faults(self) -> Iterator[str]:
        windows = {"", *(window.id for window in self.windows)}
        placed: dict[tuple[Meter, str, str], int] = {}
        for number, price in enumerate(self.prices):
            first = placed.setdefault((price.meter, price.zone, price.window), number)
            if first != number:
                yield f"prices.{first} and prices.{number} are both for {price}"
            if price.window not in windows:
                yield f"prices.{number} is for window {price.window!r}, which the tariff does not have"
            if price.meter in self.not_sold:
                yield f"prices.{number} is for {price.meter}, which is in not_sold"
        yield from self._pool_faults()
        for meter, zone, window in placed:
            # "*" does not apply outside all zones
            default = ANY_ZONE if zone and MEASURE_OF[meter].zones is not MeterZones.NONE else zone
            if window and not {(meter, zone, ""), (meter, default, "")} & placed.keys():
                yield f"{self.prices[placed[meter, zone, window]]} has a price, and none outside its windows"

    def _pool_faults(self) -> Iterator[str]:
        """Prices of one pool may differ in amounts, but not in meter, pool, allowance and step."""
        first: dict[str, int] = {}
        for number, price in enumerate(self.prices):
            if price.pool_id is not None:
                at = first.setdefault(price.pool_id, number)
                one, other = (
                    {"meter": each.meter, "pool": each.pool, "allowance": each.allowance * each.base_per_unit}
                    | {"step": (each.step or 0) * each.base_per_unit}
                    for each in (self.prices[at], price)
                )
                for what in one:
                    if one[what] != other[what]:
                        yield f"prices.{at} and prices.{number} have one pool_id, {price.pool_id!r}, and two {what}s"

    def _cap_faults(self) -> Iterator[str]:
        sold = {price.meter for price in self.prices}
        for number, cap in enumerate(self.caps):
            if unsold := [meter for meter in cap.meters if meter not in sold]:
                yield f"caps.{number} is for {unsold[0]}, which has no price"
            if len(set(cap.meters)) != len(cap.meters):
                yield f"caps.{number} names a meter twice"
            if cap.per is CapSpan.DAY:
                # tiers and allowances are of the whole period, so a single day has no cost
                uneven = (price for price in self.prices if cap.holds_for(price.meter) and not price.is_flat)
                for price in islice(uneven, 1):
                    what = "tiers" if price.tiers else "an allowance" if price.allowance else "a step"
                    yield (
                        f"caps.{number} is by day, and the price for {price} has {what}; cap the period, or give the "
                        "price one amount"
                    )
        for (first, one), (second, other) in combinations(enumerate(self.caps), 2):
            shared = [meter for meter in Meter if one.holds_for(meter) and other.holds_for(meter)]
            if (one.pool, one.per) == (other.pool, other.per) and shared:
                yield f"caps.{first} and caps.{second} are both by {one.pool} and {one.per} for {shared[0]}"

    def _fee_faults(self) -> Iterator[str]:
        yield from repeated_ids("fees", (fee.id for fee in self.fees))
        sold = {price.meter for price in self.prices}
        for number, fee in enumerate(self.fees):
            if unsold := [meter for meter in fee.meters if meter not in sold]:
                yield f"fees.{number} is a percent of {unsold[0]}, which has no price"

    def _decimal_faults(self) -> Iterator[str]:
        digits = exponent(self.currency)
        amounts = {f"caps.{number}.amount": cap.amount for number, cap in enumerate(self.caps)}
        amounts |= {
            f"fees.{number}.amount": fee.amount for number, fee in enumerate(self.fees) if fee.amount is not None
        }
        if self.minimum_amount is not None:
            amounts["minimum_amount"] = self.minimum_amount
        yield from (
            f"{where} is {amount}, and {self.currency} has {digits or 'no'} digits after the point"
            for where, amount in amounts.items()
            if decimals_of(amount) > digits
        )
