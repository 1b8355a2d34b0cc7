"""Compiles one mapping into closures: from an element of a message to the bodies of records, and its time. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, tzinfo
from typing import Any, Final, NamedTuple

from pydantic import ValidationError

from edge_agent.clocks import SET_CLOCK_MS
from edge_agent.intake.messages import (
    OPTIONAL_BOUNDS,
    TIME_UNITS,
    YEAR_2100_S,
    MalformedMessage,
    counted_time_us,
    iso_time_us,
    read_event,
    read_number,
    read_position,
    read_signal,
    zoned,
)
from edge_agent.mapping.paths import (
    MISSING,
    Enclosing,
    Mark,
    Reader,
    TopicPattern,
    constant_reader,
    level_reader,
    parse_path,
    path_reader,
)
from edge_agent.mapping.settings import (
    Condition,
    EventMapping,
    MappingSettings,
    PositionMapping,
    SignalMapping,
    TimeSource,
    ValueSource,
    equal_scalars,
    level_names,
)
from edge_agent.mapping.units import VSS_UNITS, linear
from waybill.record import Body, Position

Levels = Mapping[str, str]


class Refusal(Exception):
    """An element that stays raw. Its reason is `mapping:field:why`; `detail` names the member."""

    def __init__(self, field: str, why: str, detail: str = "") -> None:
        super().__init__(field, why)
        self.field, self.why, self.detail = field, why, detail

    @property
    def reason(self) -> str:
        return f"mapping:{self.field}:{self.why}"


class PositionHalf(NamedTuple):
    """One coordinate of a torn position, in degrees; the other one is None. `optional`: what came with it."""

    latitude: float | None
    longitude: float | None
    optional: dict[str, Any]


Output = Callable[[Any, Enclosing, Levels, list[str]], Any]
"""From an element to a body or PositionHalf; None if it is without what the output needs; NOT_APPLICABLE; NO_FIX. Names
of values that cannot be used are added to the list. Raises Refusal.
"""
TimeReader = Callable[[Any, Enclosing, Levels], int | None]
"""Microseconds since 1970; None: the time of arrival. Raises Refusal."""
Test = Callable[[Any, Enclosing, Levels], bool]

# Values and conditions.


def reader_of(source: ValueSource | Condition | TimeSource) -> Reader:
    """A function that reads the value of a source as it is."""
    if source.path is not None:
        return path_reader(parse_path(source.path))
    if source.level is not None:
        return level_reader(source.level)
    return constant_reader(source.constant if isinstance(source, ValueSource) else None)


def value_reader(source: ValueSource) -> Reader:
    """A function that reads a value. ABSENT for one that means that there is none; MISSING if a condition fails."""
    read, test = reader_of(source), conjunction(source.when)
    if source.absent:
        read = _without_absent(read, source.absent)
    if test is None:
        return read
    checked, holds = read, test
    return lambda element, around, levels: (
        checked(element, around, levels) if holds(element, around, levels) else MISSING
    )


ABSENT: Final = Mark("ABSENT")
"""A value that the settings list as absent."""
UNUSABLE: Final = Mark("UNUSABLE")
"""A value that is no number."""
NOT_APPLICABLE: Final = Mark("NOT_APPLICABLE")
"""An output whose conditions do not hold."""
NO_FIX: Final = Mark("NO_FIX")
"""A position of a receiver that has no fix."""


def _without_absent(read: Reader, absent: Sequence[Any]) -> Reader:
    numbers = frozenset(one for one in absent if type(one) is float or type(one) is int)

    def read_present(element: Any, around: Enclosing, levels: Levels) -> Any:
        value = read(element, around, levels)
        if type(value) is float or type(value) is int:
            return ABSENT if value in numbers else value
        return ABSENT if any(_matches(value, one) for one in absent) else value

    return read_present


def _matches(value: Any, scalar: Any) -> bool:
    """Whether a value of a message is the one that the settings name. A text may be a number."""
    if isinstance(value, str) and not isinstance(scalar, str | bool):
        return bool(read_number(value) == scalar)
    return equal_scalars(value, scalar)


def conjunction(conditions: Sequence[Condition]) -> Test | None:
    """A function that tells whether all conditions hold; None without conditions."""
    tests = [_test(one) for one in conditions]
    if len(tests) < 2:
        return tests[0] if tests else None
    return lambda element, around, levels: all(test(element, around, levels) for test in tests)


def _test(condition: Condition) -> Test:
    read = reader_of(condition)
    if condition.exists is not None:
        wanted = condition.exists
        return lambda element, around, levels: (
            ((value := read(element, around, levels)) is not MISSING and value is not None) is wanted
        )
    if condition.is_not is not None:
        other = condition.is_not
        return lambda element, around, levels: not _matches(read(element, around, levels), other)
    if condition.is_ is not None:
        scalar = condition.is_
        if isinstance(scalar, str):
            return lambda element, around, levels: bool(read(element, around, levels) == scalar)
        return lambda element, around, levels: _matches(read(element, around, levels), scalar)
    allowed = condition.in_ or ()
    return lambda element, around, levels: any(_matches(read(element, around, levels), one) for one in allowed)


def number_reader(source: ValueSource, unit: str, target: str) -> Reader:
    """As `value_reader`, for numbers: a float in `target`, null or UNUSABLE."""
    read, (factor, divisor, offset) = value_reader(source), linear(unit, target)

    def read_plain(element: Any, around: Enclosing, levels: Levels) -> Any:
        value = read(element, around, levels)
        if type(value) is float:
            return value
        return float(value) if type(value) is int else _number(value)

    if (factor, divisor, offset) == (1.0, 1.0, 0.0):
        return read_plain

    def read_converted(element: Any, around: Enclosing, levels: Levels) -> Any:
        value = read(element, around, levels)
        # The product of an integer with a float is that of its nearest float.
        if type(value) is not float and type(value) is not int and type(value := _number(value)) is not float:
            return value
        return value * factor / divisor + offset

    return read_converted


def _number(value: Any) -> Any:
    """What a value is that is neither an int nor a float."""
    if value is None or value is MISSING or value is ABSENT:
        return value
    return UNUSABLE if (number := read_number(value)) is None else number


# Positions.

_TARGETS: Final = {
    "altitude": ("altitude_m", "m"),
    "speed": ("speed_mps", "m/s"),
    "heading": ("heading_deg", "deg"),
    "accuracy": ("accuracy_m", "m"),
}


def position_output(settings: PositionMapping, *, joins: bool) -> Output:
    """`joins`: one coordinate alone is a PositionHalf, not a fault."""
    latitude, longitude = (number_reader(one, one.unit, "deg") for one in (settings.latitude, settings.longitude))
    optional = [
        (member, number_reader(source, source.unit, target), *OPTIONAL_BOUNDS[member])
        for name, (member, target) in _TARGETS.items()
        if (source := getattr(settings, name)) is not None
    ]
    no_fix, test = frozenset(settings.absent), _position_test(settings)

    def output(element: Any, around: Enclosing, levels: Levels, left_out: list[str]) -> Any:
        if test is not None and not test(element, around, levels):
            return NOT_APPLICABLE
        lat, lon = latitude(element, around, levels), longitude(element, around, levels)
        if type(lat) is not float or type(lon) is not float:
            if (fault := _incomplete(lat, lon, joins=joins)) is not MISSING:
                return fault
            values = {name: read(element, around, levels) for name, read, _, _ in optional}
            return _half(lat, lon, values)
        if no_fix and ((lat, lon) in no_fix or (lon > 180 and (lat, lon - 360) in no_fix)):
            return NO_FIX
        fields, is_usual = {"latitude": lat, "longitude": lon}, -90 <= lat <= 90 and -180 <= lon <= 180
        for name, read, least, greatest in optional:
            value = read(element, around, levels)
            if value is not MISSING and value is not ABSENT:
                fields[name] = value
                is_usual = is_usual and type(value) is float and least <= value <= greatest
        return Position(**fields) if is_usual else _checked_position(fields, left_out)

    return output


def _checked_position(fields: dict[str, Any], left_out: list[str]) -> Position:
    """A position of which a value is out of its bounds or no number. Raises Refusal."""
    try:
        return read_position(_usable(fields), left_out)
    except MalformedMessage as error:
        raise Refusal("position", "range", error.detail) from error


def _usable(fields: dict[str, Any]) -> dict[str, Any]:
    """The values that are there; null is one that cannot be used. Raises Refusal."""
    _check_accuracy(fields.get("accuracy_m"))
    present = {name: value for name, value in fields.items() if value is not MISSING and value is not ABSENT}
    return {name: None if value is UNUSABLE else value for name, value in present.items()}


def _check_accuracy(value: Any) -> None:
    """Raises Refusal: without its accuracy a bad position would look like a good one."""
    if value is None or value is MISSING or value is ABSENT:
        return
    least, greatest = OPTIONAL_BOUNDS["accuracy_m"]
    if value is UNUSABLE:
        raise Refusal("accuracy", "type", "`accuracy` is not a number")
    if not least <= value <= greatest:
        raise Refusal("accuracy", "range", "`accuracy` is not a radius: list the value in `absent` if it means none")


def _position_test(settings: PositionMapping) -> Test | None:
    test = conjunction(settings.when)
    latitude, longitude = conjunction(settings.latitude.when), conjunction(settings.longitude.when)
    if latitude is None or longitude is None:
        return test
    one, other = latitude, longitude
    return lambda element, around, levels: (
        (test is None or test(element, around, levels))
        and (one(element, around, levels) or other(element, around, levels))
    )


def _incomplete(lat: Any, lon: Any, *, joins: bool) -> Any:
    """What becomes of a position without two numbers; MISSING: it may be a half. Raises Refusal."""
    if lat is MISSING and lon is MISSING:
        return None
    for name, value in (("latitude", lat), ("longitude", lon)):
        if value is None or value is ABSENT:
            return NO_FIX
        if value is UNUSABLE:
            raise Refusal(name, "type", f"`{name}` is not a number")
        if value is MISSING and not joins:
            raise Refusal(name, "missing", f"`{name}` is missing")
    return MISSING


def _half(lat: Any, lon: Any, optional: dict[str, Any]) -> PositionHalf:
    optional = _usable(optional)
    if lon is MISSING:
        lon = None
    # Not folded at 180: alone, 181 may be the sign of a receiver without a fix.
    lat = None if lat is MISSING else lat
    if (lat is not None and not -90 <= lat <= 90) or (lon is not None and not -180 <= lon <= 180):
        raise Refusal("position", "range")
    return PositionHalf(lat, lon, optional)


# Signals and events.

_LEVEL: Final = re.compile(r"\{([^}]*)\}")


def signal_output(settings: SignalMapping) -> Output:
    names, test = level_names(settings.path), conjunction((*settings.when, *settings.value.when))
    target = VSS_UNITS.get(settings.path)
    template, unit = settings.path, settings.value.unit
    raw = value_reader(settings.value)
    number = None if target is None else number_reader(settings.value, unit, target)

    def output(element: Any, around: Enclosing, levels: Levels, left_out: list[str]) -> Any:
        if test is not None and not test(element, around, levels):
            return NOT_APPLICABLE
        value = raw(element, around, levels)
        if value is MISSING or value is ABSENT:
            return None
        path = _LEVEL.sub(lambda found: levels[found[1]], template) if names else template
        if names and not path.isprintable():
            raise Refusal("signal", "type", "the topic has control characters")
        if value is None:
            left_out.append(path)
            return None
        if number is not None:
            value = number(element, around, levels)
            if value is UNUSABLE:
                raise Refusal("signal", "type", f"`{path}` is not a number")
        elif names and path in VSS_UNITS:
            raise Refusal("signal", "unit", f"`{path}` is in {VSS_UNITS[path]}: map it by its name")
        return _body("signal", read_signal, {"path": path, "value": value}, path)

    return output


def event_output(settings: EventMapping) -> Output:
    source = settings.name
    read_name = constant_reader(source) if isinstance(source, str) else value_reader(source)
    attributes = [(name, value_reader(one)) for name, one in settings.attributes.items()]
    test = conjunction(settings.when if isinstance(source, str) else (*settings.when, *source.when))

    def output(element: Any, around: Enclosing, levels: Levels, left_out: list[str]) -> Any:
        if test is not None and not test(element, around, levels):
            return NOT_APPLICABLE
        name = read_name(element, around, levels)
        if name is MISSING or name is ABSENT:
            return None
        if name is None:
            left_out.append("event")
            return None
        members = {key: read(element, around, levels) for key, read in attributes}
        present = {key: value for key, value in members.items() if value is not MISSING and value is not ABSENT}
        return _body("event", read_event, {"name": name, "attributes": present}, "event")

    return output


_WHY: Final = {"number-too-large": "range", "reserved-name": "reserved"}


def _body(field: str, read: Callable[[dict[str, Any], list[str]], Body], message: dict[str, Any], name: str) -> Body:
    try:
        return read(message, [])
    except MalformedMessage as error:
        raise Refusal(field, _WHY.get(error.reason, "type"), f"`{name}`: {error.reason}") from error
    except ValidationError as error:
        raise Refusal(field, "type", f"`{name}` cannot be used") from error


# The time.

_ISO_MINUTE: Final = re.compile(r"[0-9]{4}-?(?:[0-9]{2}-?[0-9]{2}|W[0-9]{2}(?:-?[0-9])?)[Tt ][0-9]{2}:?[0-9]{2}")
"""The beginning of a text in ISO 8601 up to its minute."""
_TIME_WHY: Final = {"time-without-offset": "zone", "impossible-time": "range", "time-not-read": "format"}
_COUNTED_WHY: Final = {"impossible-time": "range", "time-not-read": "type"}


def time_reader(source: TimeSource) -> TimeReader:
    """A function that reads the time of an element."""
    if source.is_arrival:
        return lambda _element, _around, _levels: None
    read, is_refused = reader_of(source), source.else_ == "refuse"
    if source.absent:
        read = _without_absent(read, source.absent)
    convert, whys = _time_converter(source), _COUNTED_WHY if source.unit in TIME_UNITS else _TIME_WHY
    about = {"type": "the time is not a number", "unit": f"the time is not in {source.unit}"}

    def time_us(element: Any, around: Enclosing, levels: Levels) -> int | None:
        value = read(element, around, levels)
        if value is MISSING or value is ABSENT or value is None or value == "":
            if is_refused:
                raise Refusal("time", "missing", "the message has no time")
            return None
        try:
            moment_us = convert(value)
        except MalformedMessage as error:
            why = whys.get(error.reason, "unit")
            no_zone = why == "zone" and source.zone is None
            detail = "the time has no offset: set `zone`" if no_zone else error.detail or about.get(why, "")
            raise Refusal("time", why, detail) from error
        if moment_us < SET_CLOCK_MS * 1_000:
            # A clock that was not set, a week of GPS that began again, or a number in another unit.
            if is_refused:
                raise Refusal("time", "range", "the time is before 2020")
            return None
        return moment_us

    return time_us


def _time_converter(source: TimeSource) -> Callable[[Any], int]:
    if (unit := source.unit) is not None and unit in TIME_UNITS:
        return lambda value: counted_time_us(value, unit)
    zone: tzinfo | None = None
    if source.zone is not None:
        from zoneinfo import ZoneInfo  # noqa: PLC0415 - few mappings have a zone

        zone = ZoneInfo(source.zone)
    form = source.format

    def of_text(value: Any) -> int:
        if not isinstance(value, str):
            raise Refusal("time", "type", "the time is not a text")
        try:
            if form is None:
                if not _ISO_MINUTE.match(value.strip()):
                    raise Refusal("time", "format", "the time has no minute")
                time_us = iso_time_us(value.strip(), zone)
            else:
                moment = datetime.strptime(value.strip(), form)
                moment = zoned(moment, zone) if moment.tzinfo is None else moment
                time_us = round(moment.timestamp() * 1_000_000)
        except (ValueError, OverflowError) as error:
            raise Refusal("time", "format", "the time does not have this form") from error
        if not 0 <= time_us < YEAR_2100_S * 1_000_000:
            raise Refusal("time", "range")
        return time_us

    return of_text


# The whole mapping.


class CompiledMapping:
    """One mapping, ready to read elements. Immutable."""

    def __init__(self, settings: MappingSettings) -> None:
        self.settings = settings
        self.label = settings.label
        self.each = None if settings.each is None else parse_path(settings.each).steps
        # Levels are known with the topic: these conditions choose the mapping before anything is decoded.
        self.level_conditions = tuple(one for one in settings.when if one.level is not None)
        self._test = conjunction([one for one in settings.when if one.level is None])
        self._time = time_reader(settings.time)
        position, joins = settings.position, settings.join is not None
        self._outputs: list[Output] = [] if position is None else [position_output(position, joins=joins)]
        self._outputs += [signal_output(one) for one in settings.signals]
        self._outputs += [event_output(one) for one in settings.events]
        self._key = _names_of_key(settings)
        self._only_position = len(self._outputs) == 1 and position is not None
        self.joins = joins
        self.has_texts = not self._only_position
        """Whether its records may have texts of any length."""

    def read(
        self, element: Any, around: Enclosing, levels: Levels, left_out: list[str]
    ) -> tuple[list[Body | PositionHalf], int | None] | None:
        """The bodies of an element and its time; None if the mapping's conditions exclude it. Raises Refusal."""
        if self._test is not None and not self._test(element, around, levels):
            return None
        bodies: list[Body | PositionHalf] = []
        applies = has_no_fix = False
        for output in self._outputs:
            body = output(element, around, levels, left_out)
            if body is NOT_APPLICABLE:
                continue
            applies = True
            if body is NO_FIX:
                has_no_fix = True
            elif body is not None:
                bodies.append(body)
        if not bodies:
            if not applies:
                return None
            raise self._without_bodies(has_no_fix=has_no_fix)
        if has_no_fix:
            left_out.append("position")
        return bodies, self._time(element, around, levels)

    def may_read(self, element: Any, around: Enclosing, levels: Levels) -> bool:
        """Whether the mapping's conditions hold for an element."""
        return self._test is None or self._test(element, around, levels)

    def join_key(self, levels: Levels) -> tuple[str, ...]:
        """What distinguishes the torn positions of a mapping: the levels that do not tell the halves apart."""
        return tuple(levels[name] for name in self._key)

    def _without_bodies(self, *, has_no_fix: bool) -> Refusal:
        if has_no_fix:
            return Refusal("position", "no-fix")
        if self._only_position:
            return Refusal("latitude", "missing", "`latitude` is missing")
        return Refusal("outputs", "missing", "no member of the mapping is in the message")


def _names_of_key(settings: MappingSettings) -> tuple[str, ...]:
    position = settings.position
    conditions = () if position is None else (*position.latitude.when, *position.longitude.when)
    apart = {one.level for one in conditions}
    return tuple(name for name in TopicPattern(settings.topic).names.values() if name not in apart)
