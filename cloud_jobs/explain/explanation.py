"""A charge taken apart into hours, or into days and other charges, and whether it can be reproduced. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from decimal import Decimal
from fractions import Fraction
from itertools import chain, groupby
from typing import Final
from zoneinfo import ZoneInfo

import pyarrow as pa
import pyarrow.compute as pc

from cloud_jobs.billing.contracts import PayerContract, Pool, Span
from cloud_jobs.billing.contracts.published import moment_of
from cloud_jobs.billing.rating import (
    VAT_INCLUDED,
    Cell,
    Charge,
    ChargeKey,
    PriceBooks,
    cells_of_usage,
)
from cloud_jobs.billing.rating.cells_of_usage import QUARTER
from cloud_jobs.billing.rating.charges import ChargeKind, MeteredKey, metered_key, rate_of
from cloud_jobs.billing.rating.facts import Passage, rows_of_facts
from cloud_jobs.billing.rating.fees import EarlierPeriods, FeeDue, MinimumDue
from cloud_jobs.billing.rating.pools import (
    Paid,
    Place,
    PoolStage,
    PoolUses,
    PriceBook,
    RatedPrice,
    exact_shares,
    parts_of,
    pool_stages,
    split_exact,
    worth_of,
)
from cloud_jobs.billing.rating.rate import AccountBill, AccountRating, CapReduction, PeriodUsage, account_bills
from cloud_jobs.billing.rating.rate_facts import PricedFact
from cloud_jobs.billing.rating.terms import number_text, terms_of
from cloud_jobs.billing.units import MEASURE_OF, Meter, amount_text, exponent, place_text, quantity_text, round_ratio
from cloud_jobs.lake.coverage import SeqRanges, TenantDevice


def arithmetic_of(contract: PayerContract, pool: PoolUses, key: ChargeKey) -> Iterator[tuple[str, str]]:
    """How the amount of a usage charge arises from all uses of its pool: steps of docs/rating.md with their figures."""
    (uses, first, before, _), place = pool, Place.of(key)
    price = next(one for one, at in uses if (one.text, one.tax, at) == (key.price, key.tax, place))
    unit, per_unit, shares = price.price.unit, price.price.base_per_unit, exact_shares(uses, before)
    used, vehicles = Fraction(sum(uses.values()), per_unit), len({(at.tenant, at.device) for _, at in uses})
    if before:
        earlier = f"{_text(Fraction(sum(before.values()), per_unit))} {unit}"
        yield f"used in earlier periods of the {price.pool.span} from {first}", earlier
    if len(shares) > 1:
        whose = "all accounts" if price.pool.scope is Pool.TREE else "the account"
        of = f"{vehicles} vehicles of {whose}" if vehicles > 1 else "this vehicle"
        yield f"the pool: {len(shares)} charges of {of}", f"{_text(used)} {unit}"
    elif first:
        yield f"used in this period, {price.pool.span} from {first}", f"{_text(used)} {unit}"
    yield from _units(pool, price)
    whole, currency = sum((one.minor for one in shares.values()), Fraction(0)), contract.payer.currency
    yield from _rounding(contract, pool, price, whole)
    if len(shares) > 1:
        until, rounded = (
            round_ratio(*one.as_integer_ratio()) for one in (pool.before_minor, pool.before_minor + whole)
        )
        parts = split_exact(rounded - until, [one.minor for one in shares.values()])
        mine, part = next(
            (share, part)
            for (of, share), part in zip(shares.items(), parts, strict=True)
            if of == (place, key.price, key.tax)
        )
        units = Fraction(mine.quantity, per_unit)
        is_in_ratio = mine.minor * used == whole * units
        costs = "" if is_in_ratio else f", exactly {_text(mine.minor / 10 ** exponent(currency))} {currency}"
        words = f"the part of {_text(units)} of {_text(used)} {unit}{costs}, by largest remainder"
        yield words, f"{amount_text(part, currency)} {currency}"


def _units(pool: PoolUses, price: RatedPrice) -> Iterator[tuple[str, str]]:
    """The free and the paid units of a pool, and what these cost, for each time between two changes of its price."""
    (uses, _, before, _), stated, per_unit = pool, price.price, price.price.base_per_unit
    stages, allowance, unit = pool_stages(uses, before), Fraction(0), stated.unit
    free = sum((stage.free for stage in pool_stages(before)), Fraction(0)) if before else Fraction(0)
    for number, stage in enumerate(stages):
        units, allowance = Fraction(stage.quantity, per_unit), Fraction(*stage.uses[0][0].allowance)
        if len(stages) > 1:
            yield "until the price changed" if not number else "after it changed", f"{_text(units)} {unit}"
        if allowance and (before or not number or stage.free):
            left = max(Fraction(0), allowance - free) / per_unit
            of = f"the allowance of {_short(allowance / per_unit)} {unit}"
            said = f"less {of}" if not free else f"less {_short(left)} {unit}, what is left of {of}"
            yield said, f"{_text(units - stage.free / per_unit)} {unit}"
        free += stage.free
        if stated.step:
            started = stage.paid.end - stage.paid.begin
            yield f"in started steps of {stated.step:f} {unit}", f"{_text(started / per_unit)} {unit}"
        for share, amount, currency in _paid(stage):
            of = unit if stated.step_amount is None else "steps"
            yield f"{_text(share)} {of} × {amount:f} {currency}", f"{_text(share * Fraction(amount))} {currency}"
    if allowance and price.pool.span is Span.YEAR:
        yield (
            "left of the allowance for later periods",
            f"{_text(max(Fraction(0), allowance - free) / per_unit)} {unit}",
        )


def _rounding(contract: PayerContract, pool: PoolUses, price: RatedPrice, whole: Fraction) -> Iterator[tuple[str, str]]:
    """How the exact amount of a pool becomes one of the payer's minor units."""
    currency, until = contract.payer.currency, pool.before_minor
    minor: int = 10 ** exponent(currency)
    paid = [of for stage in pool_stages(pool.uses, pool.before) for *_, of in _paid(stage)]
    if {*paid} == {_currency(price)} != {currency}:
        rate = worth_of(_currency(price), contract) / minor
        yield f"exchanged at {_text(rate)}", f"{_text(whole / minor)} {currency}"
    elif len(paid) > 1:
        yield "together", f"{_text(whole / minor)} {currency}"
    before, rounded = (round_ratio(*one.as_integer_ratio()) for one in (until, until + whole))
    if until:
        yield f"with earlier periods of the {price.pool.span}", f"{_text((until + whole) / minor)} {currency}"
    less = f", less {amount_text(before, currency)} of earlier periods" if until else ""
    yield f"rounded, a half up{less}", f"{amount_text(rounded - before, currency)} {currency}"


