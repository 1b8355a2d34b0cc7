"""What each visit, stay, passage and driven day costs. Pure, and independent of the order of facts.

Each fact has an amount of its own, rounded once. It is paid for by the account that has the device at its moment, by
the tariff version and on the local day of that moment, and in the window of the moment of entering or crossing.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from functools import lru_cache
from typing import Final, NamedTuple

from cloud_jobs.billing.billing_period import BillingPeriod, zone_of
from cloud_jobs.billing.contracts import AccountContract, Assigned, Dearest, PayerContract, TariffSpan, Window
from cloud_jobs.billing.contracts.attributes import Attributes
from cloud_jobs.billing.contracts.published import micros, moment_of
from cloud_jobs.billing.contracts.windows import MINUTES_OF_A_DAY
from cloud_jobs.billing.errors import BillingError
from cloud_jobs.billing.rating.cells_of_usage import QUARTER_US, Slot, local_times
from cloud_jobs.billing.rating.facts import Facts, Passage, Visit
from cloud_jobs.billing.rating.pools import MissingFactor, Place, PriceBook, RatedPrice
from cloud_jobs.billing.rating.terms import said
from cloud_jobs.billing.units import Meter
from cloud_jobs.lake.coverage import TenantDevice
from geo.reference.moments import stamp

NO_FACTS: Final = Facts()
MINUTE_US: Final = 60_000_000
_QUARTER_MINUTES: Final = 15


class PricedFact(NamedTuple):
    """A visit or passage, or the part of a visit that an account pays for, and what it costs.

    `text`: all terms of the price. `moment_us`: when it is charged, on the local day `day`. `free`: of the quantity;
    all of it if another fact is charged instead. `minor`: in the payer's currency, rounded.
    """

    meter: Meter
    place: Place
    text: str
    tax: str
    version: int
    day: date
    moment_us: int
    quantity: int
    free: int
    minor: int
    fact: Visit | Passage


def priced_facts(
    contract: PayerContract, books: Mapping[str, PriceBook], facts: Facts
) -> Iterator[tuple[str, list[PricedFact]]]:
    """The facts of each account of a payer that has prices of facts, in order of device and time. Raises BillingError.

    `books`: by account. Facts of other devices, duplicates, and facts that are not charged in the period are ignored.
    """
    selling = [terms for terms in contract.accounts if terms.sells_facts]
    if not selling:
        return
    of_device = _by_device(facts)
    for terms in selling:
        book = books[terms.id]
        timeline = _timeline(book, contract.period, tuple(span.begin_us for span in terms.spans))
        pricing = _Pricing(terms, book, timeline)
        devices = sorted(of_device.keys() & pricing.held.keys())
        yield terms.id, [one for device in devices for one in pricing.of(device, of_device[device])]


@dataclass(slots=True)
class _DeviceFacts:
    """The facts of one device: visits (and whether they are open), passages, and quarters of an hour."""

    visits: set[tuple[Visit, bool]] = field(default_factory=set)
    passages: set[Passage] = field(default_factory=set)
    driven: Iterable[int] = ()


def _by_device(facts: Facts) -> dict[TenantDevice, _DeviceFacts]:
    found = defaultdict[TenantDevice, _DeviceFacts](_DeviceFacts)
    for visits, is_open in ((facts.visits, False), (facts.open, True)):
        for visit in visits:
            found[TenantDevice(visit.tenant, visit.device)].visits.add((visit, is_open))
    for passage in facts.passages:
        found[TenantDevice(passage.tenant, passage.device)].passages.add(passage)
    for device, quarters in facts.driven.items():
        if device in found:
            found[device].driven = quarters
    return dict(found)


# Local day, window and tariff version of each moment of a period, by the minute.


class Timeline:
    """The slots of a period: `slots[i]` is in force from `begins[i]` until the next one begins.

    `spans`: of the tariff versions.
    """

    def __init__(self, period: BillingPeriod, spans: Sequence[TariffSpan]) -> None:
        self.begins: list[int] = []
        self.slots: list[Slot] = []
        self._zone, self._spans = zone_of(period.time_zone), spans
        self.start_us, self.end_us = micros(period.start), micros(period.end)
        since, first = [span.begin_us for span in spans], self.start_us // QUARTER_US
        local = local_times(period.time_zone, first, self.end_us // QUARTER_US - first)
        edges = [_edges(span.tariff.windows) for span in spans]
        for number, (day, minute) in enumerate(zip(local.day.tolist(), local.minute.tolist(), strict=True), first):
            version = max(0, bisect_right(since, number * QUARTER_US) - 1)
            within = edges[version]
            inside = within[bisect_right(within, minute) : bisect_left(within, minute + _QUARTER_MINUTES)]
            for at in (minute, *inside):
                begin = number * QUARTER_US + (at - minute) * MINUTE_US
                slot = Slot(date.fromordinal(day), self.window(version, begin), version)
                if not self.slots or self.slots[-1] != slot:
                    self.begins.append(begin)
                    self.slots.append(slot)

    def window(self, version: int, moment_us: int) -> str:
        """The window of a moment, also outside the period."""
        return self._spans[version].window_at(moment_of(moment_us).astimezone(self._zone))

    def holds(self, moment_us: int) -> bool:
        return self.start_us <= moment_us < self.end_us

    def at(self, moment_us: int) -> Slot:
        return self.slots[bisect_right(self.begins, moment_us) - 1]

    def within(self, begin_us: int, end_us: int) -> Iterator[tuple[int, int, Slot]]:
        """The parts of a time inside the period that have one slot each."""
        begin_us, end_us = max(begin_us, self.start_us), min(end_us, self.end_us)
        for number in range(max(0, bisect_right(self.begins, begin_us) - 1), len(self.begins)):
            until = self.begins[number + 1] if number + 1 < len(self.begins) else self.end_us
            if self.begins[number] >= end_us:
                return
            yield max(begin_us, self.begins[number]), min(end_us, until), self.slots[number]


def _edges(windows: Iterable[Window]) -> list[int]:
    """The minutes of the day at which a window begins or ends."""
    ends = {at for window in windows for begin, length in window.spans for at in (begin, begin + length)}
    return sorted(at % MINUTES_OF_A_DAY for at in ends)


@lru_cache(maxsize=64)
def _timeline(book: PriceBook, period: BillingPeriod, begins: tuple[int, ...]) -> Timeline:
    """Many accounts have the same versions."""
    return Timeline(period, [span._replace(begin_us=at) for span, at in zip(book.spans, begins, strict=True)])


# The price of each fact of an account.


class _Pricing:
    """`held`: the times in which the account has each device."""

    def __init__(self, terms: AccountContract, book: PriceBook, timeline: Timeline) -> None:
        self._book, self._timeline, self._account = book, timeline, terms.id
        self.held = defaultdict[TenantDevice, list[tuple[int, int]]](list)
        for one in terms.held:
            self.held[TenantDevice(one.tenant, one.device)].append((one.begin_us, one.end_us))
        self._assigned = defaultdict[TenantDevice, list[Assigned]](list)
        for each in terms.assigned:
            self._assigned[each.of_device].append(each)
        self._pairs = {price.after for tariff in book.tariffs for price in tariff.prices if price.after}

    def of(self, device: TenantDevice, facts: _DeviceFacts) -> list[PricedFact]:
        visits = sorted(facts.visits)
        made = [*self._visits(device, visits), *self._passages(device, sorted(facts.passages, key=_crossed))]
        made += self._driven_days(device, visits, facts.driven)
        made.sort(key=lambda one: (one.moment_us, one.meter, one.place, one.text, one.fact[3:]))
        return self._only_dearest(made)

    def _holding(self, device: TenantDevice, moment_us: int) -> tuple[int, int] | None:
        return next((one for one in self.held[device] if one[0] <= moment_us < one[1]), None)

    def _price(
        self, meter: Meter, slot: Slot, moment_us: int, fact: Visit | Passage, passed: tuple[str, str] = ("", "")
    ) -> RatedPrice | None:
        """None: the meter is not sold."""
        price = self._look_up(meter, slot, moment_us, fact, passed)
        if price is None and self._book.sells(slot.version, meter):
            used, attributes = (
                f"{fact.device!r} was at {stamp(moment_of(moment_us))}",
                self._attributes(fact, moment_us),
            )
            raise self._book.gap(slot.version, meter, _place(fact), slot.window, used=used, attributes=attributes)
        return price

    def _look_up(
        self, meter: Meter, slot: Slot, moment_us: int, fact: Visit | Passage, passed: tuple[str, str]
    ) -> RatedPrice | None:
        attributes = self._attributes(fact, moment_us)
        try:
            return self._book.price(slot.version, meter, _place(fact), slot.window, attributes, passed=passed)
        except MissingFactor as error:
            raise BillingError(f"device {fact.device!r} of account {self._account!r}: {error}") from None

    def _attributes(self, fact: Visit | Passage, moment_us: int) -> Attributes:
        """Those of a moment; before the period, the first ones in it."""
        assigned = self._assigned[TenantDevice(fact.tenant, fact.device)]
        first = assigned[0].attributes if assigned else ()
        return next((one.attributes for one in reversed(assigned) if one.begin_us <= moment_us), first)

    def _priced(
        self, price: RatedPrice, slot: Slot, moment_us: int, quantity: int, fact: Visit | Passage
    ) -> PricedFact:
        zone = _place(fact)
        device, day = TenantDevice(fact.tenant, fact.device), slot.day
        assert day is not None
        holder = next(one for one in self._assigned[device] if one.begin_us <= moment_us < one.end_us)
        place, text = Place(holder.account, holder.region, *device, zone, price.window), price.text
        rule = self._dearest(slot.version, price.price.meter, zone)
        if rule is not None:
            text += said("dearest", minutes=rule.minutes)
        amounts = quantity, price.free_of(quantity), _fact_minor(price, quantity)
        return PricedFact(price.price.meter, place, text, price.tax, slot.version, day, moment_us, *amounts, fact)

    def _visits(self, device: TenantDevice, visits: Iterable[tuple[Visit, bool]]) -> Iterator[PricedFact]:
        timeline = self._timeline
        for visit, is_open in visits:
            entered = visit.begin_us
            if visit.entered and timeline.holds(entered) and self._holding(device, entered):
                slot = timeline.at(entered)
                price = self._price(Meter.VISIT, slot, entered, visit)
                if price is not None:
                    yield self._priced(price, slot, entered, 1, visit)
            for begin, end in self.held[device]:
                # a change of account ends the stay in the first account
                is_cut = is_open or not begin <= visit.charged_us < end
                moment = end - 1 if is_cut else visit.charged_us
                since, until = max(begin, visit.begin_us), min(end, visit.end_us)
                if since < until and timeline.holds(moment):
                    slot = timeline.at(moment)
                    slot = slot._replace(window=timeline.window(slot.version, since))
                    price = self._price(Meter.STAY, slot, since, visit)
                    if price is not None:
                        yield self._priced(price, slot, moment, (until - since) // 1_000, visit)

    def _passages(self, device: TenantDevice, passages: Sequence[Passage]) -> Iterator[PricedFact]:
        for number, passage in enumerate(passages):
            moment, held = passage.moment_us, self._holding(device, passage.moment_us)
            if held is None or not self._timeline.holds(moment):
                continue
            slot, price, before = self._of_passage(passages, number, held)
            if price is None:
                continue
            made = self._priced(price, slot, moment, 1, passage)
            if before and before.moment_us < self._timeline.start_us:
                # what the first of the pair cost is on an earlier document
                _, alone, pair = self._of_passage(passages, number - 1, held)
                paid = alone.fact_minor(1) if alone is not None and pair is None else 0
                made = made._replace(minor=max(0, made.minor - paid))
            follows = number + 1 < len(passages) and passages[number + 1].moment_us < held[1]
            if before is None and follows and self._of_passage(passages, number + 1, held)[2]:
                made = made._replace(free=1, minor=0)
            yield made

    def _of_passage(
        self, passages: Sequence[Passage], number: int, held: tuple[int, int]
    ) -> tuple[Slot, RatedPrice | None, Passage | None]:
        """The price of a passage, and the one before if it is the price of both."""
        passage, before, moment = passages[number], passages[number - 1] if number else None, passages[number].moment_us
        slot = self._timeline.at(moment) if self._timeline.holds(moment) else Slot(None, "", 0)
        if slot.day is None:
            slot = slot._replace(window=self._timeline.window(0, moment))
        direction = "forward" if passage.forward else "backward"
        if before and before.gate in self._pairs and held[0] <= before.moment_us:
            price = self._look_up(Meter.PASSAGE, slot, moment, passage, (direction, before.gate))
            within = price.price.within if price is not None else None
            if within is not None and moment - before.moment_us <= within * MINUTE_US:
                return slot, price, before
        return slot, self._price(Meter.PASSAGE, slot, moment, passage, (direction, "")), None

    def _driven_days(
        self, device: TenantDevice, visits: Iterable[tuple[Visit, bool]], quarters: Iterable[int]
    ) -> Iterator[PricedFact]:
        """Each local day, zone and window of a price once, at the first moment in which the device drove."""
        if not any(Meter.DRIVEN_DAY in tariff.sold for tariff in self._book.tariffs):
            return
        driven, found = sorted({int(one) for one in quarters}), list[tuple[int, Slot, Visit]]()
        for visit, _ in visits:
            for held in self.held[device]:
                times = max(held[0], visit.begin_us), min(held[1], visit.end_us)
                for begin, end, slot in self._timeline.within(*times):
                    at = bisect_left(driven, begin // QUARTER_US)
                    moment = max(begin, driven[at] * QUARTER_US) if at < len(driven) else end
                    if moment < end:
                        found.append((moment, slot, visit))
        charged = set[tuple[str, date | None, str]]()
        for moment, slot, visit in sorted(found):
            price = self._price(Meter.DRIVEN_DAY, slot, moment, visit)
            key = visit.zone, slot.day, price.price.window if price is not None else ""
            if price is not None and key not in charged:
                charged.add(key)
                yield self._priced(price, slot, moment, 1, visit)

    def _dearest(self, version: int, meter: Meter, zone: str) -> Dearest | None:
        rules = self._book.tariffs[version].dearest
        return next((rule for rule in rules if rule.covers(meter, zone)), None) if rules else None

    def _only_dearest(self, facts: list[PricedFact]) -> list[PricedFact]:
        """Of the facts within the time of a rule only the dearest costs something; of equal ones, the first."""
        found, first, dearest = list[PricedFact](), dict[Dearest, int](), dict[Dearest, int]()
        for fact in facts:
            rule = self._dearest(fact.version, fact.meter, fact.place.zone)
            found.append(fact)
            if rule is None or not fact.minor:
                continue
            if rule not in first or fact.moment_us - first[rule] > rule.minutes * MINUTE_US:
                first[rule], dearest[rule] = fact.moment_us, len(found) - 1
                continue
            cheaper = len(found) - 1
            if fact.minor > found[dearest[rule]].minor:
                cheaper, dearest[rule] = dearest[rule], cheaper
            found[cheaper] = found[cheaper]._replace(free=found[cheaper].quantity, minor=0)
        return found


@lru_cache(maxsize=4096)
def _fact_minor(price: RatedPrice, quantity: int) -> int:
    """Nearly all visits and passages are one unit of few prices."""
    return price.fact_minor(quantity)


def _place(fact: Visit | Passage) -> str:
    return fact.zone if isinstance(fact, Visit) else fact.gate


def _crossed(passage: Passage) -> tuple[int, str, bool, str]:
    return passage.moment_us, passage.gate, passage.forward, passage.id
