"""What a payer owes for a period: its usage, caps, and tax."""

from collections.abc import Callable, Iterable
from fractions import Fraction
from typing import NamedTuple

from simulator.truth.charging import (
    TrueCharge,
    Used,
    Worth,
    caps_on_days,
    daily_caps,
    period_caps,
    usage_charges,
    used_by,
)
from simulator.truth.contracts import (
    TrueContracts,
    TrueDays,
    TrueQuarter,
    days_before,
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


class BeyondUsage(NamedTuple):
    """What accounts owe for visits and passages (used, and charged), and as fees and minimum, which needs the charges
    of usage and caps of an account (its name, and the payer's currency).
    """

    facts: Callable[[TrueContracts, list[str], TrueDays, Worth, list[TrueQuarter]], tuple[list[Used], list[TrueCharge]]]
    fees: Callable[[TrueContracts, tuple[str, str], TrueDays, list[TrueCharge], Worth, list[Used]], list[TrueCharge]]


_FACTS = {"visit", "stay", "passage", "driven day"}


def owed_by(
    contracts: TrueContracts,
    payer: str,
    days: TrueDays,
    usage: Iterable[TrueQuarter],
    beyond: BeyondUsage | None = None,
) -> TrueOwed:
    """Raises TruthError if it cannot be computed, for instance for a zone without a price.

    `beyond`: needed for contracts with visits, passages, fees or a minimum.
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
    if beyond is None and (agreed := _beyond_usage(contracts, family, days)):
        raise TruthError(f"the simulator knows what usage costs, and {payer} has {agreed}")
    of_facts, fact_charges = beyond.facts(contracts, family, days, worth, quarters) if beyond else ([], [])
    before = days_before(days, root.payer.year_begins)
    yearly = any(price.span == "year" for tariff in contracts.tariffs.values() for price in tariff.prices)
    earlier = used_by(contracts, family, before, quarters) if before and yearly else []
    charges = [*usage_charges(used, worth, earlier), *fact_charges]
    used += of_facts
    caps_on = caps_on_days(contracts, family, days)
    for one in of_facts:
        # A stay may have begun before the period, which has its first caps for these days, too.
        first = min(day for account, day in caps_on if account == one.account)
        caps_on.setdefault((one.account, one.day), caps_on[one.account, first])
    charges += daily_caps(used, charges, caps_on, worth)
    for name in family:
        of = contracts.days_of(name, days)
        assert of is not None
        account, last, _ = of
        tariff = contracts.tariff(account.tariff, last)
        own = [charge for charge in charges if charge.about.account == name]
        capped = period_caps(tariff, used, own, worth)
        charges += capped
        if beyond:
            charges += beyond.fees(contracts, (name, currency), days, [*own, *capped], worth, used)
    net = sum(charge.amount_minor for charge in charges)
    vat = root.payer
    tax = TrueTax(vat.vat_category, vat.vat_rate, vat.exemption_reason, net, half_up(net * vat.vat_rate / 100))
    return TrueOwed(payer, vat.legal_entity, currency, tuple(sorted(charges)), (tax,))


def _beyond_usage(contracts: TrueContracts, family: list[str], days: TrueDays) -> str:
    """What the contracts have until the end of a period that is not usage."""
    last = quarters_of(days)[-1][0]
    accounts = [one for one in contracts.accounts.values() if one.id in family and one.effective_from <= last]
    known = {one.tariff for one in accounts}
    tariffs = [one for one in contracts.tariffs.values() if one.id in known and one.effective_from <= last]
    found = _FACTS & {price.meter for one in tariffs for price in one.prices}
    found |= {"fees" for fees in (*(one.fees for one in accounts), *(one.fees for one in tariffs)) if fees}
    found |= {"a minimum" for one in tariffs if one.minimum_amount is not None}
    return ", ".join(sorted(found))
