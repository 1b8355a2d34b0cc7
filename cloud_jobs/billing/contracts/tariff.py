"""Tariffs: prices by meter, zone and window, with pools, tiers, caps, fees and a minimum fee."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from decimal import Decimal
from functools import cached_property
from itertools import combinations, islice, product
from typing import Annotated, Final, Literal, Self

from pydantic import Field, model_validator

from cloud_jobs.billing.contracts.fields import Amount, Contract, Currency, Id, Vat, decimals_of, may_both_select
from cloud_jobs.billing.contracts.prices import (
    ANY_ZONE,
    MAX_MINUTES,
    Direction,
    Fees,
    NamedPool,
    Pool,
    Price,
    PricePlace,
    Proration,
    Selects,
    Span,
    TierMode,
    ZonePath,
    is_among,
    repeated_ids,
    rival_fees,
    zones_of,
)
from cloud_jobs.billing.contracts.windows import Window, overlaps_of
from cloud_jobs.billing.units import FACTS, MEASURE_OF, Meter, MeterZones, exponent
from geo.reference.moments import Moment
from waybill.settings import name_advice

MAX_PRICES: Final = 10_000
MAX_PRICES_OF_A_PLACE: Final = 200
MAX_WINDOWS: Final = 100
MAX_CAPS: Final = 100
MAX_POOLS: Final = 100


class Cap(Selects):
    """The maximum for each device or the account, by local day, period or contract year.

    `meters`, `zones`, `windows`: the usage that it is for, by its price's window; (): all.
    """

    scope: Literal[Pool.DEVICE, Pool.ACCOUNT]
    span: Literal[Span.DAY, Span.CYCLE, Span.YEAR]
    amount: Amount
    windows: tuple[str, ...] = ()

    def covers(self, meter: Meter, zone: str, window: str = "") -> bool:
        return super().covers(meter, zone) and (not self.windows or window in self.windows)

    @property
    def without_amount(self) -> Cap:
        """What it is for: the same in versions that only change its amount."""
        same = {name: tuple(sorted(getattr(self, name))) for name in ("meters", "zones", "windows")}
        return self.model_copy(update={"amount": Decimal(0)} | same)

    @property
    def order(self) -> tuple[object, ...]:
        """Sort key: caps of devices come before those of accounts, and a cap before those that contain it."""
        size = (
            len(self.all_meters),
            len(self.zones) + (MAX_PRICES if ANY_ZONE in self.zones else 0) or math.inf,
            len(self.windows) or math.inf,
        )
        return self.scope is Pool.ACCOUNT, size, self.meters, self.zones, self.windows

    def contains(self, other: Cap) -> bool:
        """Whether everything that another cap is for is also under this one."""
        zones = not self.zones or (other.zones and all(is_among(zone, self.zones) for zone in other.zones))
        windows = not self.windows or (other.windows and {*other.windows} <= {*self.windows})
        return bool(other.all_meters <= self.all_meters and zones and windows)


def _may_be_under(cap: Cap, price: Price) -> bool:
    """Whether a cap is for some of the usage that a price is for."""
    if any(cap.covers(price.meter, zone, price.window) for zone in price.zones):
        return True
    # the price of any zone is that of the zones of the cap, too
    return ANY_ZONE in price.zones and any(cap.covers(price.meter, zone, price.window) for zone in cap.zones if zone)


class Dearest(Selects):
    """Of a device's facts of these meters, only the dearest within `minutes` from the first one that costs something is
    charged.
    """

    minutes: Annotated[int, Field(ge=1, le=MAX_MINUTES)]
    meters: Annotated[tuple[Meter, ...], Field(min_length=1)]


class Tariff(Contract):
    """One version of a price list, in force from `effective_from` until the next version.

    A meter that has a price for one zone needs one for every zone in which it is used, its own or ANY_ZONE's; a missing
    price is an error, never free. A meter without any price is not sold; `not_sold` must name one that the previous
    version sells. `minimum_amount`: the least that an account pays for a period in which it has a device, or for any
    period with `minimum_without_devices`; see `proration`. With `minimum_span` year it is for a contract year, and what
    is missing is charged with the year's last period. `calendar`: has the seasons and holidays of the windows.
    `includes_tax`: of all its amounts.
    """

    id: Id
    effective_from: Moment
    currency: Currency
    calendar: Id | None = None
    prices: Annotated[tuple[Price, ...], Field(max_length=MAX_PRICES)]
    windows: Annotated[tuple[Window, ...], Field(max_length=MAX_WINDOWS)] = ()
    pools: Annotated[tuple[NamedPool, ...], Field(max_length=MAX_POOLS)] = ()
    caps: Annotated[tuple[Cap, ...], Field(max_length=MAX_CAPS)] = ()
    dearest: Annotated[tuple[Dearest, ...], Field(max_length=MAX_CAPS)] = ()
    fees: Fees = ()
    minimum_amount: Amount | None = None
    minimum_span: Literal[Span.CYCLE, Span.YEAR] = Span.CYCLE
    proration: Proration = Proration.BY_DAY
    minimum_without_devices: bool = False
    includes_tax: bool = False
    not_sold: tuple[Meter, ...] = ()

    @cached_property
    def sold(self) -> frozenset[Meter]:
        """The meters that have a price somewhere."""
        return frozenset(price.meter for price in self.prices)

    @property
    def selecting(self) -> dict[str, Sequence[Selects]]:
        """What chooses usage by meter and zone, by its key."""
        return {"caps": self.caps, "dearest": self.dearest, "fees": self.fees}

    def zones(self) -> Iterator[ZonePath]:
        """Each zone that it names."""
        for number, price in enumerate(self.prices):
            for zone in price.zones:
                yield ("prices", number, *(("amounts", zone) if price.amounts else ("zone",))), price.meter, zone
            if price.after is not None:
                yield ("prices", number, "after"), price.meter, price.after
        for what, selecting in self.selecting.items():
            yield from zones_of(what, selecting)

    @cached_property
    def vats(self) -> frozenset[Vat]:
        """Those of prices and fees that are not the payer's."""
        return frozenset(vat for vat in (*(one.vat for one in self.prices), *(one.vat for one in self.fees)) if vat)

    @model_validator(mode="after")
    def _without_contradictions(self) -> Self:
        faults = [*self._window_faults(), *self._price_faults(), *self._cap_faults(), *self._fee_faults()]
        faults += [*self._dearest_faults(), *self._decimal_faults()]
        if faults:
            raise ValueError("\n".join(faults))
        return self

    @cached_property
    def attribute_names(self) -> frozenset[str]:
        """The attributes of devices that a price or a fee names."""
        named = {name for price in self.prices for name in (*price.devices, *price.times)}
        return frozenset(named.union(*(fee.devices for fee in self.fees)))

    def _window_faults(self) -> Iterator[str]:
        yield from repeated_ids("windows", (window.id for window in self.windows))
        yield from overlaps_of(self.windows)
        for window in self.windows if self.calendar is None else ():
            if window.needs_calendar:
                yield f"window {window.id!r} has a season or holidays; write calendar = and the id of a calendar"

    def _price_faults(self) -> Iterator[str]:
        windows = {"": True} | {window.id: window.is_on_quarters for window in self.windows}
        for number, price in enumerate(self.prices):
            if price.window not in windows:
                advice = name_advice(price.window, (one.id for one in self.windows))
                yield f"prices.{number} is for window {price.window!r}, which the tariff does not have{advice}"
            elif not windows[price.window] and price.meter not in FACTS - {Meter.DRIVEN_DAY}:
                yield (
                    f"prices.{number} is for window {price.window!r}, which is not on quarters of an hour; "
                    f"{price.meter} is kept by the quarter"
                )
            if price.meter in self.not_sold:
                yield f"prices.{number} is for {price.meter}, which is in not_sold"
        yield from self._pool_faults()
        yield from self._rivals()
        yield from self._gap_faults()

    def _gap_faults(self) -> Iterator[str]:
        """A price for a window, a direction or a pair of gates needs one for what it leaves out."""
        special = [price for price in self.prices if price.window or price.direction or price.after]
        general = defaultdict[tuple[Meter, str], set[str]](set)
        for price in self.prices if special else ():
            for zone in () if price.window or price.after else price.zones:
                general[price.meter, zone].add(price.direction or "")
        for price in special:
            for zone in price.zones:
                # "*" does not apply outside all zones
                default = ANY_ZONE if zone and MEASURE_OF[price.meter].zones is not MeterZones.NONE else zone
                there = general.get((price.meter, zone), set()) | general.get((price.meter, default), set())
                if "" not in there and not there.issuperset(Direction):
                    directed = "in the other direction" if price.direction else "for it alone"
                    where = "outside its windows" if price.window else directed
                    yield f"{price} has a price, and none {where}; write unit_amount = 0 for what is free"
                    break

    def _rivals(self) -> Iterator[str]:
        """Prices of one place of which neither is for fewer devices."""
        placed: defaultdict[PricePlace, list[int]] = defaultdict(list)
        tables: defaultdict[PricePlace, list[int]] = defaultdict(list)
        for number, price in enumerate(self.prices):
            (tables if price.amounts else placed)[price.place].append(number)
        for numbers in (*placed.values(), *tables.values()):
            if len(numbers) > MAX_PRICES_OF_A_PLACE:
                yield f"{len(numbers)} prices are for {self.prices[numbers[0]]}; at most {MAX_PRICES_OF_A_PLACE} may be"
                continue
            of_place = self.prices[numbers[0]]
            more = () if of_place.amounts else tables.get(of_place.place._replace(zone=""), ())
            for first, number in (*combinations(numbers, 2), *product(numbers, more)):
                one, other = self.prices[first], self.prices[number]
                alike = len(one.devices) == len(other.devices) and may_both_select(one.devices, other.devices)
                if alike and not {*one.zones}.isdisjoint(other.zones):
                    which = "; a device may match both" if one.devices != other.devices else ""
                    yield f"prices.{first} and prices.{number} are both for {other}{which}"

    def _pool_faults(self) -> Iterator[str]:
        """Prices of one pool may differ in amounts, but not in meter and step."""
        yield from repeated_ids("pools", (pool.id for pool in self.pools))
        pools, first = self.pool_of, dict[str, int]()
        for number, price in enumerate(self.prices):
            named = price.pool_id and pools.get(price.pool_id)
            span = named.span if named else price.span
            if price.tier_mode is TierMode.VOLUME and span in {Span.WEEK, Span.YEAR}:
                yield (
                    f"prices.{number} has volume tiers by {span}: a later period would make units of earlier ones "
                    'cheaper; write tier_mode = "graduated", or tiers of a period'
                )
            if named is None:
                advice = name_advice(price.pool_id or "", [*pools, Pool.DEVICE.value, Pool.ACCOUNT.value])
                yield f"prices.{number} names pool {price.pool_id!r}, which pools does not have{advice}"
            elif named:
                at = first.setdefault(named.id, number)
                one = self.prices[at]
                if one.meter != price.meter:
                    yield f"prices.{at} and prices.{number} have one pool, {named.id!r}, and two meters"
                elif one.step_base != price.step_base:
                    yield f"prices.{at} and prices.{number} have one pool, {named.id!r}, and two steps"
                elif named.unit not in MEASURE_OF[price.meter].sale_units and (named.unit or named.allowance):
                    units = " or ".join(repr(unit) for unit in MEASURE_OF[price.meter].sale_units)
                    yield f"pool {named.id!r} has the unit {named.unit!r}, and {price.meter} is sold by {units}"
        yield from (f"pool {of_id!r} has no price" for of_id in pools if of_id not in first)

    @cached_property
    def pool_of(self) -> dict[str, NamedPool]:
        """The pools by id."""
        return {pool.id: pool for pool in self.pools}

    def pool(self, price: Price) -> NamedPool:
        """The pool that a price names, or its own."""
        return self.pool_of[price.pool_id] if price.pool_id else price.own_pool

    @cached_property
    def spans(self) -> frozenset[Span]:
        """The times other than the period that its pools, caps and minimum are for."""
        found = {self.pool(price).span for price in self.prices}
        found |= {cap.span for cap in self.caps} | ({self.minimum_span} if self.minimum_amount is not None else set())
        return frozenset(found - {Span.CYCLE})

    @cached_property
    def is_by_cycle(self) -> bool:
        """Whether it has an amount for each period, or something of a year, so that periods must follow a cycle."""
        return self.minimum_amount is not None or Span.YEAR in self.spans or any(fee.is_by_cycle for fee in self.fees)

    def _cap_faults(self) -> Iterator[str]:
        windows = {price.window for price in self.prices}
        for number, cap in enumerate(self.caps):
            if unpriced := [window for window in cap.windows if window not in windows]:
                yield f"caps.{number} is for window {unpriced[0]!r}, which has no price of its own"
            if len(set(cap.meters)) != len(cap.meters):
                yield f"caps.{number} names a meter twice"
            if cap.span is Span.DAY:
                # tiers and allowances are of the whole period, so a single day has no cost
                uneven = (price for price in self.prices if self._is_uneven(price))
                for price in islice((price for price in uneven if _may_be_under(cap, price)), 1):
                    what = "tiers" if price.tiers else "a step" if price.step else "an allowance"
                    yield (
                        f"caps.{number} is by day, and the price for {price} has {what}; cap the period, or give the "
                        "price one amount or span = 'day'"
                    )
        for (first, one), (second, other) in combinations(enumerate(self.caps), 2):
            is_same = (one.scope, one.span) == (other.scope, other.span)
            is_within = one.contains(other) != other.contains(one)
            is_apart = one.windows and other.windows and not {*one.windows} & {*other.windows}
            if is_same and one.overlaps(other) and not is_apart and not is_within:
                yield (
                    f"caps.{first} and caps.{second} are both by {one.scope} and {one.span}, and overlap; let one of "
                    "them have all that the other has, or nothing of it"
                )

    def _is_uneven(self, price: Price) -> bool:
        """Whether a day has no cost of its own. A fact has; but by volume, a later day makes one of a stay cheaper."""
        if price.meter in FACTS:
            return price.tier_mode is TierMode.VOLUME
        pool = self.pool(price)
        is_by_day = pool.span is Span.DAY and pool.scope is not Pool.TREE
        return not is_by_day and bool(price.tiers or pool.allowance or price.step)

    def _dearest_faults(self) -> Iterator[str]:
        for number, one in enumerate(self.dearest):
            for meter in one.meters:
                if meter not in FACTS - {Meter.DRIVEN_DAY}:
                    yield f"dearest.{number} is for {meter}; it can be for visit, stay and passage"
        for (first, one), (second, other) in combinations(enumerate(self.dearest), 2):
            if one.overlaps(other):
                yield f"dearest.{first} and dearest.{second} are for the same facts"

    def _fee_faults(self) -> Iterator[str]:
        yield from rival_fees(self.fees)
        for what, selecting in self.selecting.items():
            for number, one in enumerate(selecting):
                if unsold := [meter for meter in one.meters if meter not in self.sold]:
                    yield f"{what}.{number} is for {unsold[0]}, which has no price"

    def _decimal_faults(self) -> Iterator[str]:
        digits = exponent(self.currency)
        amounts = {f"caps.{number}.amount": cap.amount for number, cap in enumerate(self.caps)}
        amounts |= {f"prices.{number}.most": one.most for number, one in enumerate(self.prices) if one.most is not None}
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
