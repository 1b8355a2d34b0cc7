"""The amount that a payer owes for a period: a pure function of contract and usage."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import date, datetime
from fractions import Fraction
from itertools import groupby
from operator import attrgetter
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from cloud_jobs.billing.billing_period import BillingPeriod
from cloud_jobs.billing.contracts import AccountContract, Cap, PayerContract, Pool, PoolKey, Span, Tariff
from cloud_jobs.billing.errors import BillingError
from cloud_jobs.billing.rating.cells_of_usage import QUARTER_US, local_times, quarter_number
from cloud_jobs.billing.rating.charges import (
    VAT_INCLUDED,
    Cell,
    Charge,
    ChargeKey,
    ChargeKind,
    MeteredKey,
    MeteredRows,
    RatedAccount,
    by_tax,
    check_bounds,
    metered_key,
    rate_of,
    tax_group,
    window_id,
)
from cloud_jobs.billing.rating.facts import NO_FACTS, Facts, rows_of_facts
from cloud_jobs.billing.rating.fees import (
    AccountYear,
    EarlierPeriods,
    FeeDue,
    KeptShares,
    MinimumDue,
    Scope,
    UsePlace,
    fees_due,
    minimums_due,
)
from cloud_jobs.billing.rating.pools import (
    Exact,
    MissingFactor,
    Place,
    PoolUses,
    PriceBook,
    PriceBooks,
    RatedPrice,
    Uses,
    exact_shares,
    split,
    split_exact,
    whole_units,
)
from cloud_jobs.billing.rating.rate_columns import UsageCharges
from cloud_jobs.billing.rating.rate_facts import PricedFact, listed, priced_facts
from cloud_jobs.billing.rating.terms import cap_text
from cloud_jobs.billing.units import Meter, round_ratio

# Charges of one account: pools of quantities, each rounded once, then caps, fees and minimum fee.

Metered = Mapping[MeteredKey, MeteredRows]
_SUMMED = tuple(map(attrgetter, ("quantity", "free", "minor")))


class DayUse(NamedTuple):
    """Key of the amounts that a daily cap adds up, counted in `PriceBook.parts` of a minor unit."""

    place: UsePlace
    day: date


class AccountRating:
    """Collects the cells of an account in any order, then computes its usage charges."""

    def __init__(
        self,
        terms: AccountContract,
        book: PriceBook,
        contract: PayerContract,
        metered: Metered,
        earlier: EarlierPeriods | None = None,
        *,
        charges: Sequence[Charge] = (),
    ) -> None:
        """`charges`: of all usage, if they are made already."""
        self.account = terms.id
        self.terms = terms
        self.book = book
        self.days: defaultdict[DayUse, int | Fraction] = defaultdict(int)
        self.capping: dict[date, int] = {}
        self.capped_versions: set[int] = set()
        self._contract = contract
        self._metered = metered
        self._charges = charges
        self._pools = (earlier or EarlierPeriods()).pools
        self._dated: dict[RatedPrice, RatedPrice] = {}
        self._day_pools: dict[int, tuple[PoolKey, date, Uses]] = {}
        self._has_dated_percents = terms.has_dated_percents
        self.by_day = defaultdict[tuple[Meter, Place, str, str], Counter[date]](Counter)
        self._is_capped_by_day = any(book.capped_by_day)
        if self._is_capped_by_day:
            self.capping = capping_versions(terms, book, contract.period)
        self._facts: defaultdict[tuple[Meter, Place, str, str], list[PricedFact]] = defaultdict(list)

    def add(self, cell: Cell) -> None:
        """Raises BillingError."""
        _, tenant, device, region, meter, zone, day, window, version, quantity, attributes = cell
        assert quantity >= 0, cell
        if not quantity:
            return
        if version < 0:
            raise BillingError(
                f"account {self.account!r} has no tariff in force for {device!r} in the hour of "
                f"{self._first_hour(cell).isoformat()} or later; publish a version that is effective then"
            )
        book = self.book
        try:
            price = book.price(version, meter, zone, window, attributes)
        except MissingFactor as error:
            raise BillingError(f"device {device!r} of account {self.account!r}: {error}") from None
        if price is None:
            if book.sells(version, meter):
                since = self._first_hour(cell).isoformat()
                used = f"{device!r} was in the hour of {since} or later"
                raise book.gap(version, meter, zone, window, used=used, attributes=attributes)
            return
        place = Place(self.account, region, tenant, device, zone, price.window)
        use = self._with_begin(price), place
        uses = self._pools.add(self._contract, self.terms, use, day, quantity)
        if self._has_dated_percents and day:
            self.by_day[meter, place, price.text, price.tax][day] += quantity
        if self._is_capped_by_day:
            self._count_day(price, cell, uses)

    def usage_charges(self) -> list[Charge]:
        """One charge for each place and price, unordered. Raises BillingError above the last tier."""
        for pool, of_day, uses in self._day_pools.values():
            self._count_day_of_pool(pool, of_day, uses)
        charges = [*self._charges]
        account, kind, rows_of, known = self.account, ChargeKind.USAGE, self._metered.get, dict[object, MeteredRows]()
        for pool, share in self._pools.shares_of(account):
            (_, region, tenant, device, zone, window), text, tax, quantity, free, amount = share
            key = ChargeKey(account, region, tenant, device, kind, pool.meter, zone, window, text, tax)
            rows = rows_of(metered_key(account, tenant, device, pool.meter, zone))
            charges.append(Charge(key, quantity, free, amount, rows))
        for (meter, (_, region, tenant, device, zone, window), text, tax), facts in self._facts.items():
            key = ChargeKey(self.account, region, tenant, device, ChargeKind.USAGE, meter, zone, window, text, tax)
            quantity, free, amount = (sum(map(of, facts)) for of in _SUMMED)
            # a visit and its time come from the same events
            of_facts = tuple(id(one.fact) for one in facts)
            if of_facts not in known:
                known[of_facts] = rows_of_facts(one.fact for one in facts)
            charges.append(Charge(key, quantity, free, amount, known[of_facts], listed(facts)))
        return _one_of_each_key(charges) if len(charges) > len(self._charges) else charges

    def add_facts(self, facts: Iterable[PricedFact]) -> None:
        """Facts are charged one by one, but add up to one charge for each place and price."""
        for fact in facts:
            self._facts[fact[:4]].append(fact)
            if self._has_dated_percents and fact.minor:
                self.by_day[fact[:4]][fact.day] += fact.minor
            if self._is_capped_by_day:
                _, _, tenant, device, zone, window = fact.place
                place = UsePlace(tenant, device, fact.meter, zone, window_id(window), fact.tax)
                # of a day before the period: the caps with which the period begins
                if self._capping(place, fact.day, 0) is not None:
                    self.days[DayUse(place, fact.day)] += fact.minor * self.book.parts

    def facts_of(self, key: ChargeKey) -> list[PricedFact]:
        """The facts of a usage charge, in order of time."""
        found = [] if key.meter is None else self._facts.get((key.meter, Place.of(key), key.price, key.tax), [])
        return sorted(found, key=lambda one: (one.moment_us, one.fact[3:], one.version, one.day))

    def _with_begin(self, price: RatedPrice) -> RatedPrice:
        """The price; of a shared pool, with the moment from which it is in force, which other accounts and periods can
        be compared by.
        """
        found = self._dated.get(price)
        if found is None:
            begin_us = self.terms.spans[price.version].begin_us
            found = self._dated[price] = replace(price, version=begin_us) if price.pool.is_shared else price
        return found

    def pools_of(self, key: ChargeKey) -> list[PoolUses]:
        """The pools of a usage charge, when the period has ended: one, or one for each price with the same text, day or
        week.
        """
        place = Place.of(key)
        return [
            found
            for pool, found in self._pools.ended(self.account)
            if pool.meter is key.meter
            and any((price.text, price.tax, at) == (key.price, key.tax, place) for price, at in found.uses)
        ]

    def _count_day(self, price: RatedPrice, cell: Cell, uses: Uses) -> None:
        assert cell.day is not None, "cells of a tariff with a daily cap are of one day each"
        place = UsePlace.of(cell, price)
        tariff = self._capping(place, cell.day, cell.version)
        if tariff is None:
            return
        if price.pool.span is Span.DAY and price.pool.scope is not Pool.TREE:
            self._day_pools[id(uses)] = price.pool, cell.day, uses
            return
        each = price.by_day
        if each is None:
            raise BillingError(
                f"tariff {tariff.id!r} has a daily cap on {cell.meter.value}, whose price has tiers, an allowance or a "
                "step: the cost of a single day is undefined"
            )
        use = DayUse(place, cell.day)
        if self.book.parts % each.denominator:
            # a factor, or an amount of a price table
            self.days[use] += Fraction(cell.quantity * each.numerator * self.book.parts, each.denominator)
        else:
            self.days[use] += cell.quantity * each.numerator * (self.book.parts // each.denominator)

    def _count_day_of_pool(self, pool: PoolKey, day: date, uses: Uses) -> None:
        """Of a pool of a day, the exact cost."""
        for (at, _, tax), share in exact_shares(uses).items():
            place = UsePlace(at.tenant, at.device, pool.meter, at.zone, window_id(at.window), tax)
            if self._capping(place, day, 0) is not None:
                self.days[DayUse(place, day)] += share.minor * self.book.parts

    def _capping(self, place: UsePlace, day: date, version: int) -> Tariff | None:
        """The tariff that caps a place on a day, if any."""
        version = self.capping.get(day, version)
        self.capped_versions.add(version)
        tariff = self.book.tariffs[version]
        capped = any(cap.span is Span.DAY and cap.covers(place.meter, place.zone, place.window) for cap in tariff.caps)
        return tariff if capped else None

    def _first_hour(self, cell: Cell) -> datetime:
        rows = self._metered.get(metered_key(self.account, cell.tenant, cell.device, cell.meter, cell.zone))
        return rows.first_hour if rows else self._contract.period.start


def _one_of_each_key(charges: list[Charge]) -> list[Charge]:
    """Merges charges with one key: a zone's price and the price of any zone may have the same text in two pools."""
    found: dict[ChargeKey, Charge] = {}
    for one in charges:
        other = found.setdefault(one.key, one)
        if other is not one:
            found[one.key] = one._replace(
                quantity=other.quantity + one.quantity,
                free=other.free + one.free,
                amount_minor=other.amount_minor + one.amount_minor,
            )
    return list(found.values())