def _currency(price: RatedPrice) -> str:
    return next(term.facts["currency"] for term in terms_of(price.text) if "currency" in term.facts)


def _paid(stage: PoolStage) -> Iterator[tuple[Fraction, Decimal, str]]:
    """The paid units of a stage by unit amount: units, amount and currency."""
    of_price: dict[str, tuple[RatedPrice, int]] = {}
    for price, _, quantity in stage.uses:
        of_price[price.text] = price, of_price.get(price.text, (price, 0))[1] + quantity
    for price, quantity in of_price.values():
        for part, amount in parts_of(price.price, stage.paid.per(price.price.base_per_unit)):
            yield part * Fraction(quantity, stage.quantity), amount * price.factor, _currency(price)


def _short(number: Fraction) -> str:
    return number_text(Decimal(number.numerator) / number.denominator)


def _text(number: Fraction) -> str:
    """Two to nine digits after the point; ≈ precedes a rounded number."""
    exact = Decimal(number.numerator) / Decimal(number.denominator)
    shown = round(exact, 9)
    whole, _, digits = f"{shown:f}".partition(".")
    return f"{'' if Fraction(shown) == number else '≈ '}{whole}.{digits.rstrip('0').ljust(2, '0')}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainedHour:
    """One usage row of a charge.

    `quantity`: the charged part in the meter's base unit; less than the row if a midnight, window or price change cuts
    the hour. `digest`: of the row. `again`: digest of the row computed again ("": no usage); None: not computed, or
    another engine gave another row.
    """

    hour: datetime
    quantity: int
    seq_ranges: SeqRanges
    digest: str
    again: str | None = None

    @property
    def agrees(self) -> bool | None:
        """Whether the records reproduce this row; None if unknown."""
        return None if self.again is None else self.again == self.digest


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """A charge and what it is made of: hours of usage, or facts. `arithmetic`: steps and figures.

    `amount_minor`: the amount rated again; None if its pool has more devices than are read again.
    """

    charge: Charge
    hours: tuple[ExplainedHour, ...]
    digest: str
    amount_minor: int | None
    arithmetic: tuple[tuple[str, str], ...] = ()
    facts: tuple[PricedFact, ...] = ()

    @property
    def quantity(self) -> int:
        return sum(one.quantity for one in self.hours) + sum(one.quantity for one in self.facts)

    @property
    def quantity_agrees(self) -> bool:
        # only usage has hours
        return self.charge.key.kind is not ChargeKind.USAGE or self.quantity == self.charge.quantity

    @property
    def digest_agrees(self) -> bool:
        """Whether the usage rows are those of the charge."""
        return self.digest == ("" if self.charge.metered is None else self.charge.metered.digest)

    @property
    def amount_agrees(self) -> bool | None:
        return None if self.amount_minor is None else self.amount_minor == self.charge.amount_minor

    @property
    def agrees(self) -> bool | None:
        """False if anything differs, None if anything is unknown."""
        found = (
            self.quantity_agrees,
            self.digest_agrees,
            self.amount_agrees,
            *(hour.agrees for hour in self.hours),
        )
        if False in found:
            return False
        return None if None in found else True


