"""The contract of one payer for one period: what rating needs besides usage. Small enough to send to executors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta
from decimal import Decimal
from functools import cached_property, lru_cache
from hashlib import sha256
from itertools import combinations
from typing import Any, Final, NamedTuple

from cloud_jobs.billing.billing_period import BillingPeriod, zone_of
from cloud_jobs.billing.contracts.account import (
    Account,
    ExchangeRate,
    LegalEntity,
    Payer,
    missing_for_profile,
    rate_id,
)
from cloud_jobs.billing.contracts.errors import CalendarEnds, ContractFault, Named
from cloud_jobs.billing.contracts.fields import (
    NEEDS_BUYERS_VAT_ID,
    NEEDS_SELLERS_VAT_ID,
    Attributes,
    Vat,
    VatCategory,
    attributes_of,
)
from cloud_jobs.billing.contracts.prices import Fee, Pool, Span
from cloud_jobs.billing.contracts.published import (
    EVER,
    ContractVersion,
    ContractVersions,
    known,
    micros,
    moment_of,
    parsed,
)
from cloud_jobs.billing.contracts.tariff import Tariff
from cloud_jobs.billing.contracts.windows import Calendar
from cloud_jobs.billing.units import FACTS, Meter
from cloud_jobs.lake.coverage import TenantDevice
from geo.reference.moments import stamp

REACH: Final = timedelta(days=366)
"""How long before a period a visit may have begun whose time is charged in it."""


class Assigned(NamedTuple):
    """A device of an account within the period, from `begin_us` until `end_us` (excluded; µs since 1970).

    The times of one device never overlap, in whichever accounts. All are on quarters of an hour. `attributes`: those
    that a price or fee of the account names.
    """

    tenant: str
    device: str
    begin_us: int
    end_us: int
    account: str
    region: str
    attributes: Attributes = ()

    @property
    def of_device(self) -> TenantDevice:
        return TenantDevice(self.tenant, self.device)


class TariffSpan(NamedTuple):
    """From when until when (µs since 1970, the end excluded) a version of a tariff and of its calendar applies."""

    begin_us: int
    end_us: int
    tariff: Tariff
    calendar: Calendar | None = None


class FeeSpan(NamedTuple):
    """The fees of a version of an account, from `begin_us` (µs since 1970) until the next version."""

    begin_us: int
    fees: tuple[Fee, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountContract:
    """One account of a payer's tree in the period.

    `times`: when the account is in force (µs since 1970), in order. `spans`: its tariff versions in order; a cell of
    usage names them by position, from 0. `fees`: its own, by version; () if no version has any. `held`: `assigned` also
    outside the period, cut a microsecond after it; () without prices of facts, as only a visit can last longer.
    `priced`: for facts, its tariff versions also REACH before the period; the last one ends after the period if the
    next version sells stays, too.
    `year`: first and last day of its contract year; None if nothing is of a year. `ends`: whether the payer has it no
    more after the period.
    """

    id: str
    name: str
    times: tuple[tuple[int, int], ...]
    spans: tuple[TariffSpan, ...]
    assigned: tuple[Assigned, ...] = ()
    fees: tuple[FeeSpan, ...] = ()
    held: tuple[Assigned, ...] = ()
    priced: tuple[TariffSpan, ...] = ()
    year: tuple[date, date] | None = None
    ends: bool = False

    @property
    def depends_on(self) -> frozenset[Span]:
        """The times other than the period that charges depend on."""
        return frozenset[Span]().union(*(span.tariff.spans for span in self.spans))

    @property
    def depends_on_days(self) -> bool:
        """Whether a charge depends on the day of use: by a cap or pool of a day or week."""
        return bool(self.depends_on & {Span.DAY, Span.WEEK})

    @property
    def has_dated_percents(self) -> bool:
        """Whether a percentage may be in force on some days only, so that a charge depends on the days of use."""
        of_tariffs, of_account = [span.tariff.fees for span in self.spans], [one.fees for one in self.fees]
        if not any(of_tariffs) and not any(of_account):
            return False
        first, end = (moment_of(us).date() for us in (self.times[0][0], self.times[-1][1]))
        for of in (of_tariffs, of_account):
            for fee in {fee for fees in of for fee in fees if fee.percent is not None and not fee.is_whole}:
                # local days may begin a day earlier or later than those of UTC
                is_cut = (fee.begin and fee.begin >= first) or (fee.end and fee.end <= end + timedelta(days=1))
                if is_cut or any(fee not in fees for fees in of):
                    return True
        return False

    @property
    def is_by_cycle(self) -> bool:
        """Whether it has amounts for each period, or something of a year."""
        fees = (fee for of in self.fees for fee in of.fees)
        return any(span.tariff.is_by_cycle for span in self.spans) or any(fee.is_by_cycle for fee in fees)

    @property
    def sells_inferred_entries(self) -> bool:
        """Whether a tariff version has a price for them; otherwise they affect no charge."""
        return any(Meter.INFERRED_ENTRY in span.tariff.sold for span in self.spans)

    @property
    def sells_facts(self) -> bool:
        """Whether a tariff version has a price of visits, stays, passages or driven days."""
        return any(span.tariff.sold & FACTS for span in self.spans)


@dataclass(frozen=True, kw_only=True)
class PayerContract:
    """The contract of a payer for a period.

    `account`: the version in force at the period's last moment, without devices. `accounts`: the payer's account and
    those below it, by id. `rates`: units of the payer's currency for one unit of each other tariff currency, at the
    period's last moment. `tax_rate`: of the seller's currency for VAT, if it is another. `digest`: SHA-256 (hex) over
    the texts of all versions used. `earlier`: its periods before this one, in order, that pools, caps and minimums of a
    contract year or week depend on. `cut_days`: the days of its cycle that are not in the period.
    """

    account: Account
    period: BillingPeriod
    seller: LegalEntity
    accounts: tuple[AccountContract, ...]
    rates: Mapping[str, Decimal]
    digest: str
    tax_rate: Decimal | None = None
    earlier: tuple[PayerContract, ...] = ()
    cut_days: int = 0

    @property
    def id(self) -> str:
        return self.account.id

    @property
    def payer(self) -> Payer:
        """Currency, time zone, address and VAT of the buyer."""
        assert self.account.payer is not None
        return self.account.payer

    @property
    def year(self) -> tuple[date, date] | None:
        """The contract year of the payer's own account."""
        return next((terms.year for terms in self.accounts if terms.id == self.id), None)

    @property
    def assigned(self) -> tuple[Assigned, ...]:
        """The devices of all accounts, by tenant, device and begin."""
        return tuple(sorted(one for account in self.accounts for one in account.assigned))

    @cached_property
    def vats(self) -> tuple[Vat, ...]:
        """All that a charge may be taxed with, the payer's first."""
        of_tariffs = {vat for account in self.accounts for span in account.spans for vat in span.tariff.vats}
        of_fees = {fee.vat for account in self.accounts for span in account.fees for fee in span.fees if fee.vat}
        others = {*of_tariffs, *of_fees} - {self.payer.vat}
        return self.payer.vat, *sorted(others, key=lambda vat: (vat.tax, vat.exemption_reason or ""))

    @cached_property
    def devices(self) -> tuple[TenantDevice, ...]:
        """Every device that is assigned for some of the period, once, sorted."""
        return tuple(sorted({one.of_device for account in self.accounts for one in account.assigned}))

    @cached_property
    def spans(self) -> dict[TenantDevice, tuple[datetime, datetime]]:
        """From when until when (excluded) each device is the payer's, including times in between with other payers."""
        found: dict[TenantDevice, tuple[int, int]] = {}
        for one in self.assigned:
            begin, end = found.get(one.of_device, (one.begin_us, one.end_us))
            found[one.of_device] = min(begin, one.begin_us), max(end, one.end_us)
        # nearly all devices have the whole period
        moments = {us: moment_of(us) for span in {*found.values()} for us in span}
        return {device: (moments[begin], moments[until]) for device, (begin, until) in found.items()}


