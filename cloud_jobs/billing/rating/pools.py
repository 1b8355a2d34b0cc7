"""Cost of a pool: the allowance covers its first units, tiers price the rest, and the whole is rounded once.

A pool is one meter of a device, an account or a tree in one span, by the place of its price or by the id of a pool. The
text of a price does not matter. A change of price begins a new stage: usage before the change comes first, so the
rest of the allowance and the position in the tiers continue. Within a stage units have no order; every use pays the
stage's average. A price with a step has started steps: the units of the pool are rounded up to whole ones.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, timedelta
from decimal import Context, Decimal
from fractions import Fraction
from hashlib import sha256
from itertools import groupby, product
from math import ceil, lcm
from types import MappingProxyType
from typing import Final, NamedTuple

from cloud_jobs.billing.contracts import (
    ANY_ZONE,
    AccountContract,
    NamedPool,
    PayerContract,
    Pool,
    PoolKey,
    Price,
    PricePlace,
    Span,
    Tariff,
    TariffSpan,
    TierMode,
)
from cloud_jobs.billing.contracts.fields import Attributes, attributes_text, factor_of, matches
from cloud_jobs.billing.errors import BillingError
from cloud_jobs.billing.rating.charges import ChargeKey
from cloud_jobs.billing.rating.terms import price_text
from cloud_jobs.billing.units import FACTS, MEASURE_OF, WITHOUT_ZONE, Meter, exponent, round_ratio

# Division of a rounded total by largest remainders.


class Exact(NamedTuple):
    """A non-negative ratio of integers, not reduced: as exact as Fraction, and several times faster."""

    numerator: int
    denominator: int = 1


def split(whole: int, exact: Exact | Fraction, weights: Sequence[int]) -> list[int]:
    """Splits `whole`, which is `exact` rounded up or down, in the ratio of the weights by largest remainder.

    Of equal remainders the earlier part gets the unit. A part of weight 0 gets nothing. Raises ValueError if `whole` is
    not a rounding of `exact`, or all weights are 0.
    """
    total, numerator, denominator = sum(weights), exact.numerator, exact.denominator
    if numerator < 0 or abs(whole * denominator - numerator) >= denominator or total <= 0 or min(weights) < 0:
        raise ValueError(f"{whole} of {exact} cannot be split by {list(weights)}")
    if len(weights) == 1:
        return [whole]
    denominator *= total
    return whole_units(whole, [divmod(weight * numerator, denominator) for weight in weights])


def split_exact(whole: int, shares: Sequence[Fraction]) -> list[int]:
    """Splits `whole`, which is the sum of exact shares rounded up or down, by largest remainder.

    Raises ValueError if `whole` is not a rounding of that sum.
    """
    if abs(whole - sum(shares, Fraction(0))) >= 1 or min(shares) < 0:
        raise ValueError(f"{whole} cannot be split into {[str(share) for share in shares]}")
    return whole_units(whole, [divmod(share, 1) for share in shares])


def shared(whole: int, weights: Mapping[str, int | Fraction]) -> dict[str, int]:
    """Splits `whole` (at least 0) in the ratio of positive weights; 0 is the first one's."""
    if len(weights) == 1:
        # nearly always
        return dict.fromkeys(weights, whole)
    names, total = sorted(weights), sum(weights.values())
    parts = split_exact(whole, [Fraction(whole * weights[name]) / total for name in names])
    return {name: part for name, part in zip(names, parts, strict=True) if part} or {names[0]: 0}


def whole_units(whole: int, shares: Sequence[tuple[int, int | Fraction]]) -> list[int]:
    """Rounds shares, as whole part (of the floor) and remainder, to the sum `whole` by largest remainder."""
    parts = [part for part, _ in shares]
    left = whole - sum(parts)
    if left:
        # never more units than positive remainders; the sort is stable
        rests = [rest for _, rest in shares]
        for index in sorted(range(len(parts)), key=rests.__getitem__, reverse=True)[:left]:
            parts[index] += 1
    assert sum(parts) == whole, (whole, shares)
    return parts


