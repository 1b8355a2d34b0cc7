"""What is measured and sold: the meters, their units, and the one place where an amount is rounded."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from fractions import Fraction


class Meter(StrEnum):
    """What a price can be for, in the order of a bill."""

    DISTANCE = "distance"
    DURATION = "duration"
    ENTRY = "entry"
    CROSSING = "crossing"
    EVENT = "event"
    TRANSMITTED = "transmitted"
    ACTIVE_DAY = "active day"


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """How a meter counts and how it is sold.

    `base`: the unit of the stored integer. `unit`: the unit of its price; `base_per_unit` of the first make one.
    `code`: the unit's code in UN/ECE Recommendation 20, which EN 16931 asks for.
    """

    base: str
    unit: str
    base_per_unit: int
    code: str


MEASURE_OF: dict[Meter, Measure] = {
    Meter.DISTANCE: Measure(base="mm", unit="km", base_per_unit=1_000_000, code="KMT"),
    Meter.DURATION: Measure(base="ms", unit="h", base_per_unit=3_600_000, code="HUR"),
    Meter.ENTRY: Measure(base="each", unit="each", base_per_unit=1, code="C62"),
    Meter.CROSSING: Measure(base="each", unit="each", base_per_unit=1, code="C62"),
    Meter.EVENT: Measure(base="each", unit="each", base_per_unit=1, code="C62"),
    Meter.TRANSMITTED: Measure(base="byte", unit="MB", base_per_unit=1_000_000, code="4L"),
    Meter.ACTIVE_DAY: Measure(base="day", unit="day", base_per_unit=1, code="DAY"),
}


def round_half_up(value: Fraction) -> int:
    """The nearest integer, a half away from zero. Every amount of a bill is rounded here, once, and nowhere else."""
    # in integers: `round` takes a half to the even neighbour, and a float holds no tenth of a cent
    magnitude = (2 * abs(value.numerator) + value.denominator) // (2 * value.denominator)
    return -magnitude if value < 0 else magnitude


def line_amount_minor(meter: Meter, quantity: int, unit_amount: Decimal, exponent: int) -> int:
    """What `quantity` base units cost, in minor units of a currency with `exponent` digits.

    Exact until the one rounding: an hour's third is no decimal, so the product is a fraction.
    """
    units = Fraction(quantity, MEASURE_OF[meter].base_per_unit)
    return round_half_up(units * Fraction(unit_amount) * 10**exponent)


def quantity_text(meter: Meter, quantity: int) -> str:
    """The quantity in the meter's unit of sale, for reading: six decimals, or none for what is counted."""
    per_unit = MEASURE_OF[meter].base_per_unit
    if per_unit == 1:
        return str(quantity)
    micro = round_half_up(Fraction(quantity * 1_000_000, per_unit))
    sign, whole = ("-" if micro < 0 else ""), abs(micro)
    return f"{sign}{whole // 1_000_000}.{whole % 1_000_000:06d}"
