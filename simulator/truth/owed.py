"""What a payer owes for a period: its usage, fees, credits, minimum and tax."""

from collections.abc import Callable, Iterable
from datetime import date, datetime
from fractions import Fraction
from typing import NamedTuple

from simulator.truth.charging import (
    TrueCharge,
    TrueKey,
    Used,
    Worth,
    caps_on_days,
    daily_caps,
    days_text,
    minimum_text,
    number_text,
    period_caps,
    price_text,
    usage_charges,
    used_by,
)
from simulator.truth.contracts import (
    AgreedFee,
    AgreedTariff,
    TrueContracts,
    TrueDays,
    TrueQuarter,
    days_before,
    days_held,
    exponent,
    half_up,
    quarters_of,
)
from simulator.truth.shapes import TruthError


class TrueTax(NamedTuple):
    """The tax on all charges of a category and rate (per cent)."""

    category: str
    rate: Fraction
    exemption_reason: str
    taxable_minor: int
    tax_minor: int


class TrueOwed(NamedTuple):
    """What a payer owes for a period, in minor units of its currency."""

    payer: str
    legal_entity: str
    currency: str
    charges: tuple[TrueCharge, ...]
    taxes: tuple[TrueTax, ...]

    @property
    def net_minor(self) -> int:
        return sum(charge.amount_minor for charge in self.charges)

    @property
    def gross_minor(self) -> int:
        return self.net_minor + sum(tax.tax_minor for tax in self.taxes)


FactsUsed = Callable[[TrueContracts, list[str], TrueDays, Worth, list[TrueQuarter]], list[Used]]
"""What accounts used of visits and passages in a period, of which the usage is known, too."""
_FACTS = {"visit", "stay", "passage", "driven day"}


def owed_by(
    contracts: TrueContracts,
    payer: str,
    days: TrueDays,
    usage: Iterable[TrueQuarter],
    facts: FactsUsed | None = None,
) -> TrueOwed:
    """Raises TruthError if it cannot be computed, for instance for a zone without a price.

    `facts`: what was used of visits and passages; a tariff that sells them needs it.
    """
    last_moment = max(moment for moment, _ in quarters_of(days))
    there = contracts.days_of(payer, days)
    root = there and there[0]
    if root is None or root.payer is None:
        raise TruthError(f"{payer} does not pay at {last_moment.isoformat()}")
    if root.payer.time_zone != days.time_zone:
        raise TruthError(f"{payer} is billed in {root.payer.time_zone}, not in {days.time_zone}")
    currency = root.payer.currency

    def worth(tariff_currency: str) -> Fraction:
        return contracts.rate(tariff_currency, currency, last_moment) * Fraction(10 ** exponent(currency))

    family = contracts.family(payer, days)
    quarters = list(usage)
    used = used_by(contracts, family, days, quarters)
    if facts is None and (sold := _facts_sold(contracts, family, days)):
        raise TruthError(f"a run of the simulator has no visits and passages, and {payer} is sold {sold}")
    of_facts = facts(contracts, family, days, worth, quarters) if facts else []
    before = days_before(days, root.payer.year_begins)
    yearly = any(price.span == "year" for tariff in contracts.tariffs.values() for price in tariff.prices)
    earlier = used_by(contracts, family, before, quarters) if before and yearly else []
    charges = [*usage_charges(used, worth, earlier), *_fact_charges(of_facts)]
    used += of_facts
    caps_on = caps_on_days(contracts, family, days)
    for one in of_facts:
        # A stay may have begun before the period, which has its first caps for these days, too.
        first = min(day for account, day in caps_on if account == one.account)
        caps_on.setdefault((one.account, one.day), caps_on[one.account, first])
    charges += daily_caps(used, charges, caps_on, worth)
    by_day = _by_day(used)
    for name in family:
        of = contracts.days_of(name, days)
        assert of is not None
        account, last, on_days = of
        tariff = contracts.tariff(account.tariff, last)
        own = [charge for charge in charges if charge.about.account == name]
        capped = period_caps(tariff, used, own, worth)
        charges += capped
        fees = _fees(contracts, (name, currency), days, [*own, *capped], worth, used=by_day)
        charges += fees
        has_device = tariff.minimum_without_devices or _has_device(contracts, name, days)
        if tariff.minimum_amount is not None and on_days and has_device:
            every = len({local.date() for _, local in quarters_of(days)})
            paid_days = every if tariff.proration == "whole" else len(on_days)
            charges += _minimum(name, tariff, (paid_days, every), [*own, *capped, *fees], worth)
    net = sum(charge.amount_minor for charge in charges)
    vat = root.payer
    tax = TrueTax(vat.vat_category, vat.vat_rate, vat.exemption_reason, net, half_up(net * vat.vat_rate / 100))
    return TrueOwed(payer, vat.legal_entity, currency, tuple(sorted(charges)), (tax,))


