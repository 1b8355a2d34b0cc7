"""Which price holds for a cell, and what it is worth in the payer's minor unit."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from fractions import Fraction
from math import lcm
from typing import Final

from cloud_jobs.billing.contracts import ANY_ZONE, PoolKey, Tariff
from cloud_jobs.billing.currency import exponent
from cloud_jobs.billing.errors import MissingRate
from cloud_jobs.billing.meters import Meter
from cloud_jobs.billing.rating.cells import WITHOUT_ZONE
from cloud_jobs.billing.rating.contract import RatingContract, TariffInForce
from cloud_jobs.billing.rating.pools import RatedPrice
from cloud_jobs.billing.rating.price_text import price_text
from cloud_jobs.billing.rating.split import Exact

MAX_BOOKS: Final = 4096
"""Of how many different tariffs the prices are kept ready for the next account."""
MAX_FOUND: Final = 65_536
"""Of how many meters in zones and windows a book remembers which price holds."""


_Place = tuple[Meter, str, str]


class PriceBook:
    """The prices of an account's tariff versions. Raises MissingRate."""

    def __init__(self, tariffs: tuple[TariffInForce, ...], contract: RatingContract) -> None:
        self.tariffs = tuple(one.tariff for one in tariffs)
        self.worths = tuple(worth_of(tariff.currency, contract) for tariff in self.tariffs)
        self._listed: list[dict[_Place, RatedPrice]] = []
        terms: dict[object, int] = {}
        for version, (tariff, worth) in enumerate(zip(self.tariffs, self.worths, strict=True)):
            before = self._listed[-1] if self._listed else {}
            self._listed.append(_rated(version, tariff, worth, terms, before))
        self._sold = [{price.meter for price in tariff.prices} for tariff in self.tariffs]
        # all amounts of days are integers in this part of a minor unit
        self.parts = lcm(
            *(price.flat.denominator for listed in self._listed for price in listed.values() if price.flat)
        )
        self._found: dict[tuple[int, Meter, str, str], RatedPrice | None] = {}
        self.capped_by_day = [any(cap.per == "day" for cap in tariff.caps) for tariff in self.tariffs]

    def sells(self, version: int, meter: Meter) -> bool:
        """Whether the version has a price for the meter anywhere. What has none is not sold."""
        return meter in self._sold[version]

    def price(self, version: int, meter: Meter, zone: str, window: str) -> RatedPrice | None:
        """The price that holds: of the zone or else of ANY_ZONE, each in the window or else in none.

        Outside all zones ("") is no zone that ANY_ZONE stands for. None: no price, which is an error of what is sold.
        """
        of = (version, meter, zone, window)
        found = self._found.get(of)
        if found is None and of not in self._found:
            if len(self._found) >= MAX_FOUND:
                self._found.clear()
            found = self._found[of] = self._look_up(*of)
        return found

    def _look_up(self, version: int, meter: Meter, zone: str, window: str) -> RatedPrice | None:
        listed = self._listed[version]
        found = listed.get((meter, zone, window)) or listed.get((meter, zone, ""))
        if found is None and (zone or meter in WITHOUT_ZONE):
            found = listed.get((meter, ANY_ZONE, window)) or listed.get((meter, ANY_ZONE, ""))
        return found


class PriceBooks:
    """Price books by the versions they are of, at most MAX_BOOKS: many accounts have the same tariff."""

    def __init__(self) -> None:
        self._books: dict[tuple[object, ...], PriceBook] = {}

    def book(self, tariffs: tuple[TariffInForce, ...], contract: RatingContract) -> PriceBook:
        """The book of these versions for a payer of this currency and these rates. Raises MissingRate."""
        # The same objects: comparing their contents would cost more than the book. A book keeps its tariffs alive, so
        # that no other one gets the identity of one that is gone.
        rates = tuple(contract.rates.get(one.tariff.currency) for one in tariffs)
        key = (contract.currency, rates, *(id(one.tariff) for one in tariffs))
        if key not in self._books:
            if len(self._books) >= MAX_BOOKS:
                self._books.clear()
            self._books[key] = PriceBook(tariffs, contract)
        return self._books[key]


def worth_of(currency: str, contract: RatingContract) -> Fraction:
    """How many of the payer's minor units one unit of a currency is. Raises MissingRate, UnknownCurrency."""
    minor: int = 10 ** exponent(contract.currency)
    if currency == contract.currency:
        return Fraction(minor)
    rate = contract.rates.get(currency)
    if rate is None:
        raise MissingRate(currency, contract.currency)
    return Fraction(rate) * minor


def _rated(
    version: int, tariff: Tariff, worth: Fraction, terms: dict[object, int], before: Mapping[_Place, RatedPrice]
) -> dict[_Place, RatedPrice]:
    """The prices of a version by meter, zone and window. `terms` numbers what the prices of a pool say together; where
    they say what they did in the version before, the price is that of `before`."""
    of_pool: defaultdict[PoolKey, list[tuple[str, str, str]]] = defaultdict(list)
    stated = [(price, price.pool_key, price_text(price, tariff.currency)) for price in tariff.prices]
    for price, pool, text in stated:
        of_pool[pool].append((price.zone, price.window, text))
    number = {pool: terms.setdefault((pool, *sorted(of_pool[pool])), len(terms)) for pool in of_pool}
    found = {}
    for price, pool, text in stated:
        place = price.meter, price.zone, price.window
        was = before.get(place)
        if was is not None and was.terms == number[pool]:
            found[place] = was
            continue
        flat = None
        if price.unit_amount is not None:
            flat = Exact(*(Fraction(price.unit_amount) * worth / price.base_per_unit).as_integer_ratio())
        allowance = Exact(*(Fraction(price.allowance) * price.base_per_unit).as_integer_ratio())
        found[place] = RatedPrice(price, text, pool, version, number[pool], worth, flat, allowance)
    return found