# Assembly of one payer's contract; missing parts are named.

_NONE: Final[ContractVersions[Any]] = ContractVersions()


class PayerParts:
    """Assembles what is in force from `start_us` until `end_us`.

    `faults`: what is missing or contradictory. `used`: the tariffs, sellers and rates that the contract refers to.
    """

    def __init__(
        self,
        of_kind: Mapping[str, Mapping[str, ContractVersions[Any]]],
        start_us: int,
        end_us: int,
        time_zone: str = "UTC",
    ) -> None:
        self._of_kind, self._zone = of_kind, zone_of(time_zone)
        self._start_us, self._end_us = start_us, end_us
        self._publications: dict[str, str] = {}
        self._held: list[tuple[object, ...]] = []
        self.faults: list[ContractFault] = []
        self.used: set[Named] = set()

    @property
    def publications(self) -> list[str]:
        """The publications that the contract is made of, sorted."""
        return sorted(self._publications)

    def contract(self, payer_id: str, names: Sequence[str], period: BillingPeriod) -> PayerContract | None:
        """The contract of a payer with the accounts of these names; None without a seller."""
        accounts, last = list[AccountContract](), dict[str, Account]()
        for name in names:
            versions = list(self._of_kind["account"][name].within(self._start_us, self._end_us))
            made = [parsed(Account, version.body) for version in versions]
            self._publications.update((version.publication_id, version.body) for version in versions)
            assigned = tuple(_joined(_assigned(versions, made)))
            last[name] = made[-1]
            times = self._of_kind["account"][name].times_within(self._start_us, self._end_us)
            spans = tuple(self._spans(name, versions, assigned))
            fees = tuple(FeeSpan(of.begin_us, one.fees) for of, one in zip(versions, made, strict=True))
            if any(one.attributes for one in assigned):
                assigned = tuple(_joined(_with_named(assigned, spans, fees)))
            terms = AccountContract(
                id=name,
                name=made[-1].name,
                times=times,
                spans=spans,
                assigned=assigned,
                fees=fees if any(one.fees for one in made) else (),
                ends=self._ends(name, made[-1]),
            )
            if terms.sells_facts:
                priced = self._priced(terms)
                terms = replace(terms, held=self._whole_times(terms, priced), priced=priced)
            accounts.append(terms)
        self.faults += _tree_faults(accounts)
        account = last[payer_id]
        assert account.payer is not None
        rates = self._rates(accounts, account.payer.currency)
        seller = self._seller(payer_id, account.payer)
        if seller is None:
            return None
        tax_rate = self._tax_rate(account, seller)
        return PayerContract(
            account=account.model_copy(update={"devices": ()}),
            period=period,
            seller=seller,
            accounts=tuple(accounts),
            rates=rates,
            digest=self._digest(period.time_zone),
            tax_rate=tax_rate,
        )

    def _tax_rate(self, account: Account, seller: LegalEntity) -> Decimal | None:
        """Units of the currency in which the seller states its VAT for one of the payer's; None: it is the same."""
        assert account.payer is not None
        into, currency = seller.tax_currency, account.payer.currency
        if into is None or into == currency:
            return None
        why = f"is billed in {currency}, its seller {seller.id!r} states VAT in {into}"
        return self._rate(currency, into, account.id, why, "; publish one")

    def _rate(self, currency: str, into: str, account: str, why: str, advice: str = "") -> Decimal | None:
        """The exchange rate at the period's end; None, and a fault of the account, without one."""
        name = rate_id(currency, into)
        if found := self._at_the_end("exchange_rate", name):
            rate: Decimal = known(ExchangeRate, found.body).rate
            return rate
        text = f"account {account!r} {why}, and no exchange rate {name!r} is in force {self._when}{advice}"
        self.faults.append(ContractFault(text, ("account", account), is_lack=True))
        return None

    @property
    def _when(self) -> str:
        return f"at the end of {moment_of(self._end_us - 1).astimezone(self._zone).date()}"

    def _ends(self, name: str, last: Account) -> bool:
        after = self._of_kind["account"][name].at(self._end_us)
        return after is None or after.facts.parent != last.parent

    def _digest(self, time_zone: str) -> str:
        # an unchanged repeated publication is the same contract
        texts = sorted({_text_digest(body) for body in self._publications.values()})
        held = [repr(self._held)] if self._held else []
        return sha256("".join([time_zone, *texts, *held]).encode()).hexdigest()

    def _whole_times(self, terms: AccountContract, priced: Iterable[TariffSpan]) -> tuple[Assigned, ...]:
        """The times of the devices that the account has in the period, also before it and just after it."""
        devices = {one.of_device for one in terms.assigned}
        versions = list(self._of_kind["account"][terms.id].within(-EVER, self._end_us + 1))
        assigned = _assigned(versions, [parsed(Account, version.body) for version in versions])
        mine = (one for one in assigned if one.of_device in devices)
        found = _joined(_with_named(mine, priced, terms.fees))
        self._held += found
        return tuple(found)

    def _priced(self, terms: AccountContract) -> tuple[TariffSpan, ...]:
        accounts, (first, *_) = self._of_kind["account"][terms.id], terms.spans
        before = PayerParts(self._of_kind, first.begin_us - REACH // timedelta(microseconds=1), first.begin_us)
        past = [*before._spans(terms.id, [*accounts.within(before._start_us, before._end_us)], ())]
        self._publications |= before._publications
        spans = [*terms.spans]
        if past and past[-1][1:] == first._replace(end_us=first.begin_us)[1:]:
            spans[0] = first._replace(begin_us=past.pop().begin_us)
        after = accounts.at(self._end_us)
        next_tariff = after and self._of_kind["tariff"].get(after.facts.tariff, _NONE).at(self._end_us)
        if spans[-1].end_us == self._end_us and next_tariff and Meter.STAY in known(Tariff, next_tariff.body).sold:
            spans[-1] = spans[-1]._replace(end_us=self._end_us + 1)
        self._held.append(spans[-1][:2])
        return (*past, *spans)

    def _spans(
        self, account: str, versions: Sequence[ContractVersion[Any]], assigned: Sequence[Assigned]
    ) -> Iterator[TariffSpan]:
        """The tariff versions of an account in order; a version that continues is one span."""
        open_span: TariffSpan | None = None
        for version in versions:
            tariff = version.facts.tariff
            self.used.add(("tariff", tariff))
            published = self._of_kind["tariff"].get(tariff, _NONE)
            if not published.all:
                text = f"account {account!r} has the tariff {tariff!r}, which was not published"
                self.faults.append(ContractFault(text, ("account", account), missing=("tariff", tariff)))
                continue
            reached = version.begin_us
            for one in published.within(version.begin_us, version.end_us):
                self._check_gap(account, tariff, (reached, one.begin_us), assigned)
                reached = one.end_us
                self._publications[one.publication_id] = one.body
                for span in self._with_calendar(TariffSpan(one.begin_us, one.end_us, known(Tariff, one.body))):
                    continues = open_span and open_span[1:] == (span.begin_us, span.tariff, span.calendar)
                    if open_span and not continues:
                        yield open_span
                    open_span = span._replace(begin_us=open_span.begin_us) if open_span and continues else span
            self._check_gap(account, tariff, (reached, version.end_us), assigned)
        if open_span:
            yield open_span

    def _with_calendar(self, span: TariffSpan) -> Iterator[TariffSpan]:
        """The time of a tariff version by the versions of its calendar."""
        tariff, reached = span.tariff, span.begin_us
        if tariff.calendar is None:
            yield span
            return
        self.used.add(("calendar", tariff.calendar))
        for one in self._of_kind["calendar"].get(tariff.calendar, _NONE).within(span.begin_us, span.end_us):
            if reached < one.begin_us:
                break
            reached = one.end_us
            self._publications[one.publication_id] = one.body
            calendar = known(Calendar, one.body)
            unknown = {window.season for window in tariff.windows if window.season} - calendar.seasons.keys()
            if unknown:
                text = (
                    f"tariff {tariff.id!r} has a window of season {min(unknown)!r}, which calendar {calendar.id!r} "
                    f"does not have; it has {', '.join(map(repr, sorted(calendar.seasons))) or 'none'}"
                )
                self.faults.append(ContractFault(text, ("tariff", tariff.id), ("calendar", calendar.id)))
            until = calendar.known_until(tariff.windows)
            if until <= moment_of(one.end_us - 1).astimezone(self._zone).date():
                self.faults.append(CalendarEnds(tariff.id, calendar.id, until))
            yield TariffSpan(one.begin_us, one.end_us, tariff, calendar)
        if reached < span.end_us:
            text = (
                f"tariff {tariff.id!r} has the calendar {tariff.calendar!r}, of which no version is in force at "
                f"{stamp(moment_of(reached))}; publish one that is"
            )
            self.faults.append(ContractFault(text, ("tariff", tariff.id), missing=("calendar", tariff.calendar)))

    def _check_gap(self, account: str, tariff: str, gap: tuple[int, int], assigned: Sequence[Assigned]) -> None:
        begin, end = gap
        within = [one for one in assigned if one.begin_us < end and begin < one.end_us]
        if begin < end and within:
            first = stamp(moment_of(max(begin, min(one.begin_us for one in within))))
            until = stamp(moment_of(min(end, max(one.end_us for one in within))))
            text = (
                f"tariff {tariff!r} of account {account!r} has no version in force from {first} until {until}, "
                "while a device is assigned"
            )
            self.faults.append(ContractFault(text, ("account", account), is_lack=True))

    def _seller(self, account: str, payer: Payer) -> LegalEntity | None:
        name = payer.legal_entity
        found = self._at_the_end("legal_entity", name)
        if found is None:
            text = f"account {account!r} buys from the legal entity {name!r}, which is not in force {self._when}"
            self.faults.append(ContractFault(text, ("account", account), missing=("legal_entity", name)))
            return None
        seller = _seller(found.body)
        if missing := ", ".join(missing_for_profile(payer, seller)):
            text = f"account {account!r} buys from the legal entity {name!r}, and its profile needs {missing}"
            self.faults.append(ContractFault(text, ("account", account)))
        if payer.direct_debit and not seller.payment.creditor_id:
            text = (
                f"account {account!r} pays by direct debit, for which its seller, the legal entity {name!r}, "
                "needs payment.creditor_id (EN 16931, BT-90)"
            )
            self.faults.append(ContractFault(text, ("account", account)))
        return seller

    def _rates(self, accounts: Sequence[AccountContract], into: str) -> dict[str, Decimal]:
        needed = {
            span.tariff.currency: account.id
            for account in reversed(accounts)
            for span in (*account.priced, *account.spans)
        }
        found = {
            currency: self._rate(currency, into, account, f"has prices in {currency}, is billed in {into}")
            for currency, account in sorted(needed.items())
            if currency != into
        }
        return {currency: rate for currency, rate in found.items() if rate is not None}

    def _at_the_end(self, kind: str, name: str) -> ContractVersion[Any] | None:
        """The version in force at the last moment."""
        self.used.add((kind, name))
        found = self._of_kind[kind].get(name, _NONE).at(self._end_us - 1)
        if found:
            self._publications[found.publication_id] = found.body
        return found


def _tree_faults(accounts: Iterable[AccountContract]) -> Iterator[ContractFault]:
    """Accounts that share a pool and have different tariffs at one time: nothing says whose usage comes first."""
    sharing: dict[tuple[str, str, int, int], str] = {}
    for terms in accounts:
        for span in terms.spans:
            shared = (pool.id for pool in span.tariff.pools if pool.scope is Pool.TREE)
            sharing |= {(pool, span.tariff.id, span.begin_us, span.end_us): terms.id for pool in shared}
    for one, other in combinations(sorted(sharing), 2):
        if one[0] == other[0] and one[1] != other[1] and max(one[2], other[2]) < min(one[3], other[3]):
            names = sharing[one], sharing[other]
            yield ContractFault(
                f"accounts {names[0]!r} and {names[1]!r} share the pool {one[0]!r}, and have the tariffs {one[1]!r} "
                f"and {other[1]!r}; give them one tariff, or pools with other ids",
                *(("account", name) for name in names),
            )


# few sellers, shared by many payers
@lru_cache(maxsize=256)
def _seller(body: str) -> LegalEntity:
    """Without the logo, which no executor needs."""
    made: LegalEntity = known(LegalEntity, body)
    return made.model_copy(update={"logo": None})


# few long price lists, shared by many payers
@lru_cache(maxsize=4096)
def _text_digest(body: str) -> str:
    return sha256(body.encode()).hexdigest()


def _assigned(versions: Sequence[ContractVersion[Any]], made: Sequence[Account]) -> Iterator[Assigned]:
    """The devices of each version, for as long as it is in force."""
    for version, account in zip(versions, made, strict=True):
        for one in account.devices:
            begin = max(micros(one.begin), version.begin_us)
            end = min(EVER if one.end is None else micros(one.end), version.end_us)
            if begin < end:
                attributes = attributes_of(one.attributes)
                yield Assigned(one.tenant, one.device, begin, end, account.id, one.region, attributes)


def _with_named(
    assigned: Iterable[Assigned], spans: Iterable[TariffSpan], fees: Iterable[FeeSpan]
) -> Iterator[Assigned]:
    """With those attributes that something names, so that no other ever matters."""
    named = {name for span in spans for name in span.tariff.attribute_names}
    named |= {name for span in fees for fee in span.fees for name in fee.devices}
    for one in assigned:
        yield one._replace(attributes=attributes_of({name: of for name, of in one.attributes if name in named}))


def _joined(assigned: Iterable[Assigned]) -> list[Assigned]:
    """In order, with one entry where consecutive versions assign the same device."""
    found: list[Assigned] = []
    for one in sorted(assigned):
        if found and found[-1] == one._replace(begin_us=found[-1].begin_us, end_us=one.begin_us):
            found[-1] = found[-1]._replace(end_us=one.end_us)
        else:
            found.append(one)
    return found


# Taxes: what they need, what contradicts, and what is doubtful about them.

_EU: Final = frozenset(
    "AT BE BG CY CZ DE DK EE ES FI FR GR HR HU IE IT LT LU LV MT NL PL PT RO SE SI SK".split()  # noqa: SIM905
)


def tax_faults(contract: PayerContract) -> Iterator[ContractFault]:
    """VAT ids that a category needs, and accounts whose prices include tax for a part of the period only."""
    account, seller = contract.id, contract.seller
    for category in sorted({vat.category for vat in contract.vats}):
        charged = f"account {account!r} is charged VAT of category {category}, for which"
        if not seller.vat_id and (rule := NEEDS_SELLERS_VAT_ID.get(category)):
            text = f"{charged} its seller, the legal entity {seller.id!r}, needs a vat_id (EN 16931, {rule})"
            yield ContractFault(text, ("account", account))
        if not contract.payer.vat_id and (rule := NEEDS_BUYERS_VAT_ID.get(category)):
            yield ContractFault(f"{charged} it needs a vat_id (EN 16931, {rule})", ("account", account))
    for terms in contract.accounts:
        if len({span.tariff.includes_tax for span in terms.spans}) > 1:
            text = (
                f"account {terms.id!r} has prices that include tax and prices that do not; change includes_tax at the "
                "start of a period, or close the two parts separately"
            )
            yield ContractFault(text, ("account", terms.id))


def doubtful_rates(vats: Iterable[Vat]) -> Iterator[str]:
    """Rates that may have been meant as a fraction."""
    for vat in vats:
        if 0 < vat.rate < 1:
            yield f"the VAT rate is {vat.rate:f} %, which looks like a fraction; {vat.rate * 100:f} is in per cent"


def doubtful_taxes(contract: PayerContract) -> Iterator[str]:
    """Doubtful rates, and categories that contradict the countries of seller and buyer."""
    yield from doubtful_rates(contract.vats)
    seller, buyer = contract.seller.address.country, contract.payer.address.country
    categories = {vat.category for vat in contract.vats}
    if VatCategory.INTRA_COMMUNITY in categories and (seller == buyer or not {seller, buyer} <= _EU | {"XI"}):
        yield f"VAT category K is for two countries of the EU, and the seller is in {seller}, the buyer in {buyer}"
    if VatCategory.EXPORT in categories and buyer in _EU:
        yield f"VAT category G is for exports out of the EU, and the buyer is in {buyer}"
