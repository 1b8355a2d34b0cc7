"""Meters, their units, currencies, and the one function that rounds amounts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

from cloud_jobs.billing.errors import BillingError

# Currencies and minor units (ISO 4217, list one).

_NO_DECIMALS = "BIF CLP DJF GNF ISK JPY KMF KRW PYG RWF UGX VND VUV XAF XOF XPF"
_TWO_DECIMALS = """
AED AFN ALL AMD AOA ARS AUD AWG AZN BAM BBD BDT BGN BMD BND BOB BRL BSD BTN BWP BYN BZD CAD CDF CHF CNY COP CRC CUP CVE
CZK DKK DOP DZD EGP ERN ETB EUR FJD FKP GBP GEL GHS GIP GMD GTQ GYD HKD HNL HTG HUF IDR ILS INR IRR JMD KES KGS KHR KPW
KYD KZT LAK LBP LKR LRD LSL MAD MDL MGA MKD MMK MNT MOP MRU MUR MVR MWK MXN MYR MZN NAD NGN NIO NOK NPR NZD PAB PEN PGK
PHP PKR PLN QAR RON RSD RUB SAR SBD SCR SDG SEK SGD SHP SLE SOS SRD SSP STN SVC SYP SZL THB TJS TMT TOP TRY TTD TWD TZS
UAH USD UYU UZS VED VES WST XCD XCG YER ZAR ZMW ZWG
"""
_THREE_DECIMALS = "BHD IQD JOD KWD LYD OMR TND"

EXPONENT_OF: dict[str, int] = {
    **dict.fromkeys(_NO_DECIMALS.split(), 0),
    **dict.fromkeys(_TWO_DECIMALS.split(), 2),
    **dict.fromkeys(_THREE_DECIMALS.split(), 3),
}
"""Currency code -> digits after the point."""


def exponent(currency: str) -> int:
    """The digits after the point of a currency. Raises BillingError."""
    try:
        return EXPONENT_OF[currency]
    except KeyError:
        raise BillingError(
            f"no currency {currency!r} in ISO 4217; use its three capital letters, for instance EUR"
        ) from None


def amount_text(amount_minor: int, currency: str) -> str:
    """The amount in major units with all digits of the currency: `-12.30`, `500`, `0.005`."""
    digits = exponent(currency)
    sign, whole = ("-" if amount_minor < 0 else ""), abs(amount_minor)
    if digits == 0:
        return f"{sign}{whole}"
    return f"{sign}{whole // 10**digits}.{whole % 10**digits:0{digits}d}"


class Meter(StrEnum):
    """What can be priced, in the order of a bill."""

    DISTANCE = "distance"
    DURATION = "duration"
    ENTRY = "entry"
    INFERRED_ENTRY = "inferred entry"
    CROSSING = "crossing"
    EVENT = "event"
    TRANSMITTED = "transmitted"
    ACTIVE_DAY = "active day"
    VISIT = "visit"
    STAY = "stay"
    PASSAGE = "passage"
    DRIVEN_DAY = "driven day"


class MeterZones(StrEnum):
    """Where a meter counts: everywhere, inside zones only, at gates, or for the whole device."""

    EVERYWHERE = "everywhere"
    INSIDE = "inside"
    GATES = "gates"
    NONE = "none"


class SaleUnit(NamedTuple):
    """A unit of prices. `code`: its code in UN/ECE Recommendation 20, which EN 16931 requires."""

    base_per_unit: int
    code: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """How a meter counts and is sold. `base`: the unit of stored integers. The first of `sale_units` is shown to
    people.
    """

    base: str
    sale_units: Mapping[str, SaleUnit]
    zones: MeterZones

    @property
    def unit(self) -> str:
        return next(iter(self.sale_units))

    @property
    def base_per_unit(self) -> int:
        return self.sale_units[self.unit].base_per_unit

    def sold_by(self, unit: str) -> tuple[str, SaleUnit]:
        """A unit of sale and its name; the first one, if the meter is not sold by this unit."""
        name = unit if unit in self.sale_units else self.unit
        return name, self.sale_units[name]


_EACH = {"each": SaleUnit(1, "C62")}

MEASURE_OF: dict[Meter, Measure] = {
    Meter.DISTANCE: Measure(
        base="mm",
        sale_units={"km": SaleUnit(1_000_000, "KMT"), "m": SaleUnit(1_000, "MTR"), "mi": SaleUnit(1_609_344, "SMI")},
        zones=MeterZones.EVERYWHERE,
    ),
    Meter.DURATION: Measure(
        base="ms",
        sale_units={"h": SaleUnit(3_600_000, "HUR"), "min": SaleUnit(60_000, "MIN")},
        zones=MeterZones.EVERYWHERE,
    ),
    Meter.ENTRY: Measure(base="each", sale_units=_EACH, zones=MeterZones.INSIDE),
    Meter.INFERRED_ENTRY: Measure(base="each", sale_units=_EACH, zones=MeterZones.INSIDE),
    Meter.CROSSING: Measure(base="each", sale_units=_EACH, zones=MeterZones.GATES),
    Meter.EVENT: Measure(base="each", sale_units=_EACH, zones=MeterZones.NONE),
    Meter.TRANSMITTED: Measure(
        base="byte",
        sale_units={"MB": SaleUnit(1_000_000, "4L"), "GB": SaleUnit(1_000_000_000, "E34"), "kB": SaleUnit(1_000, "2P")},
        zones=MeterZones.NONE,
    ),
    Meter.ACTIVE_DAY: Measure(base="day", sale_units={"day": SaleUnit(1, "DAY")}, zones=MeterZones.NONE),
    Meter.VISIT: Measure(base="each", sale_units=_EACH, zones=MeterZones.INSIDE),
    Meter.STAY: Measure(
        base="ms",
        sale_units={
            "min": SaleUnit(60_000, "MIN"),
            "h": SaleUnit(3_600_000, "HUR"),
            "day": SaleUnit(86_400_000, "DAY"),
        },
        zones=MeterZones.INSIDE,
    ),
    Meter.PASSAGE: Measure(base="each", sale_units=_EACH, zones=MeterZones.GATES),
    Meter.DRIVEN_DAY: Measure(base="day", sale_units={"day": SaleUnit(1, "DAY")}, zones=MeterZones.INSIDE),
}

FACTS: Final = frozenset({Meter.VISIT, Meter.STAY, Meter.PASSAGE, Meter.DRIVEN_DAY})
"""Meters of facts, which come from events at fences and gates; the others come from usage."""
WITHOUT_ZONE: Final = frozenset(meter for meter, measure in MEASURE_OF.items() if measure.zones is MeterZones.NONE)
"""Meters of the whole device; their prices have no zone."""


def round_ratio(numerator: int, denominator: int) -> int:
    """The nearest integer to a ratio (denominator above 0); halves go away from zero. Every amount is rounded here,
    once.
    """
    # in integers: `round` rounds halves to even, and floats are inexact
    magnitude = (2 * abs(numerator) + denominator) // (2 * denominator)
    return -magnitude if numerator < 0 else magnitude


def place_text(meter: Meter, zone: str) -> str:
    """The place as text; "" for a meter without zones."""
    zones = MEASURE_OF[meter].zones
    if zones is MeterZones.NONE:
        return ""
    if not zone:
        return "outside all zones"
    return f"{'gate' if zones is MeterZones.GATES else 'zone'} {zone}"


def quantity_text(meter: Meter, quantity: int, unit: str = "") -> str:
    """The quantity in a unit of sale (the meter's first, if it has no such unit) with six decimals; counts without."""
    per_unit = MEASURE_OF[meter].sold_by(unit)[1].base_per_unit
    if per_unit == 1:
        return str(quantity)
    micro = round_ratio(quantity * 1_000_000, per_unit)
    sign, whole = ("-" if micro < 0 else ""), abs(micro)
    return f"{sign}{whole // 1_000_000}.{whole % 1_000_000:06d}"
