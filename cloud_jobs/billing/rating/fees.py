"""Fees and the minimum fee: what an account owes apart from usage, by the local days on which it was agreed.

Each fee is rounded once and is a charge of its own. A local day belongs to the last version in force on it, so no day
counts twice. Surcharges come first, then credits, which take at most what is there, then the minimum.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

from cloud_jobs.billing.billing_period import BillingPeriod
from cloud_jobs.billing.contracts import AccountContract, Assigned, Fee, PayerContract, Pool, Proration, Span, Tariff
from cloud_jobs.billing.contracts.fields import matches, selector_text
from cloud_jobs.billing.contracts.published import EVER
from cloud_jobs.billing.rating.cells_of_usage import QUARTER_US, local_times, quarter_number
from cloud_jobs.billing.rating.charges import Cell, Charge, ChargeKey, ChargeKind, by_tax
from cloud_jobs.billing.rating.pools import PayerPools, Place, PriceBook, RatedPrice, shared, worth_of
from cloud_jobs.billing.rating.terms import fee_text, minimum_text
from cloud_jobs.billing.units import Meter, round_ratio

# Local days on which something is agreed, as ordinals.

Days = frozenset[int]
Scope = tuple[str, str]
"""Tenant and device of what a fee is for; two empty texts for the account."""
_ACCOUNT: Scope = ("", "")


@lru_cache(maxsize=4096)
def days_within(period: BillingPeriod, begin_us: int, end_us: int) -> Days:
    """The local days of a period that a time (µs since 1970, the end excluded) touches."""
    first, end = quarter_number(period.start), quarter_number(period.end)
    day = local_times(period.time_zone, first, end - first).day
    begin, until = (max(0, one // QUARTER_US - first) for one in (begin_us, end_us))
    return frozenset(day[begin:until].tolist())


@lru_cache(maxsize=4096)
def days_held(period: BillingPeriod, begin_us: int, end_us: int) -> Days:
    """The local days that belong to a time: those whose end it has; if it has none, the day on which it begins. So a
    day on which a device changes accounts is the later one's.
    """
    found, after = days_within(period, begin_us, end_us), days_within(period, end_us, EVER)
    return found - after or (found if days_within(period, 0, begin_us) else frozenset())


def account_days(terms: AccountContract, period: BillingPeriod) -> Days:
    return frozenset().union(*(days_held(period, *time) for time in terms.times))


def _days_of_versions(begins: Sequence[int], terms: AccountContract, period: BillingPeriod) -> list[Days]:
    """The days on which the account is in force, by version: each is of the last version in force on it."""
    of_day: dict[int, int] = {}
    for number, (begin, end) in enumerate(pairwise([*begins, EVER])):
        for since, until in terms.times:
            of_day |= dict.fromkeys(days_within(period, max(begin, since), min(end, until)), number)
    return [frozenset(day for day, of in of_day.items() if of == number) for number in range(len(begins))]


class AgreedFee(NamedTuple):
    """A fee with its currency, in which one unit is `worth` minor units of the payer, and its days in the account.

    `is_whole`: a day is enough for all of it. `of_tariff`: not of the account itself.
    """

    fee: Fee
    currency: str
    worth: Fraction
    days: Days
    is_whole: bool
    of_tariff: bool


def agreed_fees(terms: AccountContract, contract: PayerContract, book: PriceBook) -> Iterator[AgreedFee]:
    """The fees of the tariff, then those of the account.

    Versions that repeat a fee for the same devices, whatever its begin, end and proration, are one; the last in force
    says whether it is whole, and is then the only one, also if it is for other devices than those before.
    """
    pays = contract.payer.currency
    of_tariff = [
        (span.begin_us, span.tariff.fees, span.tariff.currency, worth)
        for span, worth in zip(terms.spans, book.worths, strict=True)
    ]
    of_account = [(span.begin_us, span.fees, pays, worth_of(pays, contract)) for span in terms.fees]
    for versions in (of_tariff, of_account):
        found: defaultdict[tuple[str, str], defaultdict[tuple[Fee, str, Fraction], set[int]]]
        found, last = defaultdict(lambda: defaultdict(set)), dict[tuple[str, str], tuple[int, bool]]()
        newest = dict[str | tuple[str, str], int]()
        days_of = _days_of_versions([one[0] for one in versions], terms, contract.period)
        for number, ((_, fees, currency, worth), days) in enumerate(zip(versions, days_of, strict=True)):
            for fee in fees:
                held, same, of = days, fee, (fee.id, selector_text(fee.devices))
                newest[fee.id] = newest[of] = number
                if fee.begin or fee.end or fee.is_whole:
                    # a version that only lets it end is the same fee
                    held = frozenset(day for day in days if fee.holds_on(date.fromordinal(day)))
                    same = fee.model_copy(update={"begin": None, "end": None, "proration": Proration.BY_DAY})
                if held:
                    found[of][same, currency, worth].update(held)
                    last[of] = max(held), fee.is_whole
        for of, of_id in found.items():
            is_whole = last[of][1]
            if is_whole and newest[of] < newest[of[0]]:
                continue
            for agreed in [max(of_id, key=lambda one: max(of_id[one]))] if is_whole else of_id:
                yield AgreedFee(*agreed, frozenset(of_id[agreed]), is_whole, versions is of_tariff)


@dataclass(slots=True)
class AccountYear:
    """What the earlier periods of an account's contract year came to, in minor units.

    `kept`: usage charges after caps. `owed_minor`: all charges. `minimums`: those of the year, each with the local days
    on which it was agreed; the last one last.
    """

    kept: Counter[UsePlace] = field(default_factory=Counter)
    owed_minor: int = 0
    minimums: dict[AgreedMinimum, int] = field(default_factory=dict)
    had_devices: bool = False

    def add_days(self, terms: AccountContract, contract: PayerContract, book: PriceBook) -> None:
        """Adds the minimums of a period and its devices."""
        self.had_devices |= bool(terms.assigned)
        own, of_version = account_days(terms, contract.period), _days_of_versions(book.begins, terms, contract.period)
        for tariff, worth, held in zip(book.tariffs, book.worths, of_version, strict=True):
            days = held & own
            if tariff.minimum_amount is not None and tariff.minimum_span is Span.YEAR and days:
                agreed = AgreedMinimum.of(tariff, worth)
                self.minimums[agreed] = self.minimums.pop(agreed, 0) + len(days)


class EarlierPeriods:
    """What a payer's earlier periods leave for the next one; empty before the first."""

    def __init__(self) -> None:
        self.pools = PayerPools()
        self._years: defaultdict[tuple[str, date | None], AccountYear] = defaultdict(AccountYear)

    def year_of(self, terms: AccountContract) -> AccountYear:
        """The contract year so far of an account."""
        return self._years[terms.id, terms.year and terms.year[0]]


