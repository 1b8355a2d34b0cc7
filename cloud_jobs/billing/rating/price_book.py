"""Which price holds for a cell, and what it is worth in the payer's minor unit."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import lcm
from typing import Final

from cloud_jobs.billing.contracts import ANY_ZONE, Price, Tariff
from cloud_jobs.billing.currency import exponent
from cloud_jobs.billing.errors import MissingRate
from cloud_jobs.billing.meters import Meter
from cloud_jobs.billing.rating.cells import WITHOUT_ZONE
from cloud_jobs.billing.rating.contract import RatingContract, TariffInForce
from cloud_jobs.billing.rating.price_text import price_text
from cloud_jobs.billing.rating.split import Exact
from cloud_jobs.billing.rating.tiers import cost, units_to_pay

MAX_BOOKS: Final = 4096
"""Of how many different tariffs the prices are kept ready for the next account."""
MAX_FOUND: Final = 65_536
"""Of how many meters in zones and windows a book remembers which price holds."""


@dataclass(frozen=True, slots=True)
class RatedPrice:
    """A price as rating uses it. Two of equal `text` and meter are one price, whatever version or zone they are of.

    `worth`: minor units of the payer's currency for one unit of the tariff's. `flat`: of a price without tiers, minor
    units for one base unit of the meter. `allowance`: in base units.
    """

    price: Price
    text: str
    worth: Fraction
    flat: Exact | None
    allowance: Exact

    def exact_minor(self, quantity: int) -> Exact:
        """What a pool of so many base units costs, before it is rounded. Raises BadReference above the last tier."""
        if self.flat is not None:
            # the integers of the fraction, without the work of reducing it
            paid = max(0, quantity * self.allowance.denominator - self.allowance.numerator)
            return Exact(paid * self.flat.numerator, self.allowance.denominator * self.flat.denominator)
        units = Fraction(quantity, self.price.base_per_unit)
        amount: Fraction = cost(self.price, units_to_pay(self.price, units)) * self.worth
        return Exact(amount.numerator, amount.denominator)

    def free_of(self, quantity: int) -> int:
        """How many base units of a pool the allowance takes whole."""
        return min(quantity, self.allowance.numerator // self.allowance.denominator)

    @property
    def by_day(self) -> Exact | None:
        """What one base unit costs on any day; None: that cannot be said, for tiers or an allowance look at more."""
        return self.flat if not self.allowance.numerator else None


class PriceBook:
    """The prices of an account's tariff versions. Raises MissingRate."""

    def __init__(self, tariffs: tuple[TariffInForce, ...], contract: RatingContract) -> None:
        self.tariffs = tuple(one.tariff for one in tariffs)
        self.worths = tuple(worth_of(tariff.currency, contract) for tariff in self.tariffs)
        self._listed = [
            {(price.meter, price.zone, price.window): _rated(price, tariff, worth) for price in tariff.prices}
            for tariff, worth in zip(self.tariffs, self.worths, strict=True)
        ]
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
        if of not in self._found:
            if len(self._found) >= MAX_FOUND:
                self._found.clear()
            self._found[of] = self._look_up(*of)
        return self._found[of]

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


def _rated(price: Price, tariff: Tariff, worth: Fraction) -> RatedPrice:
    flat = None
    if price.unit_amount is not None:
        amount = Fraction(price.unit_amount) * worth / price.base_per_unit
        flat = Exact(amount.numerator, amount.denominator)
    allowance = Fraction(price.allowance) * price.base_per_unit
    return RatedPrice(
        price, price_text(price, tariff.currency), worth, flat, Exact(allowance.numerator, allowance.denominator)
    )
