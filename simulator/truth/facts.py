"""Visits of zones and passages of gates, each with its own amount, rounded once."""

import math
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from itertools import groupby
from typing import NamedTuple
from zoneinfo import ZoneInfo

from simulator.truth.charging import (
    BASE_IN_UNIT,
    TrueCharge,
    TrueKey,
    Used,
    Worth,
    holder_of,
    matching,
    price_of,
    price_text,
    tiered,
    window_at,
)
from simulator.truth.contracts import (
    QUARTER,
    WHOLE_DEVICE,
    AgreedPrice,
    AgreedTariff,
    TrueContracts,
    TrueDays,
    TrueQuarter,
    half_up,
    quarters_of,
)
from simulator.truth.shapes import TruthError


class TrueVisit(NamedTuple):
    """A stay of a device in a zone; it has not ended if `end` is None."""

    tenant: str
    device: str
    zone: str
    begin: datetime
    end: datetime | None


class TruePassage(NamedTuple):
    """A device passed a gate."""

    tenant: str
    device: str
    gate: str
    moment: datetime
    direction: str


class TrueFacts(NamedTuple):
    """All visits and passages of the devices, also of other periods."""

    visits: tuple[TrueVisit, ...] = ()
    passages: tuple[TruePassage, ...] = ()


NO_FACTS = TrueFacts()


Holder = tuple[str, str, AgreedTariff]
"""Account, region of the device, and tariff."""


class Agreed(NamedTuple):
    """The contracts of a payer for a period."""

    contracts: TrueContracts
    accounts: list[str]
    days: TrueDays
    worth: Worth

    @property
    def begin(self) -> datetime:
        return quarters_of(self.days)[0][0]

    @property
    def end(self) -> datetime:
        return quarters_of(self.days)[-1][0] + QUARTER

    def local(self, moment: datetime) -> datetime:
        return moment.astimezone(ZoneInfo(self.days.time_zone))

    def covers(self, moment: datetime) -> bool:
        return self.begin <= moment < self.end

    def holder(self, device: tuple[str, str], moment: datetime) -> Holder | None:
        found = holder_of(self.contracts, self.accounts, device, moment)
        return found and (found[0].id, found[1], self.contracts.tariff(found[0].tariff, moment))


def facts_used(agreed: Agreed, usage: list[TrueQuarter], facts: TrueFacts) -> list[Used]:
    """Everything that a period charges for facts. Raises TruthError if something has no price."""
    found: list[Used] = []
    for visit in facts.visits:
        found += _entered(agreed, visit)
        found += _stays(agreed, visit)
    found += _driven_days(agreed, facts.visits, usage)
    found += _passages(agreed, facts.passages)
    return _dearest(found)


def _used(
    agreed: Agreed,
    moment: datetime,
    holder: Holder,
    of: tuple[str, str, str],
    *,
    price: AgreedPrice,
    exact: Fraction | None = None,
    quantity: int = 1,
    free: int = 0,
) -> Used:
    """`of`: tenant, device and zone. `exact`: in the tariff's currency; None: the price's amount."""
    account, region, tariff = holder
    amount = price.tiers[0].unit_amount if exact is None else exact
    minor, day = half_up(amount * agreed.worth(tariff.currency)), agreed.local(moment).date()
    tenant, device, zone = of
    return Used(moment, account, region, tenant, device, day, zone, quantity, price, tariff, free, minor)


def _entered(agreed: Agreed, visit: TrueVisit) -> list[Used]:
    holder = agreed.holder((visit.tenant, visit.device), visit.begin)
    if holder is None or not agreed.covers(visit.begin):
        return []
    price = price_of(holder[2], "visit", visit.zone, window_at(holder[2], agreed.local(visit.begin)))
    return [] if price is None else [_used(agreed, visit.begin, holder, visit[:3], price=price)]


def _stays(agreed: Agreed, visit: TrueVisit) -> list[Used]:
    """The parts of a visit that end in the period: at its end, or where the account changes."""
    device = visit.tenant, visit.device
    changes = {
        moment
        for account in agreed.contracts.accounts.values()
        for one in account.devices
        for moment in (account.effective_from, account.effective_until, one.begin, one.end)
        if moment is not None and visit.begin < moment and (visit.end is None or moment <= visit.end)
    }
    found, since = [], visit.begin
    instant = timedelta(microseconds=1)
    for moment in sorted({*changes, *([] if visit.end is None else [visit.end])}):
        before, after = agreed.holder(device, moment - instant), agreed.holder(device, moment)
        moved = (before and before[0]) != (after and after[0])
        if moment != visit.end and not moved:
            continue
        # A period does not contain its end; a change of account ends a stay with the last moment before it.
        ended, holder = (moment - instant, before) if moved else (moment, after)
        if holder is not None and agreed.covers(ended):
            tariff = holder[2]
            price = price_of(tariff, "stay", visit.zone, window_at(tariff, agreed.local(visit.begin)))
            if price is not None:
                lasted = (moment - since) // timedelta(milliseconds=1)
                free, exact = _stay(price, lasted)
                of = *device, visit.zone
                found.append(_used(agreed, ended, holder, of, quantity=lasted, price=price, free=free, exact=exact))
        since = moment
    return found