@dataclass(frozen=True, slots=True, eq=False)
class RatedPrice:
    """A price of a tariff version, prepared for rating.

    `version`: the first of consecutive versions with this price; in a shared pool, the moment (µs) from which it is in
    force. `terms`: equal for versions in which all prices of the pool are equal; for a shared pool, in any book.
    `window`: with its hours, as charges name it. `worth`: minor units of the payer's currency for one unit of the
    tariff's currency. `flat`: minor units for one base unit, for a price without tiers and step. `allowance`: in base
    units. `factor`: of the device's attributes, contained in worth and flat.
    """

    price: Price
    text: str
    tax: str
    window: str
    pool: PoolKey
    version: int
    terms: object
    worth: Fraction
    flat: Exact | None
    allowance: Exact
    factor: Decimal = Decimal(1)

    @property
    def by_day(self) -> Exact | None:
        """The cost of one base unit on any day; None if tiers, an allowance or a step apply to the whole period."""
        return self.flat if not self.allowance.numerator else None

    def exact_minor(self, quantity: int) -> Exact:
        """The cost of a pool with only this quantity, in base units. Raises BillingError above the last tier."""
        if self.flat is not None:
            # the integers of the fraction, not reduced
            paid = max(0, quantity * self.allowance.denominator - self.allowance.numerator)
            return Exact(paid * self.flat.numerator, self.allowance.denominator * self.flat.denominator)
        started = self.started(quantity)
        units = Paid(Fraction(0), started, started).per(self.price.base_per_unit)
        amount: Fraction = cost(self.price, units) * self.worth
        return Exact(amount.numerator, amount.denominator)

    def started(self, quantity: int) -> Fraction:
        """Base units that are paid for, of a pool or a fact with only this quantity."""
        allowance, price = Fraction(*self.allowance), self.price
        if price.meter in FACTS and price.step_base and quantity > allowance:
            # the steps of a visit count from its start, and a step that is free in part is paid for
            return self.in_steps(Fraction(quantity)) - allowance + allowance % Fraction(price.step_base)
        return self.in_steps(max(Fraction(0), quantity - allowance))

    def fact_minor(self, quantity: int) -> int:
        """The rounded amount of a fact. Raises BillingError above the last tier."""
        exact = self.exact_minor(quantity) if self.price.most is None else self.running(Fraction(0), 0, quantity)
        return round_ratio(exact.numerator, exact.denominator)

    def running(self, until: Fraction, begin: int, end: int) -> Fraction:
        """What a fact has cost at `end` (in base units of it), if it has cost `until` at `begin`, perhaps by another
        price. `most` is the maximum of both. Raises BillingError above the last tier.
        """
        exact = until + Fraction(*self.exact_minor(end)) - (Fraction(*self.exact_minor(begin)) if begin else 0)
        if self.price.most is not None:
            exact = min(exact, max(until, Fraction(self.price.most) * self.worth / Fraction(self.factor or 1)))
        return max(exact, Fraction(0))

    def in_steps(self, paid: Fraction) -> Fraction:
        """Base units that are paid for, rounded up to whole steps."""
        step = Fraction(self.price.step_base)
        return step * ceil(paid / step) if step else paid

    def free_of(self, quantity: int) -> int:
        """The whole base units that the allowance covers in a pool with only this quantity."""
        return min(quantity, self.allowance.numerator // self.allowance.denominator)


class Place(NamedTuple):
    """What a charge of a pool is for. Equal remainders are settled in this order."""

    account: str
    region: str
    tenant: str
    device: str
    zone: str
    window: str

    @classmethod
    def of(cls, key: ChargeKey) -> Place:
        return cls(key.account, key.region, key.tenant, key.device, key.zone, key.window)


def span_begin(span: Span, day: date | None) -> date:
    """The first day of the day or week that has a day."""
    assert day is not None, "cells of pools of a day or week are of one day each"
    return day - timedelta(days=day.weekday()) if span is Span.WEEK else day


Uses = Mapping[tuple[RatedPrice, Place], int]
"""The quantities of a pool in base units, by price and place."""


_NOTHING: Final[Uses] = MappingProxyType({})


class PoolUses(NamedTuple):
    """The uses of a pool in a period and in earlier ones, and what these cost, not rounded. `first`: its first day."""

    uses: Uses
    first: date | None = None
    before: Uses = _NOTHING
    before_minor: Fraction = Fraction(0)


class Paid(NamedTuple):
    """Units beyond the allowance, from position `begin` to `end` in the pool; `whole`: all of them in the period.

    With a step all three are whole steps: the usage that starts a step pays for it.
    """

    begin: Fraction
    end: Fraction
    whole: Fraction

    def per(self, base_per_unit: int) -> Paid:
        return Paid(*(one / base_per_unit for one in self))


class PoolStage(NamedTuple):
    """The uses of a pool while its prices did not change, in base units; the allowance covers `free` of `quantity`."""

    uses: tuple[tuple[RatedPrice, Place, int], ...]
    quantity: int
    free: Fraction
    paid: Paid


class PoolShare(NamedTuple):
    """The part of a pool that one place and price is charged."""

    place: Place
    text: str
    tax: str
    quantity: int
    free: int
    amount_minor: int


def pool_shares(uses: Uses) -> Iterable[PoolShare]:
    """The shares of a non-empty pool, in the order of their keys. Raises BillingError."""
    if len(uses) == 1:
        # most pools
        (((price, place), whole),) = uses.items()
        amount = round_ratio(*price.exact_minor(whole))
        return [PoolShare(place, price.text, price.tax, whole, price.free_of(whole), amount)]
    price = next(iter(uses))[0]
    if any(other is not price for other, _ in uses):
        return PoolSoFar().add(uses)
    rows = sorted([(place, quantity) for (_, place), quantity in uses.items()])
    weights = [quantity for _, quantity in rows]
    whole = sum(weights)
    exact, free, (numerator, denominator) = price.exact_minor(whole), price.free_of(whole), price.allowance
    amounts = split(round_ratio(*exact), exact, weights)
    frees = split(free, Exact(min(whole * denominator, numerator), denominator), weights) if free else [0] * len(rows)
    return [
        PoolShare(place, price.text, price.tax, quantity, *parts)
        for (place, quantity), *parts in zip(rows, frees, amounts, strict=True)
    ]


def pool_stages(uses: Uses, before: Uses = _NOTHING) -> list[PoolStage]:
    """The stages of the uses of a pool; those of `before` come first and are left out."""
    past, found = _stages(before), _stages(uses)
    found = past + found
    free, quantities = list[Fraction](), [sum(quantity for _, _, quantity in stage) for stage in found]
    for stage, quantity in zip(found, quantities, strict=True):
        # all prices of a pool in one version have the same allowance
        left = Fraction(*stage[0][0].allowance) - sum(free, Fraction(0))
        free.append(min(Fraction(quantity), max(Fraction(0), left)))
    whole, stages = sum(quantities) - sum(free, Fraction(0)), list[PoolStage]()
    used, reached = Fraction(0), Fraction(0)
    for stage, quantity, without in zip(found, quantities, free, strict=True):
        used, price = used + quantity - without, stage[0][0]
        # what an earlier price rounded up is paid already
        paid = Paid(reached, max(reached, price.in_steps(used)), price.in_steps(whole))
        reached = paid.end
        stages.append(PoolStage(stage, quantity, without, paid))
    assert used == whole
    return stages[len(past) :]


def _stages(uses: Uses) -> list[tuple[tuple[RatedPrice, Place, int], ...]]:
    listed = [(price, place, quantity) for (price, place), quantity in uses.items()]
    # two accounts of a device may have two tariffs
    listed.sort(key=lambda use: (use[0].version, str(use[0].terms)))
    return [tuple(stage) for _, stage in groupby(listed, key=lambda use: use[0].terms)]


class ExactShare(NamedTuple):
    """A share before rounding; `minor` in the payer's currency."""

    quantity: int
    free: Fraction
    minor: Fraction


def exact_shares(uses: Uses, before: Uses = _NOTHING) -> dict[tuple[Place, str, str], ExactShare]:
    """The exact shares of a pool by place, price text and tax, in order, after the uses of `before`. Raises
    BillingError.
    """
    found: dict[tuple[Place, str, str], ExactShare] = {}
    for stage in pool_stages(uses, before):
        for price, place, quantity in stage.uses:
            part = Fraction(quantity, stage.quantity)
            minor = cost(price.price, stage.paid.per(price.price.base_per_unit)) * price.worth * part
            key = place, price.text, price.tax
            of = found.get(key, ExactShare(0, Fraction(0), Fraction(0)))
            found[key] = ExactShare(of.quantity + quantity, of.free + stage.free * part, of.minor + minor)
    return dict(sorted(found.items()))


@dataclass(slots=True)
class PoolSoFar:
    """What a pool had in earlier periods: uses, and what they cost and had free, not rounded."""

    uses: Counter[tuple[RatedPrice, Place]] = field(default_factory=Counter)
    minor: Fraction = Fraction(0)
    free: Fraction = Fraction(0)

    def add(self, uses: Uses) -> list[PoolShare]:
        """The shares of the next period, whose uses come after those before: what all periods cost, rounded, less what
        those before cost. So none gives anything back, and together they are rounded once.
        """
        shares = exact_shares(uses, self.uses)
        minors, frees = [one.minor for one in shares.values()], [one.free for one in shares.values()]
        minor, free = sum(minors, self.minor), sum(frees, self.free)
        rounded = round_ratio(*minor.as_integer_ratio()) - round_ratio(*self.minor.as_integer_ratio())
        parts = split_exact(int(free) - int(self.free), frees), split_exact(rounded, minors)
        self.minor, self.free = minor, free
        self.uses.update(uses)
        return [
            PoolShare(*key, share.quantity, free_part, amount)
            for (key, share), free_part, amount in zip(shares.items(), *parts, strict=True)
        ]


OwnedPool = tuple[str, str, str, PoolKey, date | None]
"""Account (not of a pool that accounts share), tenant, device, pool, and its first day."""


class PayerPools:
    """The pools of a payer, some with usage of several accounts or periods. Periods are rated in order."""

    def __init__(self) -> None:
        self._before: defaultdict[OwnedPool, PoolSoFar] = defaultdict(PoolSoFar)
        self._uses: dict[OwnedPool, dict[tuple[RatedPrice, Place], int]] = {}
        self._ended = self._uses
        self._shares: dict[str, list[tuple[PoolKey, PoolShare]]] | None = None

    def add(
        self, contract: PayerContract, terms: AccountContract, use: tuple[RatedPrice, Place], day: date | None, of: int
    ) -> Uses:
        """Adds the quantity `of` a use. `day`: for a pool of a day or week. Returns all uses of the pool."""
        pool, place, first = use[0].pool, use[1], None
        # a device takes its pools of weeks and years along to another account of the payer
        account = terms.id if pool.scope == "account" or not pool.is_shared else ""
        device = (place.tenant, place.device) if pool.scope == "device" else ("", "")
        if pool.span == "year":
            year = contract.year if pool.scope is Pool.TREE else terms.year
            assert year is not None, "a contract with a pool of a year has contract years"
            first = year[0]
        elif pool.span != "cycle":
            first = span_begin(pool.span, day)
        of_pool = account, *device, pool, first
        uses = self._uses.get(of_pool)
        if uses is None:
            uses = self._uses[of_pool] = {}
        uses[use] = uses.get(use, 0) + of
        return uses

    def shares_of(self, account: str) -> list[tuple[PoolKey, PoolShare]]:
        """The shares of an account in the pools of the period, when all cells of the payer are added. Raises
        BillingError.
        """
        if self._shares is None:
            self._shares = defaultdict(list)
            for of, uses in self._uses.items():
                is_new = of[3].span == "cycle" or of[3].span == "day"
                for share in pool_shares(uses) if is_new else self._before[of].add(uses):
                    self._shares[share.place.account].append((of[3], share))
        return self._shares.get(account, [])

    def end_period(self) -> None:
        """The next period begins."""
        self._ended, self._uses = self._uses, {}
        self._shares = None

    def ended(self, account: str) -> Iterator[tuple[PoolKey, PoolUses]]:
        """The pools of the last period that has ended in which an account has a part."""
        for of, uses in self._ended.items():
            if any(place.account == account for _, place in uses):
                so_far = self._before.get(of, PoolSoFar())
                before, until = so_far.uses - Counter(uses), Fraction(0)
                if before:
                    until = so_far.minor - sum(one.minor for one in exact_shares(uses, before).values())
                yield of[3], PoolUses(uses, of[4], before, until)


def cost(price: Price, paid: Paid) -> Fraction:
    """The cost of units of a pool, in the tariff's currency. Raises BillingError above the last tier."""
    return sum((part * Fraction(amount) for part, amount in parts_of(price, paid)), Fraction(0))


def parts_of(price: Price, paid: Paid) -> list[tuple[Fraction, Decimal]]:
    """The units, or the steps, of a pool by their amount. Raises BillingError above the last tier."""
    if price.step_amount is not None:
        step = Fraction(price.step_base) / price.base_per_unit
        return [((paid.end - paid.begin) / step, price.step_amount)]
    if price.unit_amount is not None:
        return [(paid.end - paid.begin, price.unit_amount)]
    found, below = list[tuple[Fraction, Decimal]](), Fraction(0)
    reached = paid.whole if price.tier_mode is TierMode.VOLUME else paid.end
    for tier in price.tiers:
        is_last = tier.up_to is None or reached <= Fraction(tier.up_to)
        if is_last and price.tier_mode is TierMode.VOLUME:
            return [(paid.end - paid.begin, tier.unit_amount)]
        end = reached if is_last else Fraction(tier.up_to or 0)
        part = end - max(below, paid.begin)
        if part > 0 or (is_last and not found):
            found.append((max(part, Fraction(0)), tier.unit_amount))
        if is_last:
            return found
        below = end
    raise BillingError(
        f"the price of {price.meter} in zone {price.zone!r} has no tier for {float(reached):g} {price.unit}; "
        "the last tier must have no upper end"
    )


# The price of a cell in the payer's minor unit.

MAX_BOOKS: Final = 4096
"""Cached price books."""
_EXACT: Final = Context(prec=100)
MAX_FOUND: Final = 65_536
"""Cached look-ups of one book."""


_TABLES: Final = "\n"
"""Stands for the zone of prices that have amounts by zone; no zone has this id."""


class MissingFactor(BillingError):
    """A price is multiplied by an attribute that the device does not have, or that is no number."""


class PriceBook:
    """The prices of an account's tariff versions. Raises BillingError."""

    def __init__(self, tariffs: tuple[TariffSpan, ...], contract: PayerContract) -> None:
        self.spans = tariffs
        self.tariffs = tuple(one.tariff for one in tariffs)
        self.begins = tuple(one.begin_us for one in tariffs)
        self.worths = tuple(worth_of(tariff.currency, contract) for tariff in self.tariffs)
        self._listed: list[Mapping[PricePlace, Sequence[RatedPrice]]] = []
        self._terms: dict[object, int] = {}
        for version, (tariff, worth) in enumerate(zip(self.tariffs, self.worths, strict=True)):
            before = self._listed[-1] if self._listed else {}
            tax = contract.payer.vat.tax
            self._listed.append(_rated(version, tariff, worth, self._terms, before, tax=tax))
        # daily amounts are integer multiples of 1/parts of a minor unit, but for factors and amounts by zone
        prices = (price for listed in self._listed for of_place in listed.values() for price in of_place)
        self.parts = lcm(*(price.flat.denominator for price in prices if price.flat))
        self._found: dict[tuple[int, Meter, str, str, Attributes, tuple[str, str]], RatedPrice | None] = {}
        self.includes_tax = any(tariff.includes_tax for tariff in self.tariffs)
        self.capped_by_day = [any(cap.span is Span.DAY for cap in tariff.caps) for tariff in self.tariffs]

    def sells(self, version: int, meter: Meter) -> bool:
        """Whether the version has a price for the meter anywhere. A meter without a price is not sold."""
        return meter in self.tariffs[version].sold

    def price(
        self,
        version: int,
        meter: Meter,
        zone: str,
        window: str,
        attributes: Attributes = (),
        *,
        passed: tuple[str, str] = ("", ""),
    ) -> RatedPrice | None:
        """The price that applies: after this gate or else by itself, of the zone or else of ANY_ZONE, in the window or
        else in none, in the direction or else in both; of the prices of such a place, the one that names most of the
        device's attributes.

        `passed`: the direction of a passage, and the gate before. ANY_ZONE does not include "" (outside all zones).
        None is an error if the meter is sold elsewhere. Raises MissingFactor.
        """
        of = version, meter, zone, window, attributes, passed
        found = self._found.get(of)
        if found is None and of not in self._found:
            if len(self._found) >= MAX_FOUND:
                self._found.clear()
            found = self._found[of] = self._look_up(version, PricePlace(meter, zone, window, *passed), attributes)
        return found

    def _look_up(self, version: int, used: PricePlace, attributes: Attributes) -> RatedPrice | None:
        listed, (meter, zone, *rest) = self._listed[version], used
        zones = (zone, ANY_ZONE) if zone or meter in WITHOUT_ZONE else (zone,)
        windows, directions, gates = ((one, "") if one else ("",) for one in rest)
        for gate, at, window, direction in product(gates, zones, windows, directions):
            place = PricePlace(meter, at, window, direction, gate)
            tables = (one for one in listed.get(place._replace(zone=_TABLES), ()) if at in one.price.amounts)
            here = [one for one in (*listed.get(place, ()), *tables) if matches(one.price.devices, attributes)]
            if here:
                found = max(here, key=lambda one: len(one.price.devices))
                return self._multiplied(self._of_zone(found, at, version), attributes)
        return None

    def _of_zone(self, found: RatedPrice, zone: str, version: int) -> RatedPrice:
        """The price of one zone of a table: made when it is needed, because a table may have very many."""
        if not found.price.amounts:
            return found
        tariff, price = self.tariffs[version], found.price.of_zone(zone)
        pool = tariff.pool(price)
        texts = price_text(price, tariff.currency, pool), found.tax, found.window
        own = _terms(price.pool_key(pool), [(zone, *texts, "")], self._terms)
        return _prepared(price, pool, texts, (version, found.terms if pool.id else own, found.worth))

    def _multiplied(self, found: RatedPrice, attributes: Attributes) -> RatedPrice:
        if not found.price.times:
            return found
        factor = Decimal(1)
        for name in found.price.times:
            of_name = factor_of(attributes, name)
            if of_name is None:
                raise MissingFactor(
                    f"the price {found.text!r} is multiplied by attribute {name!r}, and the device has "
                    f"{attributes_text(attributes)}; state a number in its assignment"
                )
            factor = _EXACT.multiply(factor, of_name)
        numerator, denominator = factor.as_integer_ratio()
        flat = found.flat and Exact(found.flat.numerator * numerator, found.flat.denominator * denominator)
        tariff = self.tariffs[found.version]
        text = price_text(found.price, tariff.currency, tariff.pool(found.price), attributes)
        return replace(found, text=text, factor=factor, worth=found.worth * Fraction(factor), flat=flat)

    def gap(
        self, version: int, meter: Meter, zone: str, window: str, *, used: str, attributes: Attributes
    ) -> BillingError:
        """A gap in the price list, which is never free. `used`: by which device, and when."""
        where = f"zone {zone!r}" if zone else "outside all zones"
        when, anywhere = f", window {window!r}" if window else "", ", or one for zone '*'" if zone else ""
        when += f", devices with {attributes_text(attributes)}" if self.tariffs[version].attribute_names else ""
        return BillingError(
            f"tariff {self.tariffs[version].id!r} has no price of {meter.value} for {where}{when}, where {used}; "
            f"publish a version with one{anywhere}"
        )


class PriceBooks:
    """A cache of price books, at most MAX_BOOKS: many accounts have the same tariff."""

    def __init__(self) -> None:
        self._books: dict[tuple[object, ...], PriceBook] = {}

    def book(self, tariffs: tuple[TariffSpan, ...], contract: PayerContract) -> PriceBook:
        """The book of these versions for the payer's currency and rates. Raises BillingError."""
        # By identity: comparing contents would cost more than the book. A book keeps its tariffs alive, so that
        # no other tariff gets the identity of a deleted one.
        rates = tuple(contract.rates.get(one.tariff.currency) for one in tariffs)
        of = (id(of) for one in tariffs for of in (one.tariff, one.calendar))
        key = (contract.payer.currency, contract.payer.vat.tax, rates, *of)
        if key not in self._books:
            if len(self._books) >= MAX_BOOKS:
                self._books.clear()
            self._books[key] = PriceBook(tariffs, contract)
        return self._books[key]


def worth_of(currency: str, contract: PayerContract) -> Fraction:
    """The payer's minor units for one unit of a currency. Raises BillingError."""
    minor: int = 10 ** exponent(contract.payer.currency)
    if currency == contract.payer.currency:
        return Fraction(minor)
    rate = contract.rates.get(currency)
    if rate is None:
        into = contract.payer.currency
        day = contract.period.last_day
        raise BillingError(f"no exchange rate from {currency} into {into} in force at the end of {day}; publish one")
    return Fraction(rate) * minor


def _terms(pool: PoolKey, places: list[tuple[str, ...]], numbers: dict[object, int]) -> object:
    """What tells the prices of a pool apart: a number of the book, or a text for a pool that other books share."""
    if pool.is_shared:
        return str(places)
    return numbers.setdefault((pool, *places), len(numbers))


def _rated(
    version: int,
    tariff: Tariff,
    worth: Fraction,
    terms: dict[object, int],
    before: Mapping[PricePlace, Sequence[RatedPrice]],
    *,
    tax: str,
) -> Mapping[PricePlace, Sequence[RatedPrice]]:
    """The prices of a version by meter, zone and window. `tax`: of prices that state none.

    `terms` numbers the sets of prices of a pool. A price whose pool did not change is the object of `before`.
    """
    of_pool: defaultdict[PoolKey, list[tuple[str, ...]]] = defaultdict(list)
    stated = list[tuple[Price, NamedPool, tuple[str, str, str]]]()
    windows = {"": ""} | {window.id: window.text for window in tariff.windows}
    for price in tariff.prices:
        pool = tariff.pool(price)
        taxed = price.vat.tax if price.vat else tax
        texts = price_text(price, tariff.currency, pool), taxed, windows[price.window]
        stated.append((price, pool, texts))
    for price, pool, texts in stated:
        if pool.id or not price.amounts:
            amounts = sha256(repr(sorted(price.amounts.items())).encode()).hexdigest() if price.amounts else ""
            of_pool[price.pool_key(pool)].append((price.zone, *texts, amounts))
    number = {pool: _terms(pool, sorted(places), terms) for pool, places in of_pool.items()}
    found: defaultdict[PricePlace, list[RatedPrice]] = defaultdict(list)
    for price, pool, texts in stated:
        place = price.place._replace(zone=_TABLES) if price.amounts else price.place
        # each zone of a table has a pool of its own
        own = number[price.pool_key(pool)] if pool.id or not price.amounts else None
        was = [
            one
            for one in before.get(place, ())
            if own is not None and one.terms == own and one.price.devices == price.devices
        ]
        found[place] += was or [_prepared(price, pool, texts, (version, own, worth))]
    return found


def _prepared(
    price: Price, pool: NamedPool, texts: tuple[str, str, str], of: tuple[int, object, Fraction]
) -> RatedPrice:
    """`texts`: of the price, its tax and its window. `of`: version, terms and worth."""
    (version, terms, worth), flat = of, None
    if price.unit_amount is not None and price.step is None:
        flat = Exact(*(Fraction(price.unit_amount) * worth / price.base_per_unit).as_integer_ratio())
    base = MEASURE_OF[price.meter].sale_units[pool.unit].base_per_unit if pool.allowance else 0
    allowance = Exact(*(Fraction(pool.allowance) * base).as_integer_ratio())
    return RatedPrice(price, *texts, price.pool_key(pool), version, terms, worth, flat, allowance)