def _fact_charges(used: Iterable[Used]) -> list[TrueCharge]:
    """One charge for each account, device, zone, window and price."""
    sums: dict[TrueKey, list[int]] = {}
    for one in used:
        assert one.minor is not None
        where = one.price.meter, one.zone, one.price.window
        text = price_text(one.price, one.tariff.currency)
        about = TrueKey(one.account, one.region, one.tenant, one.device, "usage", *where, text)
        numbers = one.quantity, one.free, one.minor
        sums[about] = [sum(pair) for pair in zip(sums.get(about, [0, 0, 0]), numbers, strict=True)]
    return [TrueCharge(about, *numbers) for about, numbers in sums.items()]


def _facts_sold(contracts: TrueContracts, family: list[str], days: TrueDays) -> str:
    """The meters of facts that the accounts are sold until the end of a period."""
    last = quarters_of(days)[-1][0]
    known = {account.tariff for account in contracts.accounts.values() if account.id in family}
    tariffs = [one for one in contracts.tariffs.values() if one.id in known and one.effective_from <= last]
    return ", ".join(sorted(_FACTS & {price.meter for one in tariffs for price in one.prices}))


def _has_device(contracts: TrueContracts, name: str, days: TrueDays) -> bool:
    """Whether an account has a device at any time of a period."""
    for moment, _ in quarters_of(days):
        account = contracts.account(name, moment)
        for one in account.devices if account is not None else ():
            if one.begin <= moment and (one.end is None or moment < one.end):
                return True
    return False


def _minimum(
    account: str, tariff: AgreedTariff, days: tuple[int, int], own: list[TrueCharge], worth: Worth
) -> list[TrueCharge]:
    """The difference to the minimum fee in force at the end. `days`: paid days, and all days of the period."""
    assert tariff.minimum_amount is not None
    least = tariff.minimum_amount * worth(tariff.currency) * Fraction(*days)
    lacking = half_up(least) - sum(charge.amount_minor for charge in own)
    text = minimum_text(tariff.minimum_amount, tariff.currency, *days)
    return [TrueCharge(TrueKey(account, kind="minimum fee", price=text), 0, 0, lacking)] if lacking > 0 else []


# Fees and credits, in the order in which the page about rating lists them.

Owner = tuple[str, str, str]
"""Region, tenant and device that a fee is for; all are "" for a fee of the account."""


ByDay = dict[TrueKey, dict[date, int]]
"""What was used for each charge on each local day; of facts, what it cost."""


def _by_day(used: Iterable[Used]) -> ByDay:
    found: ByDay = {}
    for one in used:
        where = one.price.meter, one.zone, one.price.window, price_text(one.price, one.tariff.currency)
        of_day = found.setdefault(TrueKey(one.account, one.region, one.tenant, one.device, "usage", *where), {})
        of_day[one.day] = of_day.get(one.day, 0) + (one.quantity if one.minor is None else one.minor)
    return found


class _Fee(NamedTuple):
    """A fee of an owner for some of the owner's days; it is agreed on the days `on`."""

    owner: Owner
    terms: AgreedFee
    days: int
    of_days: int
    on: set[date]

    @property
    def order(self) -> tuple[object, ...]:
        least = self.terms.amount if self.terms.percent is None else self.terms.percent
        assert least is not None
        return (
            (0 if least > 0 else 1 if self.terms.percent is None else 2),
            not self.terms.in_currency,
            self.owner,
            self.terms.id,
        )


def _fees(
    contracts: TrueContracts,
    whose: tuple[str, str],
    days: TrueDays,
    own: list[TrueCharge],
    worth: Worth,
    *,
    used: ByDay,
) -> list[TrueCharge]:
    """The fees of an account, each rounded once. A credit takes at most what is owed until then.

    `whose`: the account, and the payer's currency, which amounts of the account are in.
    """
    account, currency = whose
    every = len({local.date() for _, local in quarters_of(days)})
    owed = sum(charge.amount_minor for charge in own)
    found = []
    for fee in sorted(_fees_of(contracts, account, days), key=lambda fee: fee.order):
        terms = fee.terms._replace(in_currency=fee.terms.in_currency or currency)
        by_day = terms.proration == "by_day" and terms.every == "period"
        if terms.percent is None:
            assert terms.amount is not None
            exact = terms.amount * worth(terms.in_currency)
            of_days = every
        else:
            exact = _selected(own, fee, used if by_day else {}) * terms.percent / 100
            of_days = fee.of_days
        exact *= Fraction(fee.days, of_days) if by_day and terms.percent is None else 1
        amount = max(half_up(exact), -max(owed, 0))
        owed += amount
        text = _fee_text(terms, days_text(fee.days, of_days) if by_day else "")
        if amount > half_up(exact):
            text += ", limited to what was charged"
        found.append(TrueCharge(TrueKey(account, *fee.owner, kind="fee", price=text), 1, 0, amount))
    return found