def explain(
    contract: PayerContract,
    charge: Charge,
    usage: pa.Table | None = None,
    periods: Sequence[PeriodUsage] | None = None,
) -> Explanation:
    """Explains a charge. Raises BillingError for usage that cannot be rated.

    `usage`: for a charge of usage, that in force (schema USAGE) of at least its device. `periods`: what the charge
    depends on in the contract's earlier periods and in its own; None: too much to read again, so the amount is unknown.
    """
    key, amount = charge.key.without_vat_included, None
    hours, digest, facts, steps = tuple[ExplainedHour, ...](), "", list[PricedFact](), list[tuple[str, str]]()
    if periods is not None:
        rating, bill = _bill(contract, periods, key.account)
        amount, facts = sum(one.amount_minor for one in bill.charges if one.key == key), rating.facts_of(key)
        steps += _arithmetic(contract, rating, bill, key)
    if facts:
        digest = rows_of_facts(one.fact for one in facts).digest
    elif usage is not None and key.kind is ChargeKind.USAGE:
        hours, digest = _hours_of(contract, usage, key)
    return Explanation(
        charge=charge,
        hours=hours,
        digest=digest,
        amount_minor=_without_tax(charge, amount),
        arithmetic=(*steps, *(_tax_step(contract, charge) if steps else ())),
        facts=tuple(facts),
    )


def _hours_of(contract: PayerContract, usage: pa.Table, key: ChargeKey) -> tuple[tuple[ExplainedHour, ...], str]:
    """The rows of usage of a charge, and their digest."""
    of_device, whose = _of_device(contract, key.account, TenantDevice(key.tenant, key.device)), _whose(key)
    rows = usage.filter(pc.and_(pc.equal(usage["tenant"], key.tenant), pc.equal(usage["device"], key.device)))
    rows = rows.filter(pc.equal(rows["zone"], whose.zone)).sort_by("hour")
    [found] = cells_of_usage([of_device], rows)
    metered = found.metered.get(whose)
    return tuple(_hours(of_device, rows, key)), "" if metered is None else metered.digest


