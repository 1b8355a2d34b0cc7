"""Visits of zones and passages of gates, each with its own amount, rounded once."""

import math
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from itertools import groupby, pairwise
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
from tests.truth.agreed import dearest_of


class TrueVisit(NamedTuple):
    """A stay of a device in a zone; it has not ended if `end` is None.

    `known_until`: the last event of a visit whose end was not seen; its `end` is then the moment of the next entering.
    `is_entered`: the entering was seen; without it `begin` is the first known moment.
    """

    tenant: str
    device: str
    zone: str
    begin: datetime
    end: datetime | None
    known_until: datetime | None = None
    is_entered: bool = True


class TruePassage(NamedTuple):
    """A device passed a gate."""

    tenant: str
    device: str
    gate: str
    moment: datetime
    direction: str


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


class TrueFacts(NamedTuple):
    """All visits and passages of the devices, also of other periods."""

    visits: tuple[TrueVisit, ...] = ()
    passages: tuple[TruePassage, ...] = ()

    def used(
        self,
        contracts: TrueContracts,
        accounts: list[str],
        days: TrueDays,
        worth: Worth,
        usage: list[TrueQuarter],
    ) -> tuple[list[Used], list[TrueCharge]]:
        """Everything that a period charges for them, and the charges. Raises TruthError if something has no price."""
        agreed, found = Agreed(contracts, accounts, days, worth), list[Used]()
        visits = list(_seen(agreed, self.visits))
        for visit in visits:
            found += _entered(agreed, visit)
            found += _stays(agreed, visit)
        found += _driven_days(agreed, visits, usage)
        found += _passages(agreed, self.passages)
        found = _dearest(found)
        return found, _fact_charges(found)


def _seen(agreed: Agreed, visits: Iterable[TrueVisit]) -> Iterator[TrueVisit]:
    """The visits as they are at the period's end: what happens from then on changes nothing."""
    for visit in visits:
        if visit.end is not None and visit.end < agreed.end:
            yield visit
        elif visit.is_entered and visit.begin < agreed.end:
            yield visit._replace(end=None, known_until=None)


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
    if holder is None or not visit.is_entered or not agreed.covers(visit.begin):
        return []
    price = price_of(holder[2], "visit", visit.zone, window_at(holder[2], agreed.local(visit.begin)))
    return [] if price is None else [_used(agreed, visit.begin, holder, visit[:3], price=price)]


def _stays(agreed: Agreed, visit: TrueVisit) -> list[Used]:
    """The stays of a visit that end in the period: at its end, or where an account gives the device away or no longer
    sells stays. A stay is charged when it ends, in parts: each at the price of its time, and of one local day.
    """
    device, instant = (visit.tenant, visit.device), timedelta(microseconds=1)
    until = agreed.end if visit.end is None else visit.end

    def seller(moment: datetime) -> str | None:
        holder = agreed.holder(device, moment)
        return holder[0] if holder and any(price.meter == "stay" for price in holder[2].prices) else None

    found: list[Used] = []
    parts: list[Used] = []
    since, exact = visit.begin, Fraction(0)
    for begin, end in pairwise(sorted({visit.begin, until, *_borders(agreed, visit.begin, until)})):
        holder = agreed.holder(device, begin)
        if holder is None or seller(begin) is None:
            continue
        if not parts:
            since, exact = begin, Fraction(0)
        price = price_of(holder[2], "stay", visit.zone, window_at(holder[2], agreed.local(since)))
        assert price is not None
        known = [max(since, min(one, visit.known_until or one)) for one in (end, begin)]
        (free, cost), (was_free, had_cost) = (_stay(price, one - since) for one in known)
        worth, before = agreed.worth(holder[2].currency), exact
        exact += (cost - had_cost) * worth
        if price.most is not None:
            exact = min(exact, max(before, price.most * worth))
        exact = max(exact, Fraction(0))
        lasted = (known[0] - since) // timedelta(milliseconds=1) - (known[1] - since) // timedelta(milliseconds=1)
        of = _used(agreed, begin, holder, (*device, visit.zone), price=price, quantity=lasted, free=free - was_free)
        parts.append(of._replace(minor=half_up(exact) - half_up(before)))
        moved = seller(end) != seller(begin)
        if moved or end == visit.end:
            # A period does not contain its end; a change of account ends a stay with the last moment before it.
            ended = end - instant if moved else end
            found += [one._replace(moment=ended) for one in parts] if agreed.covers(ended) else []
            parts = []
    return found