class AgreedMinimum(NamedTuple):
    """A minimum, in a currency in which one unit is `worth` minor units of the payer."""

    amount: Decimal
    currency: str
    worth: Fraction
    is_whole: bool
    without_devices: bool

    @classmethod
    def of(cls, tariff: Tariff, worth: Fraction) -> AgreedMinimum:
        assert tariff.minimum_amount is not None
        is_whole = tariff.proration is Proration.WHOLE
        return cls(tariff.minimum_amount, tariff.currency, worth, is_whole, tariff.minimum_without_devices)


class FeeDue(NamedTuple):
    """A fee of an account or a device, and what it comes to.

    `days`: those that are charged, and those that they are a part of. `usage`: what a per cent is of, after caps and of
    its days, by tax. `minor`: rounded. `taxed`: the same by tax. `is_limited`: a credit is larger than what there was.
    """

    agreed: AgreedFee
    of: Scope
    region: str
    days: tuple[int, int]
    usage: Mapping[str, Fraction]
    minor: int
    taxed: Mapping[str, int]
    is_limited: bool = False

    @property
    def usage_minor(self) -> Fraction:
        return sum(self.usage.values(), Fraction(0))

    @property
    def exact_minor(self) -> Fraction:
        """Before rounding, and before what is there limits a credit."""
        fee, (charged, whole) = self.agreed.fee, self.days
        if fee.percent is not None:
            return self.usage_minor * Fraction(fee.percent) / 100
        return Fraction(fee.amount or 0) * self.agreed.worth * Fraction(charged, whole)

    def charges(self, account: str) -> list[Charge]:
        """One for each tax."""
        text = fee_text(self.agreed.fee, self.agreed.currency, self.days, is_limited=self.is_limited)
        tenant, device = self.of
        key = ChargeKey(account, self.region, tenant, device, ChargeKind.FEE, price=text)
        return [Charge(key._replace(tax=tax), 1, 0, minor, None) for tax, minor in self.taxed.items()]


