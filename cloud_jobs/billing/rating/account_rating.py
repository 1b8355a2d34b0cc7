"""The charges of one account of the tree: its pools of quantities, each rounded once, then its caps and minimum fee."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from datetime import date, datetime
from fractions import Fraction
from typing import NamedTuple

from cloud_jobs.billing.contracts import CapSpan, PoolKey
from cloud_jobs.billing.errors import BadReference, NoTermsInForce, UnpricedZone
from cloud_jobs.billing.meters import Meter
from cloud_jobs.billing.rating.cells import Cell, MeteredKey, MeteredRows, metered_key
from cloud_jobs.billing.rating.charges import Charge, ChargeKey, ChargeKind
from cloud_jobs.billing.rating.contract import AccountTerms, RatingContract
from cloud_jobs.billing.rating.pools import Place, RatedPrice, Uses, pool_shares
from cloud_jobs.billing.rating.price_book import PriceBook

Metered = Mapping[MeteredKey, MeteredRows]


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
        self.terms = terms
        self.book = book
        self.versions: set[int] = set()
        self.days: defaultdict[DayUse, int | Fraction] = defaultdict(int)
        self._contract = contract
        self._metered = metered
        self._pools: dict[tuple[str, str, PoolKey], dict[tuple[RatedPrice, Place], int]] = {}

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
        of_pool = ("", "", price.pool) if price.pool.is_of_account else (tenant, device, price.pool)
        uses = self._pools.get(of_pool)
        if uses is None:
            uses = self._pools[of_pool] = {}
        use = price, Place(region, tenant, device, zone, price.price.window)
        uses[use] = uses.get(use, 0) + quantity
        if book.capped_by_day[version]:
            self._count_day(price, cell, day)

    def usage_charges(self) -> list[Charge]:
        """One for each place and price, in no order. Raises BadReference for what is above the last tier."""
        charges: list[Charge] = []
        for of_pool, uses in self._pools.items():
            meter = of_pool[2].meter
            for (region, tenant, device, zone, window), text, quantity, free, amount in pool_shares(uses):
                key = ChargeKey(self.account, region, tenant, device, ChargeKind.USAGE, meter, zone, window, text)
                rows = self._metered.get(metered_key(self.account, tenant, device, meter, zone))
                charges.append(Charge(key, quantity, free, amount, rows))
        return _one_of_each_key(charges)

    def pools_of(self, key: ChargeKey) -> list[Uses]:
        """The pools that a usage charge has a part of: one, or two where another price of the same words took over."""
        place = Place(key.region, key.tenant, key.device, key.zone, key.window)
        return [
            uses
            for of_pool, uses in self._pools.items()
            if of_pool[2].meter is key.meter and any((price.text, at) == (key.price, place) for price, at in uses)
        ]

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


def _one_of_each_key(charges: list[Charge]) -> list[Charge]:
    """Where a zone loses a price of its own, the price of any zone may say the same: two pools, and one charge."""
    found: dict[ChargeKey, Charge] = {}
    for one in charges:
        other = found.setdefault(one.key, one)
        if other is not one:
            found[one.key] = one._replace(
                quantity=other.quantity + one.quantity,
                free=other.free + one.free,
                amount_minor=other.amount_minor + one.amount_minor,
            )
    return list(found.values())
