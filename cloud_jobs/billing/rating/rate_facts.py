"""What each visit, stay, passage and driven day costs. Pure, and independent of the order of facts.

Each fact has an amount of its own, rounded once. It is paid for by the account that has the device at its moment, by
the tariff version and on the local day of that moment, and in the window of the moment of entering or crossing. A stay
is charged when it ends, for each part of it by the version in force then, and on the local day of the part if a cap is
by day: a part costs what the stay has cost at its end less what it had cost at its begin, so free time, tiers, steps
and maximum are of the whole stay.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from datetime import date, timedelta
from fractions import Fraction
from functools import lru_cache
from itertools import groupby, pairwise
from typing import Final, NamedTuple, TypeVar

from cloud_jobs.billing.billing_period import BillingPeriod, day_start, zone_of
from cloud_jobs.billing.contracts import AccountContract, Assigned, Dearest, PayerContract, Span, TariffSpan
from cloud_jobs.billing.contracts.published import micros, moment_of
from cloud_jobs.billing.errors import BillingError
from cloud_jobs.billing.rating.cells_of_usage import (
    QUARTER_US,
    Slot,
)
from cloud_jobs.billing.rating.charges import MAX_PARTS
from cloud_jobs.billing.rating.facts import DeviceFacts, Facts, Passage, Visit
from cloud_jobs.billing.rating.pools import MissingFactor, Place, PriceBook, PriceBooks, RatedPrice
from cloud_jobs.billing.rating.terms import said
from cloud_jobs.billing.units import Meter, round_ratio
from cloud_jobs.lake.coverage import TenantDevice
from geo.reference.moments import stamp

MINUTE_US: Final = 60_000_000
_Fact = TypeVar("_Fact", Visit, Passage)


class PricedFact(NamedTuple):
    """A visit or passage, or the part of a visit that an account pays for on a day or by a version, and what it costs.

    `text`: all terms of the price. `moment_us`: when it is charged. `day`: the local day of it, or of the part. `free`:
    of the quantity; all of it if another fact is charged instead. `minor`: in the payer's currency, rounded. `at`: what
    of the fact came before the part.
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
    price: RatedPrice
    at: int = 0


Times = list[tuple[int, int]]
"""Begins and ends in microseconds, ascending."""


def priced_facts(contract: PayerContract, books: PriceBooks, facts: Facts) -> Iterator[tuple[str, list[PricedFact]]]:
    """The facts of each account of a payer that has prices of facts, in order of devices. Raises BillingError.

    Facts of other devices, duplicates, and facts that are not charged in the period are ignored.
    """
    for terms in contract.accounts:
        if terms.sells_facts:
            account = _AccountPricing(terms, books.book(terms.priced, contract), contract.period)
            devices = sorted(facts.keys() & account.held.keys())
            yield terms.id, [one for of in devices for one in _DevicePricing(account, of).priced(facts[of])]


def listed(facts: Iterable[PricedFact]) -> str:
    """`Charge.parts` of the facts of a charge. The parts of a stay are one."""
    said, more, last = list[tuple[int, int, int]](), 0, None
    for one in facts:
        if one.fact is last and not more:
            moment_us, quantity, minor = said[-1]
            said[-1] = moment_us, quantity + one.quantity, minor + one.minor
        elif one.fact is not last:
            last = one.fact
            if len(said) < MAX_PARTS:
                moment_us = one.moment_us if one.meter is Meter.DRIVEN_DAY else one.fact[3]
                said.append((moment_us, one.quantity, one.minor))
            else:
                more += 1
    texts = [f"{_stamped(moment_us)}/{quantity}/{minor}" for moment_us, quantity, minor in said]
    return " ".join([*texts, f"+{more}"] if more else texts)


@lru_cache(maxsize=4096)
def _stamped(moment_us: int) -> str:
    """A visit and its time have the same moments."""
    return stamp(moment_of(moment_us))


# Local day, window and tariff version of each moment of a period, by the minute.