class UsePlace(NamedTuple):
    """What a cap can choose usage by, and its tax. `window`: that of its price."""

    tenant: str
    device: str
    meter: Meter
    zone: str
    window: str
    tax: str

    @classmethod
    def of(cls, cell: Cell, price: RatedPrice) -> UsePlace:
        return cls(cell.tenant, cell.device, cell.meter, cell.zone, price.price.window, price.tax)


KeptShares = Mapping[UsePlace, Fraction]
"""The share of usage charges that caps leave; what is not in it is not capped."""
UsesByDay = Mapping[tuple[Meter, Place, str, str], Mapping[date, int]]
"""For each usage charge (meter, place, price and tax) what each local day had of it; empty if no fee needs that."""


def fees_due(
    terms: AccountContract,
    contract: PayerContract,
    book: PriceBook,
    charges: Sequence[Charge],
    kept: KeptShares,
    *,
    by_day: UsesByDay,
) -> list[FeeDue]:
    """The fees of an account with these usage charges and caps, surcharges before credits."""
    whole = _days_of_cycle(contract)
    account = {_ACCOUNT: ("", account_days(terms, contract.period))}
    devices: dict[Scope, tuple[str, Days]] = {}
    dues: list[FeeDue] = []
    taken = defaultdict[tuple[str, bool, Scope], Days](frozenset)
    # of those with one id a day is of the one for fewest devices
    for agreed in sorted(agreed_fees(terms, contract, book), key=lambda one: -len(one.fee.devices)):
        fee, is_percent, rounded = agreed.fee, agreed.fee.percent is not None, dict[tuple[int, int], int]()
        uses = {} if agreed.is_whole else by_day
        usage = _usage_of(agreed, charges, kept, uses) if is_percent else {}
        if fee.scope is Pool.DEVICE:
            devices = devices or _devices(terms.assigned, contract.period)
        of_fee = devices if fee.scope is Pool.DEVICE else account
        if fee.devices:
            chosen = [one for one in terms.assigned if matches(fee.devices, one.attributes)]
            of_fee = _devices(chosen, contract.period)
        for scope, (region, days) in of_fee.items():
            by_id = fee.id, agreed.of_tariff, scope
            on = agreed.days & days - taken[by_id]
            taken[by_id] |= on
            charged = len(on)
            if charged and (not is_percent or usage.get(scope)):
                of = len(days) if is_percent else whole
                share = of if agreed.is_whole else charged, of
                due = FeeDue(agreed, scope, region, share, usage.get(scope, {}), 0, {})
                if is_percent or share not in rounded:
                    # nearly all devices have the same days
                    rounded[share] = round_ratio(*due.exact_minor.as_integer_ratio())
                dues.append(due._replace(minor=rounded[share]))
    return _taxed(dues, by_tax(charges), contract.payer.vat.tax)


def _taxed(dues: list[FeeDue], owed: dict[str, int], tax: str) -> list[FeeDue]:
    """Surcharges, credits of amounts, credits of a per cent; none takes more than what is owed until then at its tax.

    A surcharge of usage that is negative in sum gives back a part of an earlier one, so it has no limit.
    `owed`: by tax. `tax`: of an amount that states none.
    """
    ordered = sorted(dues, key=lambda due: (due.minor < 0, due.agreed.fee.percent is not None))
    for at, due in enumerate(ordered):
        fee, minor = due.agreed.fee, due.minor
        of: Mapping[str, int | Fraction] = {fee.vat.tax: 1} if fee.vat else due.usage
        if minor >= 0:
            parts = shared(minor, of or {tax: 1})
        elif fee.percent is not None and fee.percent > 0:
            negative = {one: -there for one, there in due.usage.items() if there < 0}
            parts = {one: -part for one, part in shared(-minor, of if fee.vat else negative).items()}
        else:
            left = {one: there for one, there in owed.items() if there > 0 and (not of or one in of)}
            minor = max(minor, -sum(left.values()))
            parts = shared(-minor, of or left or {tax: 1})
            if any(part > left.get(one, 0) for one, part in parts.items()):
                parts = shared(-minor, left)
            parts = {one: -part for one, part in parts.items()}
        for one, part in parts.items():
            owed[one] = owed.get(one, 0) + part
        ordered[at] = due._replace(minor=minor, taxed=parts, is_limited=minor != due.minor)
    return ordered


def _days_of_cycle(contract: PayerContract) -> int:
    """The days that amounts of a period are for: also those that are cut off its cycle."""
    begin, end = (quarter_number(one) * QUARTER_US for one in (contract.period.start, contract.period.end))
    return len(days_within(contract.period, begin, end)) + contract.cut_days


