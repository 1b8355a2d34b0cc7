"""The charges of one account of the tree: its pools of quantities, each rounded once, then its caps and minimum fee."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from datetime import date, datetime
from fractions import Fraction
from typing import NamedTuple

from cloud_jobs.billing.contracts import CapSpan, Pool
from cloud_jobs.billing.errors import BadReference, NoTermsInForce, UnpricedZone
from cloud_jobs.billing.meters import Meter, round_ratio
from cloud_jobs.billing.rating.cells import Cell, MeteredKey, MeteredRows, metered_key
from cloud_jobs.billing.rating.charges import Charge, ChargeKey, ChargeKind
from cloud_jobs.billing.rating.contract import AccountTerms, RatingContract
from cloud_jobs.billing.rating.price_book import PriceBook, RatedPrice
from cloud_jobs.billing.rating.split import Exact, split

Metered = Mapping[MeteredKey, MeteredRows]


class Place(NamedTuple):
    """What a charge of a pool is about, in the order of the keys: equal remainders are settled in it."""

    region: str
    tenant: str
    device: str
    zone: str
    window: str


class DayUse(NamedTuple):
    """Whose amounts of which day a daily cap adds up; they are counted in `PriceBook.parts` of a minor unit."""

    version: int
    tenant: str
    device: str
    meter: Meter
    day: date


class AccountRating:
    """Takes an account's cells in any order and any pieces; `usage_charges` are then what they cost."""

    def __init__(self, terms: AccountTerms, book: PriceBook, contract: RatingContract, metered: Metered) -> None:
        self.account = terms.account
        self.book = book
        self.versions: set[int] = set()
        self.days: defaultdict[DayUse, int | Fraction] = defaultdict(int)
        self._contract = contract
        self._metered = metered
        self._pools: dict[tuple[str, str, Meter, str], tuple[RatedPrice, dict[Place, int]]] = {}

    def add(self, cell: Cell) -> None:
        """Count a cell in. Raises UnpricedZone, NoTermsInForce, BadReference."""
        _, tenant, device, region, meter, zone, day, window, version, quantity = cell
        assert quantity >= 0, cell
        if not quantity:
            return
        if version < 0:
            raise NoTermsInForce(self.account, device, self._first_hour(cell))
        book = self.book
        price = book.price(version, meter, zone, window)
        if price is None:
            if book.sells(version, meter):
                tariff = book.tariffs[version].id
                first_hour = self._first_hour(cell)
                raise UnpricedZone(
                    tariff, meter=meter.value, zone=zone, window=window, device=device, first_hour=first_hour
                )
            return
        self.versions.add(version)
        agreed = price.price
        of_pool = (tenant, device, meter, price.text) if agreed.pool is Pool.DEVICE else ("", "", meter, price.text)
        pool = self._pools.get(of_pool)
        if pool is None:
            pool = self._pools[of_pool] = price, {}
        place = Place(region, tenant, device, zone, agreed.window)
        pool[1][place] = pool[1].get(place, 0) + quantity
        if book.capped_by_day[version]:
            self._count_day(price, cell, day)

    def usage_charges(self) -> list[Charge]:
        """One for each place and price, in no order. Raises BadReference for what is above the last tier."""
        charges: list[Charge] = []
        for (_, _, meter, text), (price, quantities) in self._pools.items():
            for (region, tenant, device, zone, window), quantity, free, amount in _shares(price, quantities):
                key = ChargeKey(self.account, region, tenant, device, ChargeKind.USAGE, meter, zone, window, text)
                rows = self._metered.get(metered_key(self.account, tenant, device, meter, zone))
                charges.append(Charge(key, quantity, free, amount, rows))
        return charges

    def _count_day(self, price: RatedPrice, cell: Cell, day: date | None) -> None:
        tariff = self.book.tariffs[cell.version]
        caps = [cap for cap in tariff.caps if cap.per is CapSpan.DAY and (not cap.meters or cell.meter in cap.meters)]
        if not caps:
            return
        each = price.by_day
        if each is None:
            raise BadReference(
                f"tariff {tariff.id!r} has a daily cap on {cell.meter.value}, whose price has tiers or an allowance: "
                "what a single day costs cannot be said"
            )
        assert day is not None, "cells of a tariff with a daily cap are of one day each"
        use = DayUse(cell.version, cell.tenant, cell.device, cell.meter, day)
        self.days[use] += cell.quantity * each.numerator * (self.book.parts // each.denominator)

    def _first_hour(self, cell: Cell) -> datetime:
        rows = self._metered.get(metered_key(self.account, cell.tenant, cell.device, cell.meter, cell.zone))
        return rows.first_hour if rows else self._contract.start


def _shares(price: RatedPrice, quantities: Mapping[Place, int]) -> Iterable[tuple[Place, int, int, int]]:
    """For each place of a pool, in their order, the quantity, what of it is free, and the amount."""
    if len(quantities) == 1:
        # as most are
        ((place, whole),) = quantities.items()
        return [(place, whole, price.free_of(whole), round_ratio(*price.exact_minor(whole)))]
    places = sorted(quantities)
    weights = [quantities[place] for place in places]
    whole = sum(weights)
    exact, free = price.exact_minor(whole), price.free_of(whole)
    amounts = split(round_ratio(*exact), exact, weights)
    frees = split(free, Exact(free), weights) if free else [0] * len(weights)
    return zip(places, weights, frees, amounts, strict=True)