def _borders(agreed: Agreed, begin: datetime, end: datetime) -> list[datetime]:
    """The moments between at which terms may change, and local midnights."""
    changes = [
        moment
        for account in agreed.contracts.accounts.values()
        for one in account.devices
        for moment in (account.effective_from, account.effective_until, one.begin, one.end)
    ]
    changes += [tariff.effective_from for tariff in agreed.contracts.tariffs.values()]
    day, last = agreed.local(begin).date(), agreed.local(end).date()
    while day < last:
        day += timedelta(days=1)
        changes.append(datetime(day.year, day.month, day.day, tzinfo=ZoneInfo(agreed.days.time_zone)).astimezone(UTC))
    return [moment for moment in changes if moment is not None and begin < moment < end]


def _stay(price: AgreedPrice, lasted: timedelta) -> tuple[int, Fraction]:
    """Free time and amount of a stay, without its maximum."""
    unit = 86_400_000 if price.unit == "day" else BASE_IN_UNIT[price.unit]
    units = Fraction(lasted // timedelta(milliseconds=1), unit)
    free = min(units, price.allowance)
    paid = units - free
    if price.step and paid:
        paid = (math.ceil(units / price.step) - math.floor(price.allowance / price.step)) * price.step
    return int(free * unit), tiered(price, paid)


def _driven_days(agreed: Agreed, visits: Sequence[TrueVisit], usage: list[TrueQuarter]) -> list[Used]:
    """One for each local day, zone and window of a price with a quarter in which the device drove."""
    drove = sorted(
        {
            (one.begin.astimezone(UTC), one.tenant, one.device)
            for one in usage
            if one.distance_mm and one.zone != WHOLE_DEVICE
        }
    )
    lasted: dict[tuple[str, str], list[TrueVisit]] = {}
    for visit in visits:
        lasted.setdefault((visit.tenant, visit.device), []).append(visit)
    found: dict[tuple[object, ...], Used] = {}
    for moment, tenant, device in drove:
        holder = agreed.holder((tenant, device), moment)
        if holder is None or not agreed.covers(moment):
            continue
        tariff, local = holder[2], agreed.local(moment)
        zones = {
            visit.zone
            for visit in lasted.get((tenant, device), ())
            if max(visit.begin, moment) < min(visit.known_until or visit.end or agreed.end, moment + QUARTER)
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
    rules = {(rule, one.account, one.tenant, one.device) for one in found for rule in dearest_of(one.tariff.dearest)}
    for rule, *whose in rules:
        mine = [
            number
            for number, one in enumerate(found)
            if [one.account, one.tenant, one.device] == whose
            and one.minor
            and rule in dearest_of(one.tariff.dearest)
            and (not rule.meters or one.price.meter in rule.meters)
            and (not rule.zones or "*" in rule.zones or one.zone in rule.zones)
        ]
        # The parts of a stay are one fact. Of several facts that cost the same, the first is paid.
        parts: dict[tuple[datetime, str, str], list[int]] = {}
        for number in mine:
            one = found[number]
            parts.setdefault((one.moment, one.price.meter, one.zone), []).append(number)
        left = sorted(parts)
        while left:
            until = left[0][0] + timedelta(microseconds=int(rule.minutes * 60_000_000))
            together = [of for of in left if of[0] <= until]
            dearest = max(together, key=lambda of: sum(found[number].minor or 0 for number in parts[of]))
            free |= {number for of in together if of != dearest for number in parts[of]}
            left = left[len(together) :]
    return [one._replace(minor=0, free=one.quantity) if number in free else one for number, one in enumerate(found)]


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