def _bill(contract: PayerContract, periods: Sequence[PeriodUsage], account: str) -> tuple[AccountRating, AccountBill]:
    books, before, bills = PriceBooks(), EarlierPeriods(), list[tuple[AccountRating, AccountBill]]()
    for one, used in zip((*contract.earlier, contract), periods, strict=True):
        bills = account_bills(one, used, books, before)
    return next(of for of in bills if of[0].account == account)


def _arithmetic(
    contract: PayerContract, rating: AccountRating, bill: AccountBill, key: ChargeKey
) -> Iterator[tuple[str, str]]:
    """How the amount of a charge arises."""
    currency, parts = contract.payer.currency, list[Iterable[tuple[str, str]]]()
    facts = [[*of] for _, of in groupby(rating.facts_of(key), key=lambda one: (one.moment_us, one.fact))]
    for of_one in facts[:MAX_FACTS]:
        yield from _arithmetic_of_fact(contract, of_one)
    if more := [one.minor for of_one in facts[MAX_FACTS:] for one in of_one]:
        yield f"{len(facts) - MAX_FACTS} more", f"{amount_text(sum(more), currency)} {currency}"
    parts += (arithmetic_of(contract, pool, key) for pool in rating.pools_of(key))
    for cap in bill.caps:
        parts += (_arithmetic_of_cap(cap, one, currency) for one in cap.charges if one.key == key)
    dues: list[FeeDue | MinimumDue] = [*bill.fees, *bill.minimums]
    for due in dues:
        steps = (
            _arithmetic_of_fee(contract, due, bill.usage)
            if isinstance(due, FeeDue)
            else _arithmetic_of_minimum(contract, due)
        )
        mine = [one for one in due.charges(key.account) if one.key == key]
        parts += (chain(steps, _of_tax(due.minor, one, currency)) for one in mine)
    yield from chain(*parts)
    if len(parts) > 1:
        amount = sum(one.amount_minor for one in bill.charges if one.key == key)
        yield "together", f"{amount_text(amount, currency)} {currency}"


MAX_FACTS: Final = 500
"""The most visits or passages of a charge that are taken apart."""


def _arithmetic_of_fact(contract: PayerContract, parts: Sequence[PricedFact]) -> Iterator[tuple[str, str]]:
    """A visit or passage; of a stay also its free time, steps, tiers and maximum, and its parts by day or version."""
    first, last, currency = parts[0], parts[-1], contract.payer.currency
    yield (
        _fact_text(contract, first, sum(one.quantity for one in parts)),
        _money(sum(one.minor for one in parts), currency),
    )
    alone, price = last.price.fact_minor(last.at + last.quantity), last.price
    if last.free == last.quantity and not last.minor and alone:
        is_dearest = "dearest" in {term.key for term in terms_of(last.text)}
        words = "another within the time is dearer, or the same" if is_dearest else "the pair of gates is charged"
        yield f"- not charged: {words}", _money(-alone, currency)
    elif last.meter is not Meter.STAY:
        if alone != last.minor:
            yield "- the pair of gates", _money(alone, currency)
            yield "- less the first of it, charged in an earlier period", _money(last.minor - alone, currency)
    else:
        yield from _arithmetic_of_stay(price, last.at + last.quantity)
        if first.at:
            yield f"- {_in_unit(price, first.at)} of it are charged before", ""
        for one in parts if len(parts) > 1 else ():
            yield f"- {_in_unit(price, one.quantity)} of it on {one.day}", _money(one.minor, currency)


def _money(minor: int, currency: str) -> str:
    return f"{amount_text(minor, currency)} {currency}"


def _in_unit(price: RatedPrice, base: int | Fraction) -> str:
    return f"{_text(Fraction(base) / price.price.base_per_unit)} {price.price.unit}"