# Caps, first by day, then by period.


def capping_versions(terms: AccountContract, book: PriceBook, period: BillingPeriod) -> dict[date, int]:
    """A tariff version with the daily caps of each local day: those in force for most of it, the later of equals.

    Empty if the account has one version. Versions with the same caps are one.
    """
    if len(terms.spans) < 2:
        return {}
    alike: dict[object, int] = {}
    same = [alike.setdefault((tariff.caps, tariff.currency), number) for number, tariff in enumerate(book.tariffs)]
    first, end = quarter_number(period.start), quarter_number(period.end)
    begins = [span.begin_us // QUARTER_US for span in terms.spans]
    version = np.searchsorted(begins, np.arange(first, end), side="right") - 1
    days = local_times(period.time_zone, first, end - first).day
    times: defaultdict[int, dict[int, int]] = defaultdict(dict)
    for day, of in zip(days[version >= 0].tolist(), version[version >= 0].tolist(), strict=True):
        # the last one in force becomes the last key
        counted = times[day].pop(same[of], 0)
        times[day][same[of]] = counted + 1
    return {date.fromordinal(day): max(reversed(of), key=of.__getitem__) for day, of in times.items()}


class CapInForce(NamedTuple):
    """A cap across tariff versions; `cap` is that of one of them.

    `of`: for each version its amount in the payer's minor unit, and its text.
    """

    cap: Cap
    of: Mapping[int, tuple[Fraction, str]]

    def scope(self, place: UsePlace) -> Scope | None:
        """The scope that an amount is added to; None if it is not under the cap."""
        if not self.cap.covers(place.meter, place.zone, place.window):
            return None
        return (place.tenant, place.device) if self.cap.scope is Pool.DEVICE else ("", "")


class CappedDay(NamedTuple):
    """A local day above a daily cap, in exact minor units: what it came to, what the cap leaves of it, and its text."""

    day: date
    text: str
    used_minor: Fraction
    left_minor: Fraction


class CapReduction(NamedTuple):
    """What a cap takes off a device or the account that had `before_minor`; a charge for each text of the cap.

    `earlier_minor`: what the earlier periods of the year came to, under a cap of the year.
    """

    charges: list[Charge]
    before_minor: int
    days: Sequence[CappedDay]
    earlier_minor: int = 0


class CapRemainder:
    """What charges and caps so far leave, in minor units."""

    def __init__(self, account: str, charges: Iterable[Charge]) -> None:
        self._account = account
        self._amounts: dict[UsePlace, int] = {}
        self._region_of: dict[Scope, str] = {("", ""): ""}
        for charge in charges:
            key = charge.key
            assert key.meter is not None
            of = UsePlace(key.tenant, key.device, key.meter, key.zone, key.window_id, key.tax)
            self._amounts[of] = self._amounts.get(of, 0) + charge.amount_minor
            device = key.tenant, key.device
            self._region_of[device] = min(self._region_of.get(device, key.region), key.region)
        self._charged = dict(self._amounts)

    @property
    def amounts(self) -> Mapping[UsePlace, int]:
        return self._amounts

    @property
    def kept(self) -> KeptShares:
        return {of: Fraction(self._amounts[of], was) for of, was in self._charged.items() if self._amounts[of] != was}

    def by_scope(self, cap: CapInForce) -> dict[Scope, list[UsePlace]]:
        """The amounts that a cap covers, by scope, in order."""
        found: defaultdict[Scope, list[UsePlace]] = defaultdict(list)
        for of in sorted(self._amounts):
            scope = cap.scope(of)
            if scope is not None:
                found[scope].append(of)
        return found

    def total(self, keys: Iterable[UsePlace]) -> int:
        return sum(self._amounts[of] for of in keys)

    def take(
        self,
        cap: CapInForce,
        keys: list[UsePlace],
        minor: Mapping[str, int],
        days: Sequence[CappedDay] = (),
    ) -> CapReduction:
        """The negative charges of a cap, by text and tax. The keys lose their shares, so the next cap sees the rest."""
        before, charges, taken = self.total(keys), list[Charge](), defaultdict[str, int](int)
        whole, amounts = sum(minor.values()), [self._amounts[of] for of in keys]
        for of, part, amount in zip(keys, split(whole, Exact(whole), amounts), amounts, strict=True):
            self._amounts[of] -= part
            taken[of.tax] += part
            assert part <= amount
        tenant, device = cap.scope(keys[0]) or ("", "")
        meters = cap.cap.meters
        for text, tax, part in _by_text_and_tax(minor, taken):
            key = ChargeKey(
                account=self._account,
                region=self._region_of[tenant, device],
                tenant=tenant,
                device=device,
                kind=ChargeKind.CAP,
                meter=meters[0] if len(meters) == 1 else None,
                price=text,
                tax=tax,
            )
            named = " ".join(sorted({str(day.day) for day in days if day.text == text}))
            if part:
                charges.append(Charge(key, 0, 0, -part, None, named or None))
        return CapReduction(charges, before, days)


def _by_text_and_tax(by_text: Mapping[str, int], by_tax: dict[str, int]) -> Iterator[tuple[str, str, int]]:
    """Parts whose sums are those of the texts and those of the taxes, of which nearly always there is one."""
    for text, minor in by_text.items():
        whole = minor
        for tax in sorted(by_tax):
            part = min(whole, by_tax[tax])
            by_tax[tax] -= part
            whole -= part
            yield text, tax, part


def caps_in_force(book: PriceBook, span: Span, versions: Iterable[int]) -> list[CapInForce]:
    """The caps of these versions in the order in which they apply: of devices first, and what others contain."""
    found: dict[Cap, dict[int, tuple[Fraction, str]]] = {}
    for version in versions:
        tariff = book.tariffs[version]
        for cap in tariff.caps:
            if cap.span is span:
                most = Fraction(cap.amount) * book.worths[version]
                found.setdefault(cap.without_amount, {})[version] = (
                    most,
                    cap_text(cap, tariff.currency, tariff.windows, tariff.prices),
                )
    return sorted((CapInForce(*of) for of in found.items()), key=lambda one: one.cap.order)


def daily_caps(rating: AccountRating, left: CapRemainder) -> list[CapReduction]:
    """The amounts above daily caps: exact by day, summed over the period, rounded once for each device or account.

    If every use was under the cap, the rest never exceeds the caps of the days together, despite rounding.
    """
    found: list[CapReduction] = []
    days = dict(rating.days)
    for cap in caps_in_force(rating.book, Span.DAY, range(len(rating.book.tariffs))):
        capped = _above_by_day(cap, days, rating)
        for scope, keys in left.by_scope(cap).items():
            if scope not in capped:
                continue
            above, most, over_days = capped[scope]
            total, over = left.total(keys), sum(above.values(), Fraction(0))
            rest = total - round_ratio(over.numerator, over.denominator)
            if cap.of.keys() >= rating.capped_versions:
                rest = min(rest, round_ratio(most.numerator, most.denominator))
            minor = total - max(rest, 0)
            if minor > 0:
                found.append(left.take(cap, keys, _by_text(minor, above), over_days))
    return found


def _by_text(minor: int, above: Mapping[str, Fraction]) -> dict[str, int]:
    """Splits what is taken off over the cap's texts, in the ratio of what exceeded each."""
    texts, over = sorted(above), sum(above.values(), Fraction(0))
    shares = [minor * above[text] / over if over else Fraction(minor * (text == texts[-1])) for text in texts]
    return dict(zip(texts, split_exact(minor, shares), strict=True))


def period_caps(book: PriceBook, left: CapRemainder, year: AccountYear) -> list[CapReduction]:
    """The rounded amounts above the caps of the period and of the contract year, as the last version has them."""
    found: list[CapReduction] = []
    for span in (Span.CYCLE, Span.YEAR):
        for cap in caps_in_force(book, span, range(len(book.tariffs))[-1:]):
            ((exact, text),) = cap.of.values()
            before = defaultdict[Scope | None, int](int)
            for place, minor in year.kept.items() if span is Span.YEAR else ():
                before[cap.scope(place)] += minor
            for scope, keys in left.by_scope(cap).items():
                most = max(0, round_ratio(exact.numerator, exact.denominator) - before[scope])
                minor = left.total(keys) - most
                if minor > 0:
                    taken = left.take(cap, keys, {text: minor})
                    found.append(taken._replace(earlier_minor=before[scope]))
    return found


def _above_by_day(
    cap: CapInForce, days: dict[DayUse, int | Fraction], rating: AccountRating
) -> dict[Scope, tuple[dict[str, Fraction], Fraction, list[CappedDay]]]:
    """For each scope the amount above the cap by cap text, the sum of the daily limits, and the days above.

    The excess of a day is taken off all of its `days` in proportion.
    """
    parts = rating.book.parts
    of_day: defaultdict[tuple[Scope, int, date], list[DayUse]] = defaultdict(list)
    for use in days:
        version = rating.capping.get(use.day, 0)
        scope = cap.scope(use.place) if version in cap.of else None
        if scope is not None:
            of_day[scope, version, use.day].append(use)
    found: dict[Scope, tuple[dict[str, Fraction], Fraction, list[CappedDay]]] = {}
    for (scope, version, day), uses in of_day.items():
        above, together, over_days = found.get(scope, (dict[str, Fraction](), Fraction(0), list[CappedDay]()))
        most, text = cap.of[version]
        above.setdefault(text, Fraction(0))
        found[scope] = above, together + most, over_days
        total, limit = sum(days[use] for use in uses), most * parts
        if total > limit:
            above[text] += (total - limit) / parts
            over_days.append(CappedDay(day, text, Fraction(total) / parts, most))
            for use in uses:
                days[use] *= limit / total
    return found


def net_of_gross(charges: Sequence[Charge]) -> tuple[list[Charge], int]:
    """Charges of one tax whose amounts include it, without it, and what the tax on them lacks to the same sum.

    The net sum is rounded once, to the one whose tax comes nearest, and split by largest remainder.
    """
    gross, (numerator, denominator) = sum(one.amount_minor for one in charges), rate_of(charges[0].key.tax)
    hundred, whole = 100 * denominator, 100 * denominator + numerator
    net = round_ratio(gross * hundred, whole)
    parts = whole_units(net, [divmod(one.amount_minor * hundred, whole) for one in charges])
    made = [
        one._replace(
            key=one.key._replace(price=f"{one.key.price}{VAT_INCLUDED}"),
            amount_minor=part,
            gross_minor=one.amount_minor,
        )
        for one, part in zip(charges, parts, strict=True)
    ]
    return made, gross - net


class PeriodUsage(NamedTuple):
    """The usage of a payer's devices in a period, the rows that it comes from, and the facts.

    `charges`: of the usage of accounts, by `charges_in_columns`, instead of cells.
    """

    cells: Iterable[Cell]
    metered: Metered
    facts: Facts = NO_FACTS
    charges: UsageCharges = MappingProxyType({})


def rate(
    contract: PayerContract,
    cells: Iterable[Cell],
    metered: Metered,
    books: PriceBooks | None = None,
    facts: Facts = NO_FACTS,
    *,
    earlier: Sequence[PeriodUsage] = (),
    usage_charges: UsageCharges = MappingProxyType({}),
) -> RatedAccount:
    """The charges of a payer and its children, and the tax on them.

    Cells and facts may come in any order. Each account is rated by itself: usage and facts, daily caps, period caps,
    fees, minimum fee. `books`: a cache to share between payers. `earlier`: the usage of the contract's earlier periods.
    `usage_charges`: see `PeriodUsage`. Raises BillingError.
    """
    books, before = books or PriceBooks(), EarlierPeriods()
    for one, of_one in zip(contract.earlier, earlier, strict=True):
        _charges_of(one, of_one, books, before)
    charges, gross = _charges_of(contract, PeriodUsage(cells, metered, facts, usage_charges), books, before)
    check_bounds([*charges, *gross])
    # the tax of each group by itself is what was shown
    taxes = {tax: tax_group(tax, None, net).tax_minor for tax, net in by_tax(charges).items()}
    gross.sort(key=lambda charge: (charge.key.tax, charge.key.order))
    for tax, of_tax in groupby(gross, key=lambda charge: charge.key.tax):
        made, shown = net_of_gross([*of_tax])
        charges += made
        taxes[tax] = taxes.get(tax, 0) + shown
    charges.sort(key=lambda charge: charge.key.order)
    nets = by_tax(charges) or {contract.payer.vat.tax: 0}
    groups = [tax_group(tax, _reason(contract, tax), net) for tax, net in sorted(nets.items())]
    payable, unit = sum(nets.values()) + sum(taxes.values()), contract.payer.cash_unit_minor
    rounded = round_ratio(payable, unit) * unit
    return RatedAccount(
        payer=contract.id,
        currency=contract.payer.currency,
        charges=tuple(charges),
        taxes=tuple(groups),
        rounding_minor=rounded - sum(nets.values()) - sum(group.tax_minor for group in groups),
    )


def _reason(contract: PayerContract, tax: str) -> str | None:
    """BT-120: why charges of a group have no tax."""
    reasons = {vat.exemption_reason: None for vat in contract.vats if vat.tax == tax and vat.exemption_reason}
    return "; ".join(reasons) or None


def _charges_of(
    contract: PayerContract, used: PeriodUsage, books: PriceBooks, before: EarlierPeriods
) -> tuple[list[Charge], list[Charge]]:
    """The charges of a period without tax, and those that include it. The period is then before the next one."""
    charges, gross = list[Charge](), list[Charge]()
    for rating, bill in account_bills(contract, used, books, before):
        (gross if rating.book.includes_tax else charges).extend(bill.charges)
    return charges, gross


def account_bills(
    contract: PayerContract, used: PeriodUsage, books: PriceBooks, before: EarlierPeriods
) -> list[tuple[AccountRating, AccountBill]]:
    """The bill of each account of a payer for a period, which is then before the next one. Raises BillingError."""
    ratings = {
        terms.id: AccountRating(
            terms,
            books.book(terms.spans, contract),
            contract,
            used.metered,
            before,
            charges=used.charges.get(terms.id, ()),
        )
        for terms in contract.accounts
    }
    for cell in used.cells:
        ratings[cell.account].add(cell)
    for account, priced in priced_facts(contract, books, used.facts):
        ratings[account].add_facts(priced)
    bills = [(rating, account_bill(rating, contract, before)) for rating in ratings.values()]
    before.pools.end_period()
    return bills


class AccountBill(NamedTuple):
    """The amounts of an account in the order in which they arise."""

    account: str
    usage: list[Charge]
    caps: list[CapReduction]
    fees: list[FeeDue]
    minimums: list[MinimumDue]

    @property
    def charges(self) -> list[Charge]:
        # a tariff and an account may have fees that say the same
        fees = _one_of_each_key([charge for due in self.fees for charge in due.charges(self.account)])
        least = [charge for due in self.minimums for charge in due.charges(self.account)]
        return [*self.usage, *(charge for cap in self.caps for charge in cap.charges), *fees, *least]


def account_bill(rating: AccountRating, contract: PayerContract, before: EarlierPeriods) -> AccountBill:
    """Usage, daily caps, period caps, fees and the minimum of an account. Raises BillingError."""
    book, bill, left = rating.book, AccountBill(rating.account, rating.usage_charges(), [], [], []), None
    year = before.year_of(rating.terms)
    if rating.terms.year or any(tariff.caps for tariff in book.tariffs):
        left = CapRemainder(rating.account, bill.usage)
        bill = bill._replace(caps=[*daily_caps(rating, left), *period_caps(book, left, year)])
    charges = bill.charges if bill.caps else bill.usage
    least = min(0, sum(charge.amount_minor for charge in bill.usage))
    assert sum(charge.amount_minor for charge in charges) >= least, "caps took off more than there was"
    if rating.terms.fees or any(tariff.fees for tariff in book.tariffs):
        kept = left.kept if left else {}
        bill = bill._replace(fees=fees_due(rating.terms, contract, book, charges, kept, by_day=rating.by_day))
    if rating.terms.year:
        year.add_days(rating.terms, contract, book)
    bill = bill._replace(minimums=minimums_due(rating.terms, contract, book, by_tax(bill.charges), year))
    if rating.terms.year and left:
        year.kept.update(left.amounts)
        year.owed_minor += sum(charge.amount_minor for charge in bill.charges)
    return bill