class Timeline:
    """Local day, window and tariff version of each moment, also outside a period. `spans`: of the versions."""

    def __init__(self, period: BillingPeriod, spans: Sequence[TariffSpan]) -> None:
        self._time_zone, self._zone, self._spans = period.time_zone, zone_of(period.time_zone), spans
        self._since = [span.begin_us for span in spans]
        self.start_us, self.end_us = micros(period.start), micros(period.end)
        self._slots: dict[tuple[int, int], Slot] = {}

    def version(self, moment_us: int) -> int:
        return max(0, bisect_right(self._since, moment_us) - 1)

    def holds(self, moment_us: int) -> bool:
        return self.start_us <= moment_us < self.end_us

    def at(self, moment_us: int) -> Slot:
        """The slot of a moment."""
        return self.in_version(self.version(moment_us), moment_us)

    def in_version(self, version: int, moment_us: int) -> Slot:
        """The slot of a moment, with the window that a version has then."""
        of = version, moment_us // MINUTE_US
        found = self._slots.get(of)
        if found is None:
            local, span = moment_of(moment_us).astimezone(self._zone), self._spans[version]
            window = next((one.id for one in span.tariff.windows if one.holds(local, span.calendar)), "")
            found = self._slots[of] = Slot(local.date(), window, version)
        return found

    def midnights(self, begin_us: int, end_us: int) -> Iterator[int]:
        """The begins of the local days after the one of `begin_us`, before `end_us`."""
        day, last = (self.at(at).day or date.max for at in (begin_us, end_us - 1))
        while day < last:
            day += timedelta(days=1)
            yield micros(day_start(self._time_zone, day))


@lru_cache(maxsize=64)
def _timeline(book: PriceBook, period: BillingPeriod, begins: tuple[int, ...]) -> Timeline:
    """Many accounts have the same versions."""
    return Timeline(period, [span._replace(begin_us=at) for span, at in zip(book.spans, begins, strict=True)])


# The price of each fact of a device in an account.


class _AccountPricing:
    """What the devices of an account share. `held`: the times in which it has each device; `assigned`: in the period.

    `staying`: the times in which stays are sold. `by_day`: whether a cap may be for a day of a stay.
    """

    def __init__(self, terms: AccountContract, book: PriceBook, period: BillingPeriod) -> None:
        self.id, self.book = terms.id, book
        self.timeline = _timeline(book, period, tuple(span.begin_us for span in terms.priced))
        self.begins = [span.begin_us for span in terms.priced]
        self.held, self.assigned = (
            defaultdict[TenantDevice, Times](list),
            defaultdict[TenantDevice, list[Assigned]](list),
        )
        for one in terms.held:
            _join(self.held[one.of_device], one.begin_us, one.end_us)
            self.assigned[one.of_device].append(one)
        self.staying = Times()
        for span in terms.priced:
            if Meter.STAY in span.tariff.sold:
                _join(self.staying, span.begin_us, span.end_us)
        caps = (cap for span in terms.spans for cap in span.tariff.caps)
        self.by_day = any(cap.span is Span.DAY and Meter.STAY in cap.all_meters for cap in caps)
        self.gates_before = {price.after for tariff in book.tariffs for price in tariff.prices if price.after}
        self.sold = frozenset[Meter]().union(*(tariff.sold for tariff in book.tariffs))
        self.has_dearest = any(tariff.dearest for tariff in book.tariffs)

    def dearest(self, version: int, meter: Meter, zone: str) -> Dearest | None:
        rules = self.book.tariffs[version].dearest
        return next((rule for rule in rules if rule.covers(meter, zone)), None) if rules else None


def _join(times: Times, begin_us: int, end_us: int) -> None:
    """Adds a time, as one with the time before if it follows on that."""
    joins = times and times[-1][1] == begin_us
    times.append((times.pop()[0] if joins else begin_us, end_us))


class _Sold(NamedTuple):
    """A price, and the first fields of the facts that have it."""

    price: RatedPrice
    fields: tuple[Meter, Place, str, str, int]


_ALONE: Final = ("", "")
"""How a gate is passed, if it does not matter."""