def _arithmetic_of_stay(price: RatedPrice, quantity: int) -> Iterator[tuple[str, str]]:
    """What a whole stay costs by one price."""
    stated, started, allowance = price.price, price.started(quantity), Fraction(*price.allowance)
    if allowance:
        free, rest = _in_unit(price, allowance), _in_unit(price, max(Fraction(0), quantity - allowance))
        yield f"- less {free} that are free", rest
    if stated.step and stated.step_amount is None:
        yield f"- in started steps of {stated.step:f} {stated.unit}", _in_unit(price, started)
    unit = stated.unit
    if stated.step_amount is not None:
        unit = f"steps of {stated.step:f} {unit} from entering" if stated.step else "stay"
    for share, of_tier in parts_of(stated, Paid(Fraction(0), started, started).per(stated.base_per_unit)):
        amount, currency = of_tier * price.factor, _currency(price)
        count = _text(share) if unit == stated.unit else _short(share)
        yield f"- {count} {unit} × {amount:f} {currency}", f"{_text(share * Fraction(amount))} {currency}"
    if stated.most is not None and Fraction(*price.exact_minor(quantity)) > Fraction(stated.most) * price.worth:
        yield "- the maximum of a stay", f"{stated.most:f} {_currency(price)}"


def _fact_text(contract: PayerContract, one: PricedFact, base: int) -> str:
    """A fact in the local time of its days."""
    zone = ZoneInfo(contract.period.time_zone)

    def local(moment_us: int) -> str:
        return moment_of(moment_us).astimezone(zone).isoformat(" ", "seconds")

    fact, quantity = one.fact, f"{quantity_text(one.meter, base)} {MEASURE_OF[one.meter].unit}"
    if isinstance(fact, Passage):
        return f"{local(fact.moment_us)} {'forward' if fact.forward else 'backward'}, event {fact.id}"
    begin, end = local(fact.begin_us), local(fact.end_us)
    begin, end = begin if fact.entered else f"{begin} (not seen)", end if fact.left else f"{end} (not seen)"
    drove = f"drove at {local(one.moment_us)}, " if one.meter is Meter.DRIVEN_DAY else ""
    return f"{begin} to {end}, {drove}{quantity}, events {', '.join(fact.ids)}"


def _without_tax(charge: Charge, amount: int | None) -> int | None:
    """An amount of the charge's price without tax; other lines decide which way it is rounded."""
    if amount is None or not charge.key.price.endswith(VAT_INCLUDED):
        return amount
    numerator, denominator = rate_of(charge.key.tax)
    exact = Fraction(amount * 100 * denominator, 100 * denominator + numerator)
    return charge.amount_minor if abs(exact - charge.amount_minor) < 1 else round_ratio(*exact.as_integer_ratio())


def _tax_step(contract: PayerContract, charge: Charge) -> Iterator[tuple[str, str]]:
    if charge.key.price.endswith(VAT_INCLUDED):
        currency, rate = contract.payer.currency, Fraction(*rate_of(charge.key.tax))
        without = f"{amount_text(charge.amount_minor, currency)} {currency}"
        yield f"without VAT of {_text(rate)} %, by largest remainder over the document", without


def _of_tax(minor: int, part: Charge, currency: str) -> Iterator[tuple[str, str]]:
    """The part that is taxed alike, if it is not all."""
    if part.amount_minor != minor:
        yield f"the part with tax {part.key.tax}", f"{amount_text(part.amount_minor, currency)} {currency}"


def _arithmetic_of_cap(cap: CapReduction, charge: Charge, currency: str) -> Iterator[tuple[str, str]]:
    """Each day above a daily cap, or all of the period; and what was taken off."""
    minor = 10 ** exponent(currency)
    days = sorted(day for day in cap.days if day.text == charge.key.price)
    over = [day.used_minor - day.left_minor for day in days]
    for day, above in zip(days, over, strict=True):
        used, left = _text(day.used_minor / minor), _text(day.left_minor / minor)
        yield f"{day.day}: {used} {currency}, of which {left} {currency} remain", f"{_text(-above / minor)} {currency}"
    if len(days) > 1:
        yield "together", f"{_text(-sum(over, Fraction(0)) / minor)} {currency}"
    if cap.earlier_minor:
        yield "in earlier periods of the year", f"{amount_text(cap.earlier_minor, currency)} {currency}"
    if not days:
        yield "charged until here", f"{amount_text(cap.before_minor, currency)} {currency}"
    whole = sum(one.amount_minor for one in cap.charges if one.key.price == charge.key.price)
    words = "rounded; what stays is at most the caps of the days" if days else charge.key.price
    yield words, f"{amount_text(whole, currency)} {currency}"
    yield from _of_tax(whole, charge, currency)


