"""What a payer owes for a period with visits and passages, fees, credits and minimum."""

from collections.abc import Iterable
from datetime import date, datetime
from fractions import Fraction
from typing import NamedTuple

from simulator.truth import owed
from simulator.truth.charging import TrueCharge, TrueKey, Used, Worth, number_text, price_text
from simulator.truth.contracts import (
    AgreedAccount,
    AgreedTariff,
    TrueContracts,
    TrueDays,
    TrueQuarter,
    days_held,
    exponent,
    half_up,
    quarters_of,
)
from tests.truth.agreed import AgreedFee, fees_of
from tests.truth.facts import TrueFacts

NO_FACTS = TrueFacts()


def owed_by(
    contracts: TrueContracts,
    payer: str,
    days: TrueDays,
    usage: Iterable[TrueQuarter],
    facts: TrueFacts = NO_FACTS,
) -> owed.TrueOwed:
    """Raises TruthError if it cannot be computed, for instance for a zone without a price."""
    return owed.owed_by(contracts, payer, days, usage, owed.BeyondUsage(facts.used, _fees_and_minimum))


def _fees_and_minimum(  # noqa: PLR0917, as the truth calls it
    contracts: TrueContracts,
    whose: tuple[str, str],
    days: TrueDays,
    own: list[TrueCharge],
    worth: Worth,
    used: list[Used],
) -> list[TrueCharge]:
    of = contracts.days_of(whose[0], days)
    assert of is not None
    account, last, on_days = of
    tariff = contracts.tariff(account.tariff, last)
    fees = _fees(contracts, whose, days, own, worth, used=_by_day(used))
    has_device = tariff.minimum_without_devices or _has_device(contracts, whose[0], days)
    if tariff.minimum_amount is None or not on_days or not has_device:
        return fees
    every = len({local.date() for _, local in quarters_of(days)})
    paid_days = every if tariff.proration == "whole" else len(on_days)
    return [*fees, *_minimum(whose[0], tariff, (paid_days, every), [*own, *fees], worth)]


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


def minimum_text(amount: Fraction, currency: str, days: int, of_days: int) -> str:
    """A minimum fee in words. `days`: the days of the period that it is paid for."""
    return f"at least {number_text(amount, exponent(currency))} {currency} a period{days_text(days, of_days)}"


def days_text(days: int, of_days: int) -> str:
    return "" if days == of_days else f", {days} of {of_days} days"


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
    stated: dict[date, tuple[AgreedTariff, AgreedAccount]] = {}
    held: dict[Owner, set[datetime]] = {("", "", ""): set()}
    for moment, local in quarters_of(days):
        account = contracts.account(name, moment)
        if account is not None:
            stated[local.date()] = contracts.tariff(account.tariff, moment), account
            held["", "", ""].add(moment)
            for one in account.devices:
                if one.begin <= moment and (one.end is None or moment < one.end):
                    held.setdefault((one.region, one.tenant, one.device), set()).add(moment)
    on_day = {
        day: [*fees_of(tariff.fees, tariff.currency), *fees_of(account.fees, "")]
        for day, (tariff, account) in stated.items()
    }
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