class _DevicePricing:
    """The prices of a device's facts in an account."""

    def __init__(self, account: _AccountPricing, device: TenantDevice) -> None:
        self._account, self._book, self._timeline = account, account.book, account.timeline
        self._held, self._assigned = account.held[device], account.assigned[device]
        self._begins = [one.begin_us for one in self._assigned]
        # most facts of a device have one of few prices
        self._sold: dict[tuple[object, ...], _Sold | None] = {}

    def priced(self, facts: DeviceFacts) -> list[PricedFact]:
        sold, visits = self._account.sold, _distinct(sorted(facts.visits))
        made = self._visits(visits) if Meter.VISIT in sold else []
        made += self._stays(visits) if Meter.STAY in sold else []
        made += self._passages(_distinct(sorted(facts.passages, key=_crossed))) if Meter.PASSAGE in sold else []
        made += self._driven_days(visits, facts.driven) if Meter.DRIVEN_DAY in sold else []
        return self._only_dearest(sorted(made, key=_in_time)) if self._account.has_dearest else made

    def _holding(self, moment_us: int) -> tuple[int, int] | None:
        for held in self._held:
            if held[0] <= moment_us < held[1]:
                return held
        return None

    def _price(
        self,
        meter: Meter,
        slot: Slot,
        times: tuple[int, int],
        fact: Visit | Passage,
        passed: tuple[str, str] = _ALONE,
    ) -> _Sold | None:
        """None: the meter is not sold, or not after a gate. `times`: of the attributes, and of the charge."""
        begins = self._begins
        at = (bisect_right(begins, times[0]), bisect_right(begins, times[1])) if len(begins) > 1 else _ALONE
        of = meter, slot.version, slot.window, fact[2], at, passed
        if of not in self._sold:
            self._sold[of] = self._look_up(meter, slot, times, fact, passed)
        return self._sold[of]

    def _look_up(
        self, meter: Meter, slot: Slot, times: tuple[int, int], fact: Visit | Passage, passed: tuple[str, str]
    ) -> _Sold | None:
        version, zone = slot.version, fact[2]
        # before it was assigned, the attributes are the first ones
        named, holder = (self._assigned[max(0, bisect_right(self._begins, at) - 1)] for at in times)
        try:
            price = self._book.price(version, meter, zone, slot.window, named.attributes, passed=passed)
        except MissingFactor as error:
            raise BillingError(f"device {fact.device!r} of account {self._account.id!r}: {error}") from None
        if price is None:
            if self._book.sells(version, meter) and not passed[1]:
                used = f"{fact.device!r} was at {stamp(moment_of(times[0]))}"
                raise self._book.gap(version, meter, zone, slot.window, used=used, attributes=named.attributes)
            return None
        rule = self._account.dearest(version, meter, zone)
        text = price.text + (said("dearest", minutes=rule.minutes) if rule else "")
        place = Place(holder.account, holder.region, fact.tenant, fact.device, zone, price.window)
        return _Sold(price, (meter, place, text, price.tax, version))

    def _counted(self, sold: _Sold, slot: Slot, moment_us: int, fact: Visit | Passage) -> PricedFact:
        assert slot.day is not None
        return PricedFact(*sold.fields, slot.day, moment_us, 1, *_free_and_minor(sold.price, 1), fact, sold.price)

    def _visits(self, visits: Iterable[Visit]) -> list[PricedFact]:
        found, timeline = list[PricedFact](), self._timeline
        for visit in visits:
            moment = visit.begin_us
            if visit.entered and timeline.start_us <= moment < timeline.end_us and self._holding(moment):
                slot = timeline.at(moment)
                if (sold := self._price(Meter.VISIT, slot, (moment, moment), visit)) is not None:
                    found.append(self._counted(sold, slot, moment, visit))
        return found

    def _stays(self, visits: Iterable[Visit]) -> list[PricedFact]:
        found, timeline, begins = list[PricedFact](), self._timeline, self._account.begins
        times = [
            (max(held[0], sold[0]), min(held[1], sold[1])) for held in self._held for sold in self._account.staying
        ]
        for visit in visits:
            for begin, end in times:
                # a change of account, or the last moment in which stays are sold, ends the stay
                moment = visit.charged_us if begin <= visit.charged_us < end else end - 1
                since, until = max(begin, visit.begin_us), min(end, visit.end_us)
                if since >= until or not timeline.start_us <= moment < timeline.end_us:
                    continue
                cuts = begins[bisect_right(begins, since) : bisect_left(begins, until)]
                cuts = [*cuts, *timeline.midnights(since, until)] if self._account.by_day else cuts
                found += self._stay(visit, moment, [since, *sorted({*cuts}), until])
        return found

    def _stay(self, visit: Visit, moment_us: int, cuts: Sequence[int]) -> Iterator[PricedFact]:
        """The parts of a stay between the moments `cuts`."""
        timeline, since, exact, minor = self._timeline, cuts[0], Fraction(0), 0
        for begin, end in pairwise(cuts):
            slot = timeline.in_version(timeline.version(begin), since)
            sold = self._price(Meter.STAY, slot, (since, moment_us), visit)
            assert sold is not None, "stays are sold at this time"
            day = timeline.at(begin if self._account.by_day else moment_us).day
            assert day is not None
            at, to, before = (begin - since) // 1_000, (end - since) // 1_000, minor
            if len(cuts) == 2:
                amounts = to, *_free_and_minor(sold.price, to)
            else:
                exact = sold.price.running(exact, at, to)
                minor = round_ratio(*exact.as_integer_ratio())
                amounts = to - at, sold.price.free_of(to) - sold.price.free_of(at), minor - before
            yield PricedFact(*sold.fields, day, moment_us, *amounts, visit, sold.price, at)

    def _passages(self, passages: Sequence[Passage]) -> Iterator[PricedFact]:
        for number, passage in enumerate(passages):
            moment, held = passage.moment_us, self._holding(passage.moment_us)
            if held is None or not self._timeline.holds(moment):
                continue
            slot, sold, before = self._of_passage(passages, number, held)
            if sold is None:
                continue
            made = self._counted(sold, slot, moment, passage)
            if before and before.moment_us < self._timeline.start_us:
                # what the first of the pair cost by itself is on an earlier document
                _, alone, pair = self._of_passage(passages, number - 1, held)
                paid = alone.price.fact_minor(1) if alone is not None and pair is None else 0
                made = made._replace(minor=made.minor - paid)
            follows = number + 1 < len(passages) and passages[number + 1].moment_us < held[1]
            if before is None and follows and self._of_passage(passages, number + 1, held)[2]:
                made = made._replace(free=1, minor=0)
            yield made

    def _of_passage(
        self, passages: Sequence[Passage], number: int, held: tuple[int, int]
    ) -> tuple[Slot, _Sold | None, Passage | None]:
        """The price of a passage, and the one before if it is the price of both."""
        passage, before, moment = passages[number], passages[number - 1] if number else None, passages[number].moment_us
        slot, direction = self._timeline.at(moment), "forward" if passage.forward else "backward"
        if before and before.gate in self._account.gates_before and held[0] <= before.moment_us:
            pair = self._price(Meter.PASSAGE, slot, (moment, moment), passage, (direction, before.gate))
            within = pair.price.price.within if pair is not None else None
            if within is not None and moment - before.moment_us <= within * MINUTE_US:
                return slot, pair, before
        return slot, self._price(Meter.PASSAGE, slot, (moment, moment), passage, (direction, "")), None

    def _driven_days(self, visits: Iterable[Visit], quarters: Iterable[int]) -> Iterator[PricedFact]:
        """Each local day, zone and window of a price once, at the first moment in which the device drove."""
        driven, found = sorted({*quarters}), list[tuple[int, Slot, Visit]]()
        for visit in visits:
            for held in self._held:
                begin = max(held[0], visit.begin_us, self._timeline.start_us)
                end = min(held[1], visit.end_us, self._timeline.end_us)
                first, after = bisect_left(driven, begin // QUARTER_US), bisect_left(driven, -(-end // QUARTER_US))
                moments = (max(begin, quarter * QUARTER_US) for quarter in driven[first:after] if begin < end)
                found += ((moment, self._timeline.at(moment), visit) for moment in moments)
        charged = set[tuple[str, date | None, str]]()
        for moment, slot, visit in sorted(found):
            if (sold := self._price(Meter.DRIVEN_DAY, slot, (moment, moment), visit)) is None:
                continue
            one = self._counted(sold, slot, moment, visit)
            key = visit.zone, slot.day, one.place.window
            if key not in charged:
                charged.add(key)
                yield one

    def _only_dearest(self, facts: Iterable[PricedFact]) -> list[PricedFact]:
        """Of the facts within the time of a rule only the dearest costs something; of equal ones, the first."""
        found, first, dearest = list[list[PricedFact]](), dict[Dearest, int](), dict[Dearest, int]()
        # the parts of a stay are one fact
        for _, parts in groupby(facts, key=lambda one: (one.moment_us, one.meter, one.fact)):
            found.append([*parts])
            fact, minor = found[-1][0], _minor_of(found[-1])
            rule = self._account.dearest(fact.version, fact.meter, fact.place.zone)
            if rule is None or not minor:
                continue
            if rule not in first or fact.moment_us - first[rule] > rule.minutes * MINUTE_US:
                first[rule], dearest[rule] = fact.moment_us, len(found) - 1
                continue
            cheaper = len(found) - 1
            if minor > _minor_of(found[dearest[rule]]):
                cheaper, dearest[rule] = dearest[rule], cheaper
            found[cheaper] = [one._replace(free=one.quantity, minor=0) for one in found[cheaper]]
        return [one for parts in found for one in parts]


@lru_cache(maxsize=4096)
def _free_and_minor(price: RatedPrice, quantity: int) -> tuple[int, int]:
    """Nearly all visits and passages are one unit of few prices."""
    return price.free_of(quantity), price.fact_minor(quantity)


def _minor_of(parts: Sequence[PricedFact]) -> int:
    """What a fact costs, before the credit of what was charged for the first of a pair."""
    if parts[0].meter is Meter.STAY:
        return sum(one.minor for one in parts)
    return 0 if parts[0].free else parts[0].price.fact_minor(1)


def _in_time(one: PricedFact) -> tuple[object, ...]:
    return one.moment_us, one.meter, one.place.zone, one.fact[3:], one.version, one.day


def _distinct(ordered: Iterable[_Fact]) -> list[_Fact]:
    return [one for one, _ in groupby(ordered)]


def _crossed(passage: Passage) -> tuple[int, str, bool, str]:
    return passage.moment_us, passage.gate, passage.forward, passage.id
