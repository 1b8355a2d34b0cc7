"""Prices of a meter by zone and window, flat or in tiers; and fees, which are due without usage."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from datetime import date, datetime
from decimal import Decimal
from enum import StrEnum
from functools import cached_property
from itertools import combinations, pairwise
from typing import Annotated, Final, Literal, NamedTuple, Self

from pydantic import AfterValidator, Field, PlainSerializer, PlainValidator, model_validator

from cloud_jobs.billing.contracts.fields import (
    Amount,
    Contract,
    Factors,
    Id,
    PrintedName,
    Selector,
    SignedAmount,
    SignedPercent,
    UnitAmount,
    Vat,
    Zone,
    may_both_select,
    selector_text,
)
from cloud_jobs.billing.units import FACTS, MEASURE_OF, WITHOUT_ZONE, Meter, MeterZones

ANY_ZONE: Final = "*"
"""The price of every zone that has none of its own; "" is what is outside all zones."""
MAX_TIERS: Final = 100
MAX_MINUTES: Final = 1_440
"""The longest time between two facts that a price can depend on."""
MAX_AMOUNTS: Final = 100_000
_WHOLE_STAY: Final = 10**12
"""The step, in units, of a stay that has one amount."""


class TierMode(StrEnum):
    """Graduated: each unit is priced by its own tier. Volume: all units by the tier of the whole quantity."""

    GRADUATED = "graduated"
    VOLUME = "volume"


class Pool(StrEnum):
    """Whose quantities or amounts are added up: each device's, the account's, or those of all accounts of a payer."""

    DEVICE = "device"
    ACCOUNT = "account"
    TREE = "tree"


class Span(StrEnum):
    """The time for which they are added up: a local day or week (from Monday), the period, or the contract year."""

    DAY = "day"
    WEEK = "week"
    CYCLE = "cycle"
    YEAR = "year"


def selects(meters: Collection[Meter], zones: Collection[str], meter: Meter, zone: str) -> bool:
    """Whether the usage of a meter in a zone is among these meters and zones; () stands for all."""
    if meters and meter not in meters:
        return False
    return not zones or (meter not in WITHOUT_ZONE and is_among(zone, zones))


class Selects(Contract):
    """Chooses usage by meter and zone. (): all."""

    meters: tuple[Meter, ...] = ()
    zones: tuple[Zone, ...] = ()

    def covers(self, meter: Meter, zone: str, window: str = "") -> bool:  # noqa: ARG002, for what selects windows
        return selects(self.meters, self.zones, meter, zone)

    @property
    def all_meters(self) -> frozenset[Meter]:
        """The meters that it is for; only those of zones if it names zones."""
        return frozenset(meter for meter in self.meters or Meter if not self.zones or meter not in WITHOUT_ZONE)

    def overlaps(self, other: Selects) -> bool:
        """Whether some usage may be chosen by both."""
        pairs = (self.zones, other.zones), (other.zones, self.zones)
        zones = any(not these or not those or any(is_among(zone, those) for zone in these) for these, those in pairs)
        return zones and bool(self.all_meters & other.all_meters)


ZonePath = tuple[tuple[str | int, ...], Meter | None, str]
"""Where a contract names a zone, for which meter (None: any usage), and the zone."""


def zones_of(what: str, selecting: Iterable[Selects]) -> Iterator[ZonePath]:
    """The zones that choose usage. `what`: the key of these in their contract."""
    for number, one in enumerate(selecting):
        yield from (((what, number, "zones"), None, zone) for zone in one.zones)


def is_among(zone: str, zones: Collection[str]) -> bool:
    """Whether a zone is one of these, of which ANY_ZONE stands for every one."""
    return zone in zones or (zone != "" and ANY_ZONE in zones)


class Direction(StrEnum):
    """The direction in which a gate is passed."""

    FORWARD = "forward"
    BACKWARD = "backward"


class Tier(Contract):
    """Units up to and including `up_to` (None: all above), in the unit of the price."""

    up_to: Amount | None = None
    unit_amount: UnitAmount


_SHORT_FORMS: Final = frozenset({Pool.DEVICE.value, Pool.ACCOUNT.value})
"""A pool of one price; no pool of a tariff has such an id."""


def _no_short_form(of_id: str) -> str:
    if of_id in [*Pool]:
        raise ValueError(f"{of_id!r} is a scope; give the pool another id")
    return of_id


class NamedPool(Contract):
    """A pool of the prices that name it. `allowance`: its first units are free; `unit`: of the allowance."""

    id: Annotated[Id, AfterValidator(_no_short_form)]
    scope: Pool = Pool.DEVICE
    span: Span = Span.CYCLE
    allowance: Amount = Decimal(0)
    unit: str = ""


class PoolKey(NamedTuple):
    """The pool of a price in all versions of a tariff: by its id, or by the place of the price."""

    scope: Pool
    span: Span
    meter: Meter
    pool_id: str
    zone: str = ""
    window: str = ""
    devices: str = ""

    @property
    def is_shared(self) -> bool:
        """Whether it has usage of other accounts or periods."""
        # texts, because members of an enum are slow to look up and to hash
        return self.scope == "tree" or self.span == "week" or self.span == "year"  # noqa: PLR1714


class PricePlace(NamedTuple):
    """What a price is for; a tariff has one price for each. `direction` and `after` are of passages."""

    meter: Meter
    zone: str
    window: str
    direction: str = ""
    after: str = ""


class Price(Contract):
    """The price of one unit of a meter in a zone and a window ("": when no other window has a price).

    `name`: printed instead of the meter.
    Each price has its own allowance, tiers and rounding, by device or account and `span`; prices that name a pool of
    the tariff share its own. `step`: the units that a pool pays for are rounded up to whole steps. `step_amount`: of
    each step, instead of `unit_amount`; of a stay without `step`, of all of it. `vat`: None: the payer's.
    `amounts`: unit amounts by zone, instead of `zone` and `unit_amount`. `devices`: only devices with these attributes;
    of the prices of a place the one that names most of them applies. `times`: attributes by whose numbers the unit
    amount is multiplied.

    A price of a fact (FACTS) applies to each fact by itself. `most`: of a stay, the maximum amount. `direction`: of
    passages, None: both. `after`, `within`: of a passage that follows one of the gate `after` in `within` minutes.
    """

    meter: Meter
    name: PrintedName | None = None
    zone: Zone = ""
    window: str = ""
    unit: str
    unit_amount: UnitAmount | None = None
    amounts: Annotated[dict[Zone, UnitAmount], Field(max_length=MAX_AMOUNTS)] = Field(default_factory=dict)
    tiers: Annotated[tuple[Tier, ...], Field(max_length=MAX_TIERS)] = ()
    tier_mode: TierMode = TierMode.GRADUATED
    allowance: Amount = Decimal(0)
    step: Annotated[Amount, Field(gt=0)] | None = None
    step_amount: UnitAmount | None = None
    pool: Id = Pool.DEVICE.value
    span: Span = Span.CYCLE
    vat: Vat | None = None
    most: Amount | None = None
    direction: Direction | None = None
    after: Zone | None = None
    within: Annotated[int, Field(ge=1, le=MAX_MINUTES)] | None = None

    devices: Selector = Field(default_factory=dict)
    times: Factors = ()

    @property
    def place(self) -> PricePlace:
        return PricePlace(self.meter, self.zone, self.window, self.direction or "", self.after or "")

    @property
    def zones(self) -> Collection[str]:
        """The zones that it is for."""
        return self.amounts or (self.zone,)

    def of_zone(self, zone: str) -> Price:
        """The price of one zone of `amounts`."""
        return self.model_copy(update={"zone": zone, "unit_amount": self.amounts[zone], "amounts": {}})

    @property
    def base_per_unit(self) -> int:
        """Base units of the meter in one unit of the price."""
        return MEASURE_OF[self.meter].sale_units[self.unit].base_per_unit

    @property
    def pool_id(self) -> str:
        """The id of a pool of the tariff; "" for a pool of its own."""
        return "" if self.pool in _SHORT_FORMS else self.pool

    @property
    def step_base(self) -> Decimal:
        """The step in base units; 0 for none."""
        return (self.step or (_WHOLE_STAY if self.step_amount is not None else 0)) * Decimal(self.base_per_unit)

    @cached_property
    def own_pool(self) -> NamedPool:
        """The pool of a price that names none, without an id."""
        return NamedPool.model_construct(
            id="", scope=Pool(self.pool), span=self.span, allowance=self.allowance, unit=self.unit
        )

    def pool_key(self, pool: NamedPool) -> PoolKey:
        """`pool`: its own, or the one of the tariff that it names."""
        key = PoolKey(pool.scope, pool.span, self.meter, pool.id)
        return key if pool.id else key._replace(zone=self.zone, window=self.window, devices=selector_text(self.devices))

    @model_validator(mode="after")
    def _of_its_meter(self) -> Self:
        measure = MEASURE_OF[self.meter]
        if self.unit not in measure.sale_units:
            units = " or ".join(repr(unit) for unit in measure.sale_units)
            raise ValueError(f"{self.meter} is sold by {units}, not by {self.unit!r}")
        if self.amounts and self.zone:
            raise ValueError(f"amounts have zones of their own; leave out zone {self.zone!r}")
        if measure.zones is MeterZones.NONE and (zone := next(filter(None, self.zones), None)):
            raise ValueError(f"{self.meter} is metered for the whole device; leave out zone {zone!r}")
        if measure.zones in {MeterZones.INSIDE, MeterZones.GATES} and not all(self.zones):
            what = "gate" if measure.zones is MeterZones.GATES else "zone"
            raise ValueError(f'{self.meter} is of a {what}: name its zone, or write "*" for every one')
        if self.meter is Meter.ACTIVE_DAY and self.window:
            raise ValueError(f"{self.meter} counts whole days; leave out window {self.window!r}")
        return self

    @model_validator(mode="after")
    def _states_its_pool_once(self) -> Self:
        if self.pool == Pool.TREE:
            raise ValueError(
                "accounts of a payer share a pool of the tariff: give it an id and scope = 'tree' in pools"
            )
        if self.pool_id and (self.allowance or self.span is not Span.CYCLE):
            raise ValueError(f"allowance and span are those of pool {self.pool!r}; write them there")
        return self

    @model_validator(mode="after")
    def _of_facts(self) -> Self:
        if self.meter in FACTS and (self.pool != Pool.DEVICE or self.span is not Span.CYCLE):
            raise ValueError(f"each {self.meter} is charged by itself; leave out pool and span")
        if self.meter in FACTS - {Meter.STAY} and (self.tiers or self.allowance or self.step):
            raise ValueError(
                f"each {self.meter} is charged by itself; give it a unit_amount, without allowance or step"
            )
        if self.most is not None and self.meter is not Meter.STAY:
            raise ValueError(f"most is the maximum of each stay; use a cap for {self.meter}")
        if self.meter is not Meter.PASSAGE and (self.direction or self.after is not None):
            raise ValueError(f"direction and after are of a passage, and this price is for {self.meter}")
        if (self.after is None) != (self.within is None):
            raise ValueError("after and within belong together: the gate before, and the minutes until this one")
        if self.after in {"", ANY_ZONE}:
            raise ValueError(f"after names the gate before, not {self.after!r}")
        return self

    @model_validator(mode="after")
    def _one_amount_or_tiers(self) -> Self:
        given = (self.unit_amount is not None, self.step_amount is not None, bool(self.tiers), bool(self.amounts))
        if sum(given) != 1:
            raise ValueError("a price has either a unit_amount, or a step_amount, or tiers, or amounts by zone")
        if self.step_amount is not None and self.step is None and self.meter is not Meter.STAY:
            raise ValueError("step_amount is the amount of each started step; state the step, for instance step = 30")
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
        zone = f"in {len(self.amounts)} zones" if self.amounts else zone
        devices = f" for {selector_text(self.devices)}" if self.devices else ""
        where = "" if MEASURE_OF[self.meter].zones is MeterZones.NONE else f" {zone}"
        window = f" in window {self.window!r}" if self.window else ""
        after = f" after gate {self.after!r}" if self.after else ""
        return f"{self.meter}{where}{window}" + (f" {self.direction}" if self.direction else "") + after + devices


class Proration(StrEnum):
    """What is agreed for part of a period: charged whole, or in proportion to the local days."""

    WHOLE = "whole"
    BY_DAY = "by_day"


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


class Fee(Selects):
    """An amount, or a per cent of usage charges after caps; below 0 it is a credit. It is a charge of its own.

    `name`: printed on documents. `scope`: of the account, or of each of its devices. `begin`, `end` (excluded): local
    days on which it is in force; a fee that is charged once is so in the period that has `begin`. `meters`, `zones`:
    the usage that a per cent is of; (): all. A tariff's amount is in its currency, an account's in the payer's. `vat`:
    None: that of the usage for a per cent, of what it takes from for a credit, otherwise the payer's. `devices`: only
    devices with these attributes, while they have them; of the fees with one id the one that names most of them
    applies.
    """

    id: Id
    name: PrintedName
    amount: SignedAmount | None = None
    percent: SignedPercent | None = None
    scope: Literal[Pool.DEVICE, Pool.ACCOUNT] = Pool.ACCOUNT
    every: Every = Every.PERIOD
    proration: Proration = Proration.BY_DAY
    begin: LocalDay | None = None
    end: LocalDay | None = None
    vat: Vat | None = None
    devices: Selector = Field(default_factory=dict)

    def __hash__(self) -> int:
        return hash((self.id, self.amount, self.percent))

    @property
    def is_whole(self) -> bool:
        """Whether a day in force is enough for all of it."""
        return self.every is Every.ONCE or self.proration is Proration.WHOLE

    @property
    def is_by_cycle(self) -> bool:
        """Whether it is an amount for each period."""
        return self.amount is not None and self.every is Every.PERIOD

    def holds_on(self, day: date) -> bool:
        if self.every is Every.ONCE:
            return day == self.begin
        return (self.begin is None or self.begin <= day) and (self.end is None or day < self.end)

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        if (self.amount is None) == (self.percent is None):
            raise ValueError(f"fee {self.id!r} needs either an amount or a percent")
        if self.percent is None and (self.meters or self.zones):
            raise ValueError(f"fee {self.id!r} is an amount; meters and zones choose the usage of a percent")
        if self.devices and (self.percent is not None or self.scope is Pool.ACCOUNT):
            raise ValueError(f'fee {self.id!r} selects devices, so it needs an amount and scope = "device"')
        if self.every is Every.ONCE and (self.begin is None or self.end is not None):
            raise ValueError(f"fee {self.id!r} is charged once, on its begin: write a begin and no end")
        if self.begin and self.end and self.end <= self.begin:
            raise ValueError(f"fee {self.id!r} ends on {self.end}, which is not after its begin, {self.begin}")
        return self


Fees = Annotated[tuple[Fee, ...], Field(max_length=100)]


def rival_fees(fees: Iterable[Fee]) -> Iterator[str]:
    """A fault for two fees with one id that are not amounts of devices, or of which neither is for fewer of them."""
    for one, other in combinations(fees, 2):
        by_device = one.scope is other.scope is Pool.DEVICE and one.percent is other.percent is None
        is_inner = by_device and len(one.devices) != len(other.devices)
        if one.id == other.id and not (is_inner or not may_both_select(one.devices, other.devices)):
            yield f"two fees have the id {one.id!r}" + ("; a device may match both" if one.devices else "")


def repeated_ids(what: str, ids: Iterable[str]) -> Iterator[str]:
    """A fault for each id that two of them have."""
    listed = sorted(ids)
    yield from (f"two {what} have the id {one!r}" for one in dict.fromkeys(listed) if listed.count(one) > 1)