def _devices(assigned: Iterable[Assigned], period: BillingPeriod) -> dict[Scope, tuple[str, Days]]:
    """Region and days of each device, in order."""
    found: dict[Scope, tuple[str, Days]] = {}
    for one in sorted(assigned):
        scope, days = (one.tenant, one.device), days_held(period, one.begin_us, one.end_us)
        region, before = found.get(scope, (one.region, frozenset()))
        found[scope] = min(region, one.region), before | days
    return found


def _usage_of(
    agreed: AgreedFee, charges: Iterable[Charge], kept: KeptShares, by_day: UsesByDay
) -> dict[Scope, dict[str, Fraction]]:
    """The usage charges after caps that a per cent is of, by tax; without those of 0. Of a charge it is the part of the
    quantity that is of its days.
    """
    fee, found = agreed.fee, dict[Scope, dict[str, Fraction]]()
    for key, _, _, minor, *_ in charges:
        if minor and key.kind is ChargeKind.USAGE and key.meter is not None and fee.covers(key.meter, key.zone):
            scope = (key.tenant, key.device) if fee.scope is Pool.DEVICE else _ACCOUNT
            of = UsePlace(key.tenant, key.device, key.meter, key.zone, key.window_id, key.tax)
            of_scope = found.setdefault(scope, {})
            part = minor * (kept.get(of, Fraction(1)) if kept else Fraction(1))
            if uses := by_day.get((key.meter, Place.of(key), key.price, key.tax)):
                of_days = sum(one for day, one in uses.items() if day.toordinal() in agreed.days)
                part *= Fraction(of_days, sum(uses.values()))
            if part:
                of_scope[key.tax] = of_scope.get(key.tax, Fraction(0)) + part
    return found


class MinimumDue(NamedTuple):
    """What is missing to the minimum of an account that owes `owed_minor`. `exact_minor`: of its days, not rounded.

    `minor`: what is missing. `taxed`: the same by tax.
    """

    amount: Decimal
    currency: str
    days: tuple[int, int]
    exact_minor: Fraction
    owed_minor: int
    minor: int
    taxed: Mapping[str, int]
    span: Span = Span.CYCLE

    def charges(self, account: str) -> list[Charge]:
        """One for each tax."""
        text = minimum_text(self.amount, self.currency, self.days, self.span)
        key = ChargeKey(account=account, kind=ChargeKind.MINIMUM, price=text)
        return [Charge(key._replace(tax=tax), 0, 0, part, None) for tax, part in self.taxed.items()]


def minimums_due(
    terms: AccountContract, contract: PayerContract, book: PriceBook, owed: Mapping[str, int], year: AccountYear
) -> list[MinimumDue]:
    """What is missing to the minimum of the last version, and to those of the contract year, at the taxes of what is
    owed. Those of a year are due in its last period, or in the account's, each for its days.
    """
    tariff, found = book.tariffs[-1] if book.tariffs else None, list[MinimumDue]()
    there = {tax: of_tax for tax, of_tax in owed.items() if of_tax > 0} or {contract.payer.vat.tax: 1}

    def add(agreed: Mapping[AgreedMinimum, int], whole: int, owed_minor: int, span: Span, *, has_devices: bool) -> None:
        *_, last = (None, *agreed)
        for one in [last] if last and last.is_whole else agreed:
            days = whole if one.is_whole else agreed[one], whole
            exact = Fraction(one.amount) * one.worth * Fraction(*days)
            least = round_ratio(*exact.as_integer_ratio())
            missing = least - owed_minor
            if missing > 0 and (has_devices or one.without_devices):
                taxed = shared(missing, there)
                found.append(MinimumDue(one.amount, one.currency, days, exact, owed_minor, missing, taxed, span))
            # the next one is for other days
            owed_minor = max(0, -missing)

    own, owed_minor = len(account_days(terms, contract.period)), sum(owed.values())
    if own and tariff and tariff.minimum_amount is not None and tariff.minimum_span is Span.CYCLE:
        agreed = {AgreedMinimum.of(tariff, book.worths[-1]): own}
        add(agreed, _days_of_cycle(contract), owed_minor, Span.CYCLE, has_devices=bool(terms.assigned))
    if terms.year and (contract.period.last_day == terms.year[1] or terms.ends):
        owed_minor += year.owed_minor + sum(due.minor for due in found)
        whole = (terms.year[1] - terms.year[0]).days + 1
        add(year.minimums, whole, owed_minor, Span.YEAR, has_devices=year.had_devices)
    return found
