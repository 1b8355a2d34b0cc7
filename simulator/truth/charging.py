"""Usage, its prices and its caps, in exact fractions until each amount is rounded once."""

import math
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from fractions import Fraction
from itertools import combinations, groupby
from typing import NamedTuple

from simulator.truth.contracts import (
    ANY_ZONE,
    WHOLE_DEVICE,
    AgreedAccount,
    AgreedCap,
    AgreedPrice,
    AgreedTariff,
    TrueContracts,
    TrueDays,
    TrueQuarter,
    exponent,
    half_up,
    quarters_of,
)
from simulator.truth.shapes import TruthError

# The price of each quarter of an hour and device, by the contracts then in force.


class Used(NamedTuple):
    """A quantity with its price, used from `moment` on. `minor`: the amount of a fact, in the payer's currency."""

    moment: datetime
    account: str
    region: str
    tenant: str
    device: str
    day: date
    zone: str
    quantity: int
    price: AgreedPrice
    tariff: AgreedTariff
    free: int = 0
    minor: int | None = None


def used_by(contracts: TrueContracts, accounts: list[str], days: TrueDays, usage: list[TrueQuarter]) -> list[Used]:
    """Everything that was used and is sold, by time. Raises TruthError if something has no price."""
    rows: dict[datetime, list[TrueQuarter]] = {}
    for row in usage:
        rows.setdefault(row.begin.astimezone(UTC), []).append(row)
    used: list[Used] = []
    active: set[tuple[str, str, str, date]] = set()
    for moment, local in quarters_of(days):
        for row in rows.get(moment, ()):
            holder = holder_of(contracts, accounts, (row.tenant, row.device), moment)
            if holder is None:
                continue
            account, region = holder
            counted = _counted(row)
            today = (account.id, row.tenant, row.device, local.date())
            # Every record has content, so a quarter without content had no record.
            if row.content_bytes and today not in active:
                active.add(today)
                counted["active day"] = 1
            tariff = contracts.tariff(account.tariff, moment)
            zone = "" if row.zone == WHOLE_DEVICE else row.zone
            for meter, quantity in counted.items():
                # A whole day is in no window.
                window = "" if meter == "active day" else window_at(tariff, local)
                price = price_of(tariff, meter, zone, window) if quantity else None
                if price is not None:
                    of = (account.id, region, row.tenant, row.device)
                    used.append(Used(moment, *of, local.date(), zone, quantity, price, tariff))
    return used


def window_at(tariff: AgreedTariff, local: datetime) -> str:
    """The window of a tariff at a local time; "" if there is none."""
    clock, today, yesterday = local.time(), local.weekday(), (local.weekday() - 1) % 7
    for window in tariff.windows:
        for begin, end in window.hours:
            if begin < end:
                within = today in window.days and begin <= clock < end
            else:
                within = (today in window.days and clock >= begin) or (yesterday in window.days and clock < end)
            if within:
                return window.id
    return ""


def price_of(tariff: AgreedTariff, meter: str, zone: str, window: str) -> AgreedPrice | None:
    """The most specific price: zone and window, zone, any zone and window, any zone; None if the meter is not sold.

    The price of any zone does not apply outside all zones. Raises TruthError if a meter is sold, but not here.
    """
    of_meter = [price for price in tariff.prices if price.meter == meter]
    price = matching(of_meter, zone, window)
    if of_meter and price is None:
        raise TruthError(f"tariff {tariff.id} sells {meter}, and has no price for zone {zone!r}")
    return price


def matching(prices: list[AgreedPrice], zone: str, window: str) -> AgreedPrice | None:
    """The most specific price, the last of several for the same place."""
    by_place = {(price.zone, price.window): price for price in prices}
    places = [(zone, window), (zone, "")]
    if zone:
        places += [(ANY_ZONE, window), (ANY_ZONE, "")]
    return next((by_place[place] for place in places if place in by_place), None)