def _stay(price: AgreedPrice, lasted_ms: int) -> tuple[int, Fraction]:
    """Free time and amount of a stay."""
    unit = 86_400_000 if price.unit == "day" else BASE_IN_UNIT[price.unit]
    units = Fraction(lasted_ms, unit)
    free = min(units, price.allowance)
    paid = units - free
    if price.step and paid:
        paid = (math.ceil(units / price.step) - math.floor(price.allowance / price.step)) * price.step
    exact = tiered(price, paid)
    return int(free * unit), exact if price.most is None else min(exact, price.most)


def _driven_days(agreed: Agreed, visits: Sequence[TrueVisit], usage: list[TrueQuarter]) -> list[Used]:
    """One for each local day, zone and window of a price with a quarter in which the device drove."""
    drove = sorted(
        {
            (one.begin.astimezone(UTC), one.tenant, one.device)
            for one in usage
            if one.distance_mm and one.zone != WHOLE_DEVICE
        }
    )
    found: dict[tuple[object, ...], Used] = {}
    for moment, tenant, device in drove:
        holder = agreed.holder((tenant, device), moment)
        if holder is None or not agreed.covers(moment):
            continue
        tariff, local = holder[2], agreed.local(moment)
        zones = {
            visit.zone
            for visit in visits
            if (visit.tenant, visit.device) == (tenant, device)
            and visit.begin < moment + QUARTER
            and (visit.end is None or visit.end > moment)
        }
        for zone in sorted(zones):
            price = price_of(tariff, "driven day", zone, window_at(tariff, local))
            if price is not None:
                key = holder[0], tenant, device, zone, local.date(), price.window
                if key not in found:
                    found[key] = _used(agreed, moment, holder, (tenant, device, zone), price=price)
    return list(found.values())


def _passages(agreed: Agreed, passages: Sequence[TruePassage]) -> list[Used]:
    """Each passage; of a pair the first one is free, or the difference is charged if an earlier document has it."""
    found: list[Used] = []
    by_device = sorted(passages, key=lambda one: (one.tenant, one.device, one.moment))
    for device, group in groupby(by_device, key=lambda one: (one.tenant, one.device)):
        before: tuple[TruePassage, Holder, bool] | None = None
        for one in group:
            holder, paired = agreed.holder(device, one.moment), None
            if holder is not None:
                if before is not None and before[1][0] == holder[0]:
                    paired = _passage_price(agreed, one, holder[2], before[0])
                price = paired or _passage_price(agreed, one, holder[2])
                if price is not None and agreed.covers(one.moment):
                    exact = price.tiers[0].unit_amount
                    # A passage may end one pair and begin the next: it keeps the price of the first pair.
                    alone = paired and before is not None and not before[2]
                    if alone and before is not None and agreed.covers(before[0].moment):
                        found[-1] = found[-1]._replace(free=1, minor=0)
                    elif alone and before is not None:
                        earlier = _passage_price(agreed, before[0], before[1][2])
                        exact -= earlier.tiers[0].unit_amount if earlier else 0
                    found.append(_used(agreed, one.moment, holder, (*device, one.gate), price=price, exact=exact))
            before = None if holder is None else (one, holder, paired is not None)
    return found


def _passage_price(
    agreed: Agreed, one: TruePassage, tariff: AgreedTariff, before: TruePassage | None = None
) -> AgreedPrice | None:
    """The price of a passage alone, or as the second one of a pair."""
    after = "" if before is None else before.gate
    since = timedelta(0) if before is None else one.moment - before.moment
    fitting = [
        price
        for direction in ("", one.direction)
        for price in tariff.prices
        if (price.meter, price.after, price.direction) == ("passage", after, direction)
        and (not after or since <= timedelta(minutes=float(price.within)))
    ]
    price = matching(fitting, one.gate, window_at(tariff, agreed.local(one.moment)))
    if price is None and not after and any(price.meter == "passage" for price in tariff.prices):
        raise TruthError(f"tariff {tariff.id} sells passage, and has no price for gate {one.gate!r}")
    return price


def _dearest(found: list[Used]) -> list[Used]:
    """Of the facts of a device that cost something, within the time from the first, only the dearest costs it."""
    free: set[int] = set()
    rules = {(rule, one.account, one.tenant, one.device) for one in found for rule in one.tariff.dearest}
    for rule, *whose in rules:
        mine = [
            number
            for number, one in enumerate(found)
            if [one.account, one.tenant, one.device] == whose
            and one.minor
            and rule in one.tariff.dearest
            and (not rule.meters or one.price.meter in rule.meters)
            and (not rule.zones or "*" in rule.zones or one.zone in rule.zones)
        ]
        # Of several that cost the same, the first is paid.
        mine.sort(key=lambda number: (found[number].moment, found[number].price.meter, found[number].zone))
        while mine:
            until = found[mine[0]].moment + timedelta(microseconds=int(rule.minutes * 60_000_000))
            together = [number for number in mine if found[number].moment <= until]
            dearest = max(together, key=lambda number: found[number].minor or 0)
            free |= set(together) - {dearest}
            mine = mine[len(together) :]
    return [one._replace(minor=0, free=one.quantity) if number in free else one for number, one in enumerate(found)]


def fact_charges(used: Iterable[Used]) -> list[TrueCharge]:
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