def _agreed(
    contract: PayerContract, amount: Fraction, days: tuple[int, int], agreed_in: str, exact_minor: Fraction
) -> Iterator[tuple[str, str]]:
    """An agreed amount by its days, and its exchange. `exact_minor`: what it comes to."""
    currency, (charged, whole) = contract.payer.currency, days
    minor = 10 ** exponent(currency)
    if charged != whole:
        yield f"{charged} of {whole} days", f"{_text(amount * Fraction(*days))} {agreed_in}"
    if agreed_in != currency:
        yield f"exchanged at {_text(worth_of(agreed_in, contract) / minor)}", f"{_text(exact_minor / minor)} {currency}"


def _arithmetic_of_minimum(contract: PayerContract, due: MinimumDue) -> Iterator[tuple[str, str]]:
    """The minimum by its days, what was charged without it, and what is missing."""
    currency, amount, is_of_year = contract.payer.currency, Fraction(due.amount), due.span is Span.YEAR
    yield f"agreed for a {'year' if is_of_year else 'period'}", f"{_text(amount)} {due.currency}"
    yield from _agreed(contract, amount, due.days, due.currency, due.exact_minor)
    yield "rounded, a half up", _money(due.minor + due.owed_minor, currency)
    of_all = " of all periods of the year" if is_of_year else ""
    yield f"less usage, caps and fees{of_all}", _money(due.owed_minor, currency)
    yield "missing", _money(due.minor, currency)


def _arithmetic_of_fee(contract: PayerContract, due: FeeDue, charges: Sequence[Charge]) -> Iterator[tuple[str, str]]:
    """What a per cent is of, or the days and the exchange; the rounding, and what was left for a credit."""
    fee, currency, exact = due.agreed.fee, contract.payer.currency, due.exact_minor
    if fee.amount is not None:
        amount, agreed_in = Fraction(fee.amount), due.agreed.currency
        yield fee.name, f"{_text(amount)} {agreed_in}"
        yield from _agreed(contract, amount, due.days, agreed_in, exact)
    else:
        yield from _usage_of_fee(due, charges, currency)
        yield f"{fee.percent:f} % of it", f"{_text(exact / 10 ** exponent(currency))} {currency}"
    yield "rounded, a half up", _money(round_ratio(*exact.as_integer_ratio()), currency)
    if due.is_limited:
        yield "limited to what was charged", _money(due.minor, currency)


def _usage_of_fee(due: FeeDue, charges: Sequence[Charge], currency: str) -> Iterator[tuple[str, str]]:
    """What a per cent is of: usage by line, then what caps left of it on the fee's days."""
    lines, (charged, whole), usage = Counter[str](), due.days, due.usage_minor
    for key, _, _, of_charge, *_ in charges:
        is_mine = due.of in {("", ""), (key.tenant, key.device)} and key.kind is ChargeKind.USAGE
        if is_mine and key.meter is not None and due.agreed.fee.covers(key.meter, key.zone):
            parts = key.meter.value, place_text(key.meter, key.zone), key.window and f"window {key.window}"
            lines[f"{', '.join(filter(None, parts))} at {key.price}"] += of_charge
    yield from ((line, _money(of_line, currency)) for line, of_line in lines.items())
    if len(lines) > 1 or lines.total() != usage:
        words = "together" if lines.total() == usage else "together, after caps"
        words += f", on {charged} of {whole} days" if charged != whole else ""
        yield words, f"{_text(usage / 10 ** exponent(currency))} {currency}"