def holder_of(
    contracts: TrueContracts, accounts: list[str], device: tuple[str, str], moment: datetime
) -> tuple[AgreedAccount, str] | None:
    """The account that has a device at a moment, and the device's region. Raises TruthError for two."""
    found = []
    for name in accounts:
        account = contracts.account(name, moment)
        if account is not None:
            found += [
                (account, one.region)
                for one in account.devices
                if (one.tenant, one.device) == device and one.begin <= moment and (one.end is None or moment < one.end)
            ]
    if len(found) > 1:
        names = " and ".join(account.id for account, _ in found)
        raise TruthError(f"{device[1]} of {device[0]} is in {names} at {moment.isoformat()}")
    return found[0] if found else None


def _counted(row: TrueQuarter) -> dict[str, int]:
    if row.zone == WHOLE_DEVICE:
        return {"event": row.events, "transmitted": row.content_bytes}
    return {
        "distance": row.distance_mm,
        "duration": row.duration_ms,
        "entry": row.entries,
        "inferred entry": row.inferred_entries,
        "crossing": row.crossings,
    }


# Division of a rounded total by largest remainders.


def shared(rounded: int, shares: list[Fraction]) -> list[int]:
    """`rounded` divided in proportion to the exact shares by largest remainders; ties go to the earlier part."""
    given = [int(share) for share in shares]
    order = sorted(range(len(shares)), key=lambda index: (given[index] - shares[index], index))
    left = rounded - sum(given)
    assert 0 <= left <= len(shares), f"{rounded} is not the rounded sum of {shares}"
    for index in order[:left]:
        given[index] += 1
    return given


# Prices, caps and minimum fees as canonical text.


def price_text(price: AgreedPrice, currency: str) -> str:
    """A price in words, for instance `0.45 EUR/km` or `graduated 0.50 to 100, 0.30 EUR/km, pooled by account`."""
    digits = exponent(currency)
    tiers = []
    for tier in price.tiers:
        end = "" if tier.up_to is None else f" to {number_text(tier.up_to)}"
        tiers.append(number_text(tier.unit_amount, digits) + end)
    words = f"{price.tier_mode} {', '.join(tiers)} {currency}/{price.unit}".strip()
    if price.step:
        words += f", in started steps of {number_text(price.step)} {price.unit}"
    if price.allowance:
        words += f", the first {number_text(price.allowance)} {price.unit} free"
    if price.pool == "account":
        words += ", pooled by account"
    if price.pool == "tree":
        words += ", pooled by all accounts"
    if price.pool_id:
        words += f", pool {price.pool_id}"
    if price.span == "year":
        words += ", by year"
    elif price.span != "cycle":
        words += f", for each {price.span}"
    if price.meter == "stay":
        words += ", for each visit"
    return words


SPANS = {"day": "day", "cycle": "period"}


def cap_text(cap: AgreedCap, currency: str) -> str:
    """A cap in words, for instance `at most 5.00 EUR a day for each device (distance)`."""
    whom = {"device": "for each device", "account": "for the account"}[cap.scope]
    meters = ", ".join(sorted(cap.meters)) or "all meters"
    return f"at most {number_text(cap.amount, exponent(currency))} {currency} a {SPANS[cap.span]} {whom} ({meters})"


def number_text(number: Fraction, digits: int = 0) -> str:
    """A decimal number with at least `digits` decimals and no other trailing zeros."""
    exact = Decimal(number.numerator) / Decimal(number.denominator)
    shortest = format(exact.normalize(), "f")
    after_the_point = len(shortest.partition(".")[2])
    return shortest if after_the_point >= digits else f"{exact:.{digits}f}"


BASE_IN_UNIT = {
    "km": 1_000_000,
    "m": 1_000,
    "mi": 1_609_344,
    "h": 3_600_000,
    "min": 60_000,
    "each": 1,
    "GB": 1_000_000_000,
    "MB": 1_000_000,
    "kB": 1_000,
    "day": 1,
}
"""Millimetres, milliseconds, bytes or things in a unit that prices are for."""


class TrueKey(NamedTuple):
    """What a charge is for; unique for a payer. "" stands for none."""

    account: str
    region: str = ""
    tenant: str = ""
    device: str = ""
    kind: str = "usage"
    meter: str = ""
    zone: str = ""
    window: str = ""
    price: str = ""


class TrueCharge(NamedTuple):
    """An amount. `quantity` in millimetres, milliseconds, bytes or things; `free`: the part of it without a price."""

    about: TrueKey
    quantity: int
    free: int
    amount_minor: int