def _fees_of(contracts: TrueContracts, name: str, days: TrueDays) -> list[_Fee]:
    """Each fee with its days; a day belongs to the last version in force on it, and to who has it at its end."""
    on_day: dict[date, tuple[AgreedFee, ...]] = {}
    held: dict[Owner, set[datetime]] = {("", "", ""): set()}
    for moment, local in quarters_of(days):
        account = contracts.account(name, moment)
        if account is not None:
            on_day[local.date()] = (*contracts.tariff(account.tariff, moment).fees, *account.fees)
            held["", "", ""].add(moment)
            for one in account.devices:
                if one.begin <= moment and (one.end is None or moment < one.end):
                    held.setdefault((one.region, one.tenant, one.device), set()).add(moment)
    found = []
    for owner, moments in held.items():
        there = days_held(days, moments.__contains__)
        dated: dict[object, list[AgreedFee]] = {}
        on: dict[object, set[date]] = {}
        for day in sorted(on_day):
            for fee in on_day[day]:
                is_due = day == fee.begin if fee.every == "once" else fee.begin <= day < fee.end
                if (fee.scope == "device") == bool(owner[2]) and is_due:
                    # Of a fee that is charged whole, the last version counts.
                    alike = fee._replace(begin=date.min, end=date.max) if fee.proration == "by_day" else "whole"
                    about = fee.id, not fee.in_currency, alike
                    on.setdefault(about, set()).add(day)
                    if day in there:
                        dated.setdefault(about, []).append(fee)
        found += [_Fee(owner, fees[-1], len(fees), len(there), on[about]) for about, fees in dated.items()]
    return found


def _fee_text(fee: AgreedFee, days: str) -> str:
    whose = ", for each device" if fee.scope == "device" else ""
    if fee.percent is None:
        assert fee.amount is not None
        often = "once" if fee.every == "once" else "a period"
        return f"{fee.name}: {_amount_text(fee.amount, fee.in_currency)} {often}{whose}{days}"
    zones = ", ".join({"": "outside all zones", "*": "any zone"}.get(zone, zone) for zone in sorted(fee.zones))
    what = ", ".join(fee.meters) or "all usage"
    only = f", only {zones}" if zones else ""
    return f"{fee.name}: {number_text(fee.percent)} % of {what}{whose}{days}{only}"


def _amount_text(amount: Fraction, currency: str) -> str:
    return f"{number_text(amount, exponent(currency))} {currency}"


def _selected(own: list[TrueCharge], of: _Fee, used: ByDay) -> Fraction:
    """The selected usage, less its part of each cap that it is under; a cap takes the same part of all under it. Of
    each charge the part that was used on the days of the fee.
    """
    owner, fee = of.owner, of.terms
    left = {charge.about: Fraction(charge.amount_minor) for charge in own if charge.about.kind == "usage"}
    for is_daily in (True, False):
        for cap in own:
            if cap.about.kind == "cap" and (" a day " in cap.about.price) is is_daily:
                said = cap.about.price.rpartition("(")[2].rstrip(")")
                meters = set() if said == "all meters" else set(said.split(", "))
                device = cap.about[2:4] if cap.about.device else None
                under = [
                    about
                    for about in left
                    if (not meters or about.meter in meters) and (device is None or about[2:4] == device)
                ]
                total = sum((left[about] for about in under), Fraction(0))
                for about in under:
                    left[about] += cap.amount_minor * left[about] / total
    for about, by_day in used.items():
        if sum(by_day.values()) and about in left:
            left[about] *= Fraction(sum(one for day, one in by_day.items() if day in of.on), sum(by_day.values()))
    return sum(
        (
            amount
            for about, amount in left.items()
            if (not owner[2] or about[2:4] == owner[1:])
            and (not fee.meters or about.meter in fee.meters)
            and (not fee.zones or _is_in(about, fee.zones))
        ),
        Fraction(0),
    )


def _is_in(about: TrueKey, zones: tuple[str, ...]) -> bool:
    """Whether usage was in one of the zones; events, bytes and active days are in no zone, and not outside either."""
    placed = about.meter not in {"event", "transmitted", "active day"}
    return placed and (about.zone in zones or (bool(about.zone) and "*" in zones))