def with_hours_again(
    explanation: Explanation,
    again: pa.Table,
    computed: Collection[datetime] | None = None,
    *,
    is_of_other_engine: bool = False,
) -> Explanation:
    """Adds the rows (schema METERED) that were computed again for some of the hours, or for all.

    `is_of_other_engine`: another engine computed the usage. A row that differs is then unknown, not wrong.
    """
    zone = _whose(explanation.charge.key).zone
    rows = again.filter(pc.equal(again["zone"], zone)).select(["hour", "digest"]).to_pylist()
    digests = {row["hour"]: row["digest"] for row in rows}
    hours = [
        replace(hour, again=digests.get(hour.hour, "") if computed is None or hour.hour in computed else None)
        for hour in explanation.hours
    ]
    if is_of_other_engine:
        hours = [hour if hour.agrees else replace(hour, again=None) for hour in hours]
    return replace(explanation, hours=tuple(hours))


def _whose(key: ChargeKey) -> MeteredKey:
    assert key.meter is not None, "a usage charge is of a meter"
    return metered_key(key.account, key.tenant, key.device, key.meter, key.zone)


def _of_device(contract: PayerContract, account: str, device: TenantDevice) -> PayerContract:
    accounts = (
        replace(one, assigned=tuple(each for each in one.assigned if each.of_device == device))
        for one in contract.accounts
        if one.id == account
    )
    return replace(contract, accounts=tuple(accounts))


def _hours(contract: PayerContract, rows: pa.Table, key: ChargeKey) -> Iterator[ExplainedHour]:
    [account], days = contract.accounts, set[date]()
    book = PriceBooks().book(account.spans, contract)
    zone = ZoneInfo(contract.period.time_zone)
    quantities = Counter[int]()
    for at, cell in _cells_of_each(contract, rows):
        if _is_of(book, cell, key):
            quantities[at] += cell.quantity
    for at, row in enumerate(rows.select(["hour", "content_bytes", "seq_ranges", "digest"]).to_pylist()):
        hour, quantity = row["hour"].astimezone(UTC), quantities[at]
        if key.meter is Meter.ACTIVE_DAY and quantity:
            # a day counts once, by its first hour
            new = _active_days(hour, row["content_bytes"], zone) - days
            days |= new
            quantity = min(quantity, len(new))
        if quantity:
            seq_ranges = SeqRanges.parse(row["seq_ranges"])
            yield ExplainedHour(hour=hour, quantity=quantity, seq_ranges=seq_ranges, digest=row["digest"])


def _cells_of_each(contract: PayerContract, rows: pa.Table) -> Iterator[tuple[int, Cell]]:
    """The cells of each row with its index: every row is rated as a device of its own."""
    names = [str(at) for at in range(rows.num_rows)]
    accounts = (
        replace(one, assigned=tuple(each._replace(device=name) for each in one.assigned for name in names))
        for one in contract.accounts
    )
    apart = rows.set_column(rows.column_names.index("device"), "device", pa.array(names, pa.string()))
    [found] = cells_of_usage([replace(contract, accounts=tuple(accounts))], apart)
    return ((int(cell.device), cell) for cell in found.cells)


def _active_days(hour: datetime, content_bytes: Sequence[int], zone: ZoneInfo) -> set[date]:
    """The local days of the quarters that have a record."""
    return {
        (hour + quarter * QUARTER).astimezone(zone).date() for quarter, amount in enumerate(content_bytes) if amount
    }


def _is_of(book: PriceBook, cell: Cell, key: ChargeKey) -> bool:
    """Whether a cell of the charge's device belongs to the charge."""
    if (cell.region, cell.meter) != (key.region, key.meter) or cell.zone != key.zone or cell.version < 0:
        return False
    price = book.price(cell.version, cell.meter, cell.zone, cell.window, cell.attributes)
    return price is not None and (price.text, price.tax, price.window) == (key.price, key.tax, key.window)