Worth = Callable[[str], Fraction]
"""Minor units of the payer's currency for one unit of a tariff's."""


def usage_charges(used: list[Used], worth: Worth, earlier: Sequence[Used] = ()) -> list[TrueCharge]:
    """One charge for each account, device, zone, window and price. Each pool is rounded once and then divided.

    `earlier`: used in the contract year before the period. It has the first units of pools of a year.
    """
    pools: dict[tuple[object, ...], tuple[list[Used], list[Used]]] = {}
    for part, ones in enumerate((earlier, used)):
        for one in ones:
            price = one.price
            owner = ("", "", "") if price.pool == "tree" else (one.account, "", "")
            owner = (one.account, one.tenant, one.device) if price.pool == "device" else owner
            time = one.day if price.span == "day" else None
            parts = pools.setdefault((*owner, time, price.meter, *_purpose(price)), ([], []))
            if part or price.span == "year":
                parts[part].append(one)
    charges: dict[TrueKey, list[int]] = {}
    for before, pool in pools.values():
        for about, numbers in _pool_charges(before, pool, worth).items():
            charges[about] = [sum(pair) for pair in zip(charges.get(about, [0, 0, 0]), numbers, strict=True)]
    return [TrueCharge(about, *numbers) for about, numbers in charges.items()]


def _purpose(price: AgreedPrice) -> tuple[str, ...]:
    """What a pool is for, besides its meter and owner. Prices with the same pool id share it."""
    return (price.pool, price.pool_id) if price.pool_id else (price.pool, price.zone, price.window)


def _pool_charges(before: list[Used], pool: list[Used], worth: Worth) -> dict[TrueKey, tuple[int, int, int]]:
    """Quantity, free quantity and amount of each charge of a pool.

    Usage before a price change comes first, and that `before` the period before all. Usage at the same prices is one
    mixture, whose parts are all alike.
    """

    def prices(one: Used) -> tuple[str, ...]:
        same = [other for other in one.tariff.prices if other.meter == one.price.meter]
        return one.tariff.currency, *sorted(map(str, (of for of in same if _purpose(of) == _purpose(one.price))))

    times: list[list[Used]] = []
    for part in (before, pool):
        times += [list(group) for _, group in groupby(sorted(part, key=lambda one: one.moment), key=prices)]
    earlier = sum(one.quantity for one in before)
    quantity_of = [Fraction(sum(one.quantity for one in time)) for time in times]
    free_of: list[Fraction] = []
    for time, quantity in zip(times, quantity_of, strict=True):
        granted = time[0].price.allowance * BASE_IN_UNIT[time[0].price.unit]
        free_of.append(min(quantity, max(Fraction(0), granted - sum(free_of))))
    everything = sum(quantity_of) - sum(free_of)
    quantities: dict[TrueKey, int] = {}
    frees: dict[TrueKey, Fraction] = {}
    costs: dict[TrueKey, Fraction] = {}
    paid = posted = posted_free = seen = Fraction(0)
    for time, quantity, free in zip(times, quantity_of, free_of, strict=True):
        reached = paid + quantity - free
        in_period, seen = seen >= earlier, seen + quantity
        alike: dict[tuple[TrueKey, AgreedPrice, str], int] = {}
        for one in time:
            where = (one.price.meter, one.zone, one.price.window)
            place = TrueKey(one.account, one.region, one.tenant, one.device, "usage", *where)
            of = place, one.price, one.tariff.currency
            alike[of] = alike.get(of, 0) + one.quantity
        for (place, price, currency), used in alike.items():
            about = place._replace(price=price_text(price, currency))
            unit = Fraction(BASE_IN_UNIT[price.unit])
            first, last, most = (started(price, units / unit) for units in (paid, reached, everything))
            cost = between(price, first, last, most) * worth(currency)
            if not in_period:
                posted, posted_free = posted + cost * used / quantity, posted_free + free * used / quantity
                continue
            quantities[about] = quantities.get(about, 0) + used
            frees[about] = frees.get(about, Fraction(0)) + free * used / quantity
            costs[about] = costs.get(about, Fraction(0)) + cost * used / quantity
        paid = reached
    abouts = sorted(quantities)
    exact = [costs[about] for about in abouts], [frees[about] for about in abouts]
    amounts = shared(half_up(posted + sum(exact[0])) - half_up(posted), exact[0])
    free_parts = shared(int(posted_free + sum(exact[1])) - int(posted_free), exact[1])
    rows = zip(abouts, free_parts, amounts, strict=True)
    return {about: (quantities[about], free, amount) for about, free, amount in rows}


