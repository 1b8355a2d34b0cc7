"""Units of foreign messages and their conversion into the units of records."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final, NamedTuple

from waybill.settings import nearest

NONE: Final = "none"
"""The unit of a signal that has none, or whose path is not in the catalogue."""
UNKNOWN: Final = "?"
"""What `edge-agent map suggest` writes for a unit that a sample does not tell."""


class Unit(NamedTuple):
    """A number in this unit is `number * factor / divisor + offset` in the first unit of its dimension.

    A division by a whole number gives the nearest double; a product with its reciprocal often does not.
    """

    factor: float
    divisor: float = 1.0
    offset: float = 0.0


DIMENSIONS: Final[dict[str, dict[str, Unit]]] = {
    "angle": {
        "deg": Unit(1.0),
        "rad": Unit(180.0, math.pi),
        "1e-2 deg": Unit(1.0, 1e2),
        "1e-5 deg": Unit(1.0, 1e5),
        "1e-6 deg": Unit(1.0, 1e6),
        "1e-7 deg": Unit(1.0, 1e7),
    },
    "length": {
        "m": Unit(1.0),
        "km": Unit(1000.0),
        "dm": Unit(1.0, 10.0),
        "cm": Unit(1.0, 100.0),
        "mm": Unit(1.0, 1000.0),
        "ft": Unit(0.3048),
        "mi": Unit(1609.344),
        "nmi": Unit(1852.0),
    },
    "speed": {
        "m/s": Unit(1.0),
        "km/h": Unit(1.0, 3.6),
        "cm/s": Unit(1.0, 100.0),
        "mm/s": Unit(1.0, 1000.0),
        "mph": Unit(0.44704),
        "kn": Unit(1852.0, 3600.0),
    },
    "acceleration": {"m/s^2": Unit(1.0), "g": Unit(9.80665)},
    "rotation": {"deg/s": Unit(1.0), "rad/s": Unit(180.0, math.pi)},
    "revolutions": {"rpm": Unit(1.0), "Hz": Unit(60.0)},
    "temperature": {"degC": Unit(1.0), "degF": Unit(5.0, 9.0, -160 / 9), "K": Unit(1.0, 1.0, -273.15)},
    "pressure": {
        "kPa": Unit(1.0),
        "Pa": Unit(1.0, 1000.0),
        "hPa": Unit(1.0, 10.0),
        "mbar": Unit(1.0, 10.0),
        "bar": Unit(100.0),
        "psi": Unit(6.894757293168361),
    },
    "voltage": {"V": Unit(1.0), "mV": Unit(1.0, 1000.0)},
    "current": {"A": Unit(1.0), "mA": Unit(1.0, 1000.0)},
    "power": {"kW": Unit(1.0), "W": Unit(1.0, 1000.0)},
    "energy": {"kWh": Unit(1.0), "Wh": Unit(1.0, 1000.0), "MJ": Unit(1.0, 3.6), "J": Unit(1.0, 3.6e6)},
    "volume": {"l": Unit(1.0), "ml": Unit(1.0, 1000.0), "m^3": Unit(1000.0), "gal": Unit(3.785411784)},
    "ratio": {"percent": Unit(1.0), "ratio": Unit(100.0)},
    "duration": {"s": Unit(1.0), "ms": Unit(1.0, 1000.0), "min": Unit(60.0), "h": Unit(3600.0)},
}
"""The units of each dimension that a setting may name."""
_DIMENSION_OF: Final = {name: dimension for dimension, units in DIMENSIONS.items() for name in units}

VSS_UNITS: Final = {
    "Vehicle.Speed": "km/h",
    "Vehicle.AverageSpeed": "km/h",
    "Vehicle.TraveledDistance": "km",
    "Vehicle.TripMeterReading": "km",
    "Vehicle.TraveledDistanceSinceStart": "km",
    "Vehicle.Acceleration.Longitudinal": "m/s^2",
    "Vehicle.Acceleration.Lateral": "m/s^2",
    "Vehicle.Acceleration.Vertical": "m/s^2",
    "Vehicle.AngularVelocity.Yaw": "deg/s",
    "Vehicle.AngularVelocity.Pitch": "deg/s",
    "Vehicle.AngularVelocity.Roll": "deg/s",
    "Vehicle.CurrentLocation.Latitude": "deg",
    "Vehicle.CurrentLocation.Longitude": "deg",
    "Vehicle.CurrentLocation.Heading": "deg",
    "Vehicle.CurrentLocation.Altitude": "m",
    "Vehicle.CurrentLocation.HorizontalAccuracy": "m",
    "Vehicle.Exterior.AirTemperature": "degC",
    "Vehicle.Cabin.HVAC.AmbientAirTemperature": "degC",
    "Vehicle.LowVoltageBattery.CurrentVoltage": "V",
    "Vehicle.LowVoltageBattery.CurrentCurrent": "A",
    "Vehicle.Powertrain.Range": "m",
    "Vehicle.Powertrain.CombustionEngine.Speed": "rpm",
    "Vehicle.Powertrain.CombustionEngine.EngineHours": "h",
    "Vehicle.Powertrain.CombustionEngine.EngineCoolant.Temperature": "degC",
    "Vehicle.Powertrain.CombustionEngine.EngineOil.Temperature": "degC",
    "Vehicle.Powertrain.CombustionEngine.EngineOil.Pressure": "kPa",
    "Vehicle.Powertrain.ElectricMotor.Speed": "rpm",
    "Vehicle.Powertrain.ElectricMotor.Power": "kW",
    "Vehicle.Powertrain.ElectricMotor.Temperature": "degC",
    "Vehicle.Powertrain.FuelSystem.AbsoluteLevel": "l",
    "Vehicle.Powertrain.FuelSystem.RelativeLevel": "percent",
    "Vehicle.Powertrain.FuelSystem.Range": "m",
    "Vehicle.Powertrain.TractionBattery.StateOfCharge.Current": "percent",
    "Vehicle.Powertrain.TractionBattery.StateOfCharge.Displayed": "percent",
    "Vehicle.Powertrain.TractionBattery.StateOfHealth": "percent",
    "Vehicle.Powertrain.TractionBattery.CurrentVoltage": "V",
    "Vehicle.Powertrain.TractionBattery.CurrentCurrent": "A",
    "Vehicle.Powertrain.TractionBattery.CurrentPower": "kW",
    "Vehicle.Powertrain.TractionBattery.Temperature.Average": "degC",
    "Vehicle.Powertrain.TractionBattery.Range": "m",
    "Vehicle.Powertrain.TractionBattery.NetCapacity": "kWh",
    "Vehicle.Powertrain.TractionBattery.GrossCapacity": "kWh",
    "Vehicle.Powertrain.TractionBattery.Charging.TimeToComplete": "s",
    "Vehicle.Powertrain.TractionBattery.Charging.ChargeCurrent.DC": "A",
    "Vehicle.Powertrain.TractionBattery.Charging.ChargeVoltage.DC": "V",
    "Vehicle.Chassis.Axle.Row1.Wheel.Left.Tire.Pressure": "kPa",
    "Vehicle.Chassis.Axle.Row1.Wheel.Right.Tire.Pressure": "kPa",
    "Vehicle.Chassis.Axle.Row2.Wheel.Left.Tire.Pressure": "kPa",
    "Vehicle.Chassis.Axle.Row2.Wheel.Right.Tire.Pressure": "kPa",
    "Vehicle.Chassis.SteeringWheel.Angle": "deg",
}
"""COVESA VSS paths whose values have a unit, and that unit. The odometer is billed in kilometres."""


def check_unit(unit: str, dimension: str) -> str:
    """The unit, if it measures this dimension. Raises ValueError with the nearest right word."""
    return _check(unit, DIMENSIONS[dimension], dimension)


def check_signal_unit(path: str, unit: str) -> str:
    """The unit, if a signal of this path can have it. Raises ValueError."""
    if (target := VSS_UNITS.get(path)) is not None:
        return _check(unit, DIMENSIONS[_DIMENSION_OF[target]], f"{path}, which is in {target}")
    if unit == NONE:
        return unit
    near = nearest(path, VSS_UNITS, 0.85)
    advice = f"; did you mean the path {near!r}?" if near else ""
    if unit in {"", UNKNOWN}:
        raise ValueError(f'unit: {path} is not in the catalogue of units: set unit = "none"{advice}')
    raise ValueError(
        f'unit: {path} is not in the catalogue, so {unit!r} cannot be converted: set unit = "none"{advice}'
    )


def linear(unit: str, target: str) -> Unit:
    """The conversion of a number in `unit` into `target`, a unit of the same dimension."""
    if unit in {target, NONE}:
        return Unit(1.0)
    units = DIMENSIONS[_DIMENSION_OF[target]]
    (factor, divisor, offset), (times, by, less) = units[unit], units[target]
    return Unit(factor * by, divisor * times, (offset - less) * by / times)


def _check(unit: str, units: Iterable[str], what: str) -> str:
    known = list(units)
    if unit in known:
        return unit
    words = ", ".join(known)
    if unit == "":
        raise ValueError(f"needs a unit: one of {words}")
    if unit == UNKNOWN:
        raise ValueError(f"the unit is not known yet: replace '?' with one of {words}")
    near = nearest(unit, known)
    advice = f"did you mean {near!r}? " if near else ""
    raise ValueError(f"no unit {unit!r} of {what}; {advice}known are {words}")