def started(price: AgreedPrice, units: Fraction) -> Fraction:
    """So many units in whole steps, if the price has steps."""
    return price.step * math.ceil(units / price.step) if price.step else units


def between(price: AgreedPrice, first: Fraction, last: Fraction, everything: Fraction) -> Fraction:
    """The cost of the units of a pool from `first` to `last`, where `everything` is paid for."""
    if price.tier_mode == "volume":
        return tiered(price, everything) / everything * (last - first) if everything else Fraction(0)
    return tiered(price, last) - tiered(price, first)


def tiered(price: AgreedPrice, units: Fraction) -> Fraction:
    """The cost of so many units. Raises TruthError above the last tier."""
    if price.tier_mode == "volume":
        for tier in price.tiers:
            if tier.up_to is None or units <= tier.up_to:
                return units * tier.unit_amount
        raise TruthError(f"{price.meter}: {units} units are above the last tier")
    cost, below = Fraction(0), Fraction(0)
    for tier in price.tiers:
        top = units if tier.up_to is None else min(units, tier.up_to)
        cost += max(Fraction(0), top - below) * tier.unit_amount
        below = max(below, top)
    if below < units:
        raise TruthError(f"{price.meter}: {units} units are above the last tier")
    return cost


def daily_caps(used: list[Used], charges: list[TrueCharge], caps_on: "CapsOn", worth: Worth) -> list[TrueCharge]:
    """What is above daily caps, summed over the period and rounded once for each device or account.

    If the cap was in force on all days, the rest is at most the sum of the days' caps, also after rounding.
    """
    found = []
    for whole, days in _days_under_caps(used, caps_on, worth).items():
        cap = AgreedCap(
            "account" if not whole.device else "device",
            "day",
            Fraction(0),
            tuple(whole.price.split(", ")) if whole.price else (),
        )
        charged = sum(charge.amount_minor for charge in charges if _is_under(cap, whole, charge.about))
        above: dict[str, Fraction] = {}
        for day in days.values():
            above[day.text] = above.get(day.text, Fraction(0)) + max(Fraction(0), day.charged - day.most)
        over = sum(above.values(), Fraction(0))
        taken = half_up(over)
        if all(_has(cap, caps_on[one.account, one.day]) for one in used if one.account == whole.account):
            taken = max(taken, charged - half_up(sum((day.most for day in days.values()), Fraction(0))))
        taken = min(taken, charged)
        if taken:
            texts = sorted(above)
            weights = [above[text] / over if over else Fraction(text == texts[-1]) for text in texts]
            parts = shared(taken, [taken * weight for weight in weights])
            pairs = zip(texts, parts, strict=True)
            found += [TrueCharge(whole._replace(price=text), 0, 0, -part) for text, part in pairs if part]
    return found


CapsOn = dict[tuple[str, date], AgreedTariff]
"""For each account and local day a tariff version with the caps that are in force for most of the day."""


def caps_on_days(contracts: TrueContracts, accounts: list[str], days: TrueDays) -> CapsOn:
    """Of caps that are in force for equally long, the later ones. Versions with the same caps count as one."""
    quarters: dict[tuple[str, date], dict[object, int]] = {}
    found: CapsOn = {}
    for name in accounts:
        for moment, local in quarters_of(days):
            account = contracts.account(name, moment)
            if account is not None:
                try:
                    tariff = contracts.tariff(account.tariff, moment)
                except TruthError:
                    continue
                counts = quarters.setdefault((name, local.date()), {})
                counts[tariff.currency, tariff.caps] = counts.get((tariff.currency, tariff.caps), 0) + 1
                if counts[tariff.currency, tariff.caps] >= max(counts.values()):
                    found[name, local.date()] = tariff
    return found


def _days_under_caps(used: list[Used], caps_on: CapsOn, worth: Worth) -> dict[TrueKey, dict[date, "_CappedDay"]]:
    """The days under each cap. A cap is the same if only its amount changes; the key has its meters instead of a
    price.
    """
    regions = first_regions(used)
    found: dict[TrueKey, dict[date, _CappedDay]] = {}
    for one in used:
        tariff = caps_on[one.account, one.day]
        for cap in _caps_of(tariff, "day"):
            if not cap.meters or one.price.meter in cap.meters:
                if one.minor is None and (len(one.price.tiers) > 1 or one.price.allowance or one.price.step):
                    raise TruthError(f"tariff {one.tariff.id}: a daily cap on tiers, steps or an allowance")
                region = regions[one.account, one.tenant, one.device]
                about = _capped(cap, TrueKey(one.account, region, one.tenant, one.device), tariff.currency)
                days = found.setdefault(about._replace(price=", ".join(sorted(cap.meters))), {})
                amount = one.price.tiers[0].unit_amount * one.quantity / BASE_IN_UNIT[one.price.unit]
                amount *= worth(one.tariff.currency)
                day = days.setdefault(one.day, _CappedDay(about.price, cap.amount * worth(tariff.currency)))
                day.charged += amount if one.minor is None else one.minor
    return found


class _CappedDay:
    """The charges of a day under a cap."""

    def __init__(self, text: str, most: Fraction) -> None:
        self.text, self.most, self.charged = text, most, Fraction(0)


def _has(cap: AgreedCap, tariff: AgreedTariff) -> bool:
    """Whether a tariff has this cap, with any amount."""
    return any(
        (one.scope, one.span, sorted(one.meters)) == (cap.scope, cap.span, sorted(cap.meters)) for one in tariff.caps
    )


def _caps_of(tariff: AgreedTariff, span: str) -> list[AgreedCap]:
    """The caps by day or cycle. Raises TruthError if two caps have a meter in common, because their order would
    matter.
    """
    caps = [cap for cap in tariff.caps if cap.span == span]
    for one, other in combinations(caps, 2):
        if not one.meters or not other.meters or set(one.meters) & set(other.meters):
            raise TruthError(f"tariff {tariff.id}: two caps by {span} for the same meter; the truth knows one")
    return caps


def _capped(cap: AgreedCap, charge: TrueKey, currency: str) -> TrueKey:
    """The key of a cap's charge: the device or account, and the meter if the cap has only one."""
    meter = cap.meters[0] if len(cap.meters) == 1 else ""
    kind, text = "cap", cap_text(cap, currency)
    if cap.scope == "account":
        return TrueKey(charge.account, kind=kind, meter=meter, price=text)
    return TrueKey(charge.account, charge.region, charge.tenant, charge.device, kind, meter, price=text)


def first_regions(used: list[Used]) -> dict[tuple[str, str, str], str]:
    """The region of each account's device; the first by name if it was in two."""
    regions: dict[tuple[str, str, str], str] = {}
    for one in used:
        key = (one.account, one.tenant, one.device)
        regions[key] = min(one.region, regions.get(key, one.region))
    return regions


def _is_under(cap: AgreedCap, about: TrueKey, charge: TrueKey) -> bool:
    whose = cap.scope == "account" or (charge.tenant, charge.device) == (about.tenant, about.device)
    return whose and charge.account == about.account and (not cap.meters or charge.meter in cap.meters)


def period_caps(tariff: AgreedTariff, used: list[Used], own: list[TrueCharge], worth: Worth) -> list[TrueCharge]:
    """The caps of the period, by the tariff in force at its end, on rounded amounts."""
    regions = first_regions(used)
    added: list[TrueCharge] = []
    for cap in _caps_of(tariff, "cycle"):
        most = half_up(cap.amount * worth(tariff.currency))
        sums: dict[TrueKey, int] = {}
        for charge in own:
            if not cap.meters or charge.about.meter in cap.meters:
                account, region, tenant, device = charge.about[:4]
                region = regions.get((account, tenant, device), region)
                about = _capped(cap, TrueKey(account, region, tenant, device), tariff.currency)
                sums[about] = sums.get(about, 0) + charge.amount_minor
        added += [TrueCharge(about, 0, 0, most - amount) for about, amount in sums.items() if amount > most]
    return added
