"""The settings of a mapping: how messages of a foreign topic become positions, signals and events."""

from __future__ import annotations

import hashlib
import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from functools import cache, cached_property
from importlib.util import find_spec
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import AfterValidator, ConfigDict, Field, StringConstraints, field_validator, model_validator

from edge_agent.mapping.paths import TopicPattern, parse_path
from edge_agent.mapping.units import UNKNOWN, check_signal_unit, check_unit
from waybill.record import DEVICE_PATTERN, RESERVED_PREFIX
from waybill.settings import Settings, name_advice, nearest

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

    from edge_agent.mapping.can_frames import CanDatabase

Scalar = bool | int | float | Annotated[str, StringConstraints(max_length=1024)]
MAX_MAPPINGS = 64
MAX_OUTPUTS = 128
Format = Literal["json", "csv", "text", "nmea", "sparkplug-b", "gtfs-realtime", "can"]
EXTRAS = {
    "sparkplug-b": ("google.protobuf", "edge-protobuf"),
    "gtfs-realtime": ("google.protobuf", "edge-protobuf"),
    "can": ("cantools", "edge-can"),
}
"""Formats that need a package outside of the extra `edge`, and the extra that brings it."""
SPARKPLUG_NAMESPACE = "spBv1.0"
"""The level of the topic before the group, the kind of message, the edge node and the device."""
VEHICLE_NAMES = ("id", "label", "license_plate")
"""What may name the vehicle of a GTFS entity, the best one first."""
TimeUnit = Literal["s", "ms", "us", "ns", "iso"]
_DIGEST_CHARACTERS = 8


class _Model(Settings):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, populate_by_name=False)


def _parsed_path(text: str) -> str:
    if text == UNKNOWN:
        raise ValueError(f"the path is not known yet: replace '{UNKNOWN}'")
    parse_path(text)
    return text


Path = Annotated[str, AfterValidator(_parsed_path)]
Name = Annotated[str, StringConstraints(min_length=1, max_length=256)]


class Condition(_Model):
    """What a member or a level of the topic has to be. One of `path` and `level`, and one test."""

    path: Path | None = None
    """The member that is compared."""
    level: str | None = None
    """The named level of the topic that is compared, instead of a member."""
    is_: Scalar | None = Field(default=None, alias="is")
    """It has to be equal to this."""
    is_not: Scalar | None = None
    """It has to be different, or missing."""
    in_: tuple[Scalar, ...] | None = Field(default=None, alias="in", min_length=1, max_length=256)
    """It has to be equal to one of these."""
    exists: bool | None = None
    """It has to be in the message, or must not be."""

    @model_validator(mode="after")
    def _has_one_test(self) -> Self:
        if (self.path is None) == (self.level is None):
            raise ValueError("a condition needs either path or level")
        tests = (self.is_, self.is_not, self.in_, self.exists)
        if sum(one is not None for one in tests) != 1:
            raise ValueError("a condition needs one of is, is_not, in and exists")
        return self


Conditions = Annotated[tuple[Condition, ...], Field(max_length=16)]


class ValueSource(_Model):
    """Where a value comes from: one of `path`, `level` and `constant`."""

    path: Path | None = None
    """The member of the message."""
    level: str | None = None
    """The named level of the topic."""
    constant: Scalar | None = None
    """A value that is always the same."""
    absent: Annotated[tuple[Scalar, ...], Field(max_length=32)] = ()
    """Values that mean that there is none."""
    when: Conditions = ()
    """The value counts only if all of these hold."""

    @model_validator(mode="after")
    def _has_one_source(self) -> Self:
        if sum(one is not None for one in (self.path, self.level, self.constant)) != 1:
            raise ValueError("needs one of path, level and constant")
        return self


def _unit_of(dimension: str) -> AfterValidator:
    return AfterValidator(lambda unit: check_unit(unit, dimension))


class AngleSource(ValueSource):
    """An angle, in its unit."""

    unit: Annotated[str, _unit_of("angle")] = Field(default="", validate_default=True)


class LengthSource(ValueSource):
    """A length, in its unit."""

    unit: Annotated[str, _unit_of("length")] = Field(default="", validate_default=True)


class SpeedSource(ValueSource):
    """A speed, in its unit."""

    unit: Annotated[str, _unit_of("speed")] = Field(default="", validate_default=True)


class SignalSource(ValueSource):
    """The value of a signal; the unit is checked together with the signal's path."""

    unit: str = ""
    """The unit of the value, or "none"."""


class TimeSource(_Model):
    """The time of a message. Without `path` and `level`, `else` has to be "arrival"."""

    path: Path | None = None
    """The member with the time."""
    level: str | None = None
    """The named level of the topic with the time."""
    unit: TimeUnit | None = None
    """The unit of a number since 1970, or `iso`, a text in ISO 8601."""
    format: Annotated[str, StringConstraints(min_length=2, max_length=64)] | None = None
    """The form of a text, as in Python's strptime, instead of `unit`."""
    zone: str | None = None
    """The time zone of texts without an offset."""
    absent: Annotated[tuple[Scalar, ...], Field(max_length=32)] = ()
    """Values that mean that the message has no time."""
    else_: Literal["refuse", "arrival"] = Field(default="refuse", alias="else")
    """What happens with a message without a time: it stays raw, or it gets the time of its arrival."""

    @property
    def is_arrival(self) -> bool:
        """Whether messages never have a time of their own."""
        return self.path is None and self.level is None

    @field_validator("zone")
    @classmethod
    def _zone_is_known(cls, zone: str | None) -> str | None:
        if zone is not None:
            from zoneinfo import ZoneInfo, available_timezones  # noqa: PLC0415 - few mappings have a zone

            try:
                ZoneInfo(zone)
            except (KeyError, ValueError, OSError):
                raise ValueError(f"no time zone {zone!r}{name_advice(zone, available_timezones())}") from None
        return zone

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        if self.path is not None and self.level is not None:
            raise ValueError("needs one of path and level")
        if self.is_arrival:
            if self.else_ != "arrival" or self.unit or self.format or self.zone or self.absent:
                raise ValueError('needs path and unit; or only else = "arrival" for messages that have no time')
            return self
        if (self.unit is None) == (self.format is None):
            raise ValueError("needs a unit: one of s, ms, us, ns and iso; or a format")
        if self.zone is not None and self.unit not in {None, "iso"}:
            raise ValueError(f'zone is for texts: unit = "{self.unit}" counts from 1970 in UTC')
        if self.format is not None:
            _check_time_format(self.format, self.zone)
        return self


_DIRECTIVE = re.compile(r"%.")
_UTC_WORD = re.compile(r"\b(?:Z|UTC|GMT)\b")
_UTC_ZONES = frozenset({"UTC", "UCT", "GMT", "Zulu", "Universal", "Greenwich"})
_SAMPLE_MOMENT = datetime(2026, 11, 22, 14, 51, 4, tzinfo=UTC)


def _check_time_format(form: str, zone: str | None) -> None:
    """Raises ValueError for a form that loses the moment, or reads it in the wrong zone."""
    directives = _DIRECTIVE.findall(form)
    if "%Z" in directives:
        raise ValueError("%Z reads the name of a zone without its offset: use %z, or the name as text with its zone")
    if zone is None and "%z" not in directives:
        raise ValueError("a format without %z needs a zone")
    is_local = zone is not None and zone.removeprefix("Etc/") not in _UTC_ZONES and "%z" not in directives
    if is_local and (word := _UTC_WORD.search(_DIRECTIVE.sub(" ", form))):
        raise ValueError(f'the format has {word[0]}, which is UTC: set zone = "UTC"')
    try:
        text = _SAMPLE_MOMENT.strftime(form)
        moment = datetime.strptime(text, form)
    except ValueError as error:
        raise ValueError(f"the format {form!r} reads no time: {error}") from None
    if moment.timetuple()[:5] != _SAMPLE_MOMENT.timetuple()[:5]:
        raise ValueError(f"the format {form!r} loses a part of year, month, day, hour and minute: {text!r}")


class PositionMapping(_Model):
    """How a message becomes a position."""

    latitude: AngleSource
    longitude: AngleSource
    altitude: LengthSource | None = None
    speed: SpeedSource | None = None
    heading: AngleSource | None = None
    """The course over ground, clockwise from north."""
    accuracy: LengthSource | None = None
    """The radius that contains the position with 68 % probability."""
    absent: Annotated[tuple[tuple[float, float], ...], Field(max_length=16)] = ()
    """Pairs of latitude and longitude that mean that the receiver has no fix, in degrees."""
    when: Conditions = ()
    """The position counts only if all of these hold."""


class SignalMapping(_Model):
    """How a message becomes a signal."""

    path: Name
    """The signal's VSS path; `{name}` stands for a level of the topic."""
    value: SignalSource
    when: Conditions = ()
    """The signal counts only if all of these hold."""

    @model_validator(mode="after")
    def _has_its_unit(self) -> Self:
        _unreserved(self.path)
        check_signal_unit(self.path, self.value.unit)
        return self


class EventMapping(_Model):
    """How a message becomes an event."""

    name: Name | ValueSource
    """A constant name, or where it stands."""
    attributes: dict[str, ValueSource] = Field(default_factory=dict, max_length=64)
    """Attributes of the event, by name."""
    when: Conditions = ()
    """The event counts only if all of these hold."""

    @field_validator("name")
    @classmethod
    def _name_is_free(cls, name: str | ValueSource) -> str | ValueSource:
        return _unreserved(name) if isinstance(name, str) else name


class CsvSettings(_Model):
    """The form of lines of CSV."""

    columns: Annotated[tuple[Name, ...], Field(min_length=1, max_length=256)]
    """The names of the columns. A line with another number of fields stays raw."""
    delimiter: Annotated[str, StringConstraints(min_length=1, max_length=1)] = ","
    """What separates the columns."""


class CanSettings(_Model):
    """How frames of a CAN bus are read."""

    dbc: FilePath
    """The DBC file with the messages and signals."""

    @cached_property
    def database(self) -> CanDatabase:
        """The messages of the file as it was when the settings were loaded. Raises ValueError."""
        from edge_agent.mapping.can_frames import CanDatabase  # noqa: PLC0415 - of an extra

        return CanDatabase(self.dbc)


class JoinSettings(_Model):
    """How the halves of a torn position come together."""

    settle_ms: int = Field(default=500, ge=1, le=60_000)
    """How long a half waits for the other one."""
    hold_s: float = Field(default=30.0, ge=0, le=86_400)
    """How old a half may be that has not changed since; 0: a held half is never used."""


class MappingExample(_Model):
    """A message, and what has to become of it."""

    topic: str
    payload: str = ""
    """The message, as text."""
    payload_hex: Annotated[str, StringConstraints(pattern=r"^(?:[0-9A-Fa-f]{2}|\s)*$")] = ""
    """The message in hexadecimal digits, instead of `payload`."""
    gives: Annotated[tuple[dict[str, Any], ...], Field(max_length=64)] = ()
    """The records: kind and the members that are compared."""
    refused: str = ""
    """Why the message stays raw, instead of `gives`."""

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        if self.payload and self.payload_hex:
            raise ValueError("an example needs either payload or payload_hex")
        if bool(self.gives) == bool(self.refused):
            raise ValueError("an example needs either gives or refused")
        return self

    @property
    def message(self) -> bytes:
        return bytes.fromhex(self.payload_hex) if self.payload_hex else self.payload.encode()


class MappingSettings(_Model):
    """One mapping. Messages of its topic that it cannot read safely are carried raw."""

    name: Annotated[str, StringConstraints(pattern=f"^{DEVICE_PATTERN.pattern}$")]
    """Name of the mapping, on each record and in `status`."""
    preset: str = ""
    """A mapping of the package that this one completes; members here replace those of the preset."""
    topic: Name
    """The topics: `{name}` is a level with a name, `+` another level, a last `#` all further levels."""
    format: Format = "json"
    """The form of the messages."""
    each: Path | None = None
    """The elements to read, each like a message; without it the message, or each element of its array."""
    when: Conditions = ()
    """The mapping reads a message only if all of these hold."""
    time: TimeSource
    position: PositionMapping | None = None
    signals: Annotated[tuple[SignalMapping, ...], Field(max_length=MAX_OUTPUTS)] = ()
    events: Annotated[tuple[EventMapping, ...], Field(max_length=MAX_OUTPUTS)] = ()
    csv: CsvSettings | None = None
    """Set for `format = "csv"`."""
    can: CanSettings | None = None
    """Set for `format = "can"`."""
    join: JoinSettings | None = None
    """Set for positions whose halves come in several messages."""
    examples: Annotated[tuple[MappingExample, ...], Field(max_length=256)] = ()
    """Messages with their results; `check-config` compares them."""

    @model_validator(mode="before")
    @classmethod
    def _with_preset(cls, tables: Any) -> Any:
        if isinstance(tables, dict) and isinstance(preset := tables.get("preset"), str) and preset:
            return _merged({"name": preset, **preset_tables(preset)}, tables)
        return tables

    @field_validator("topic")
    @classmethod
    def _topic_is_a_pattern(cls, topic: str) -> str:
        TopicPattern(topic)
        return topic

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        if self.position is None and not self.signals and not self.events:
            raise ValueError(f"mapping {self.name}: needs position, signals or events")
        if self.each is not None and not all(isinstance(step, str) for step in parse_path(self.each).steps):
            raise ValueError(f"mapping {self.name}: each: arrays are read element by element: leave out the brackets")
        if self.each is not None and self.format != "json":
            raise ValueError(f"mapping {self.name}: each is for JSON: every line of {self.format} is an element")
        if self.join is not None and self.position is None:
            raise ValueError(f"mapping {self.name}: join is for positions: set position")
        self._check_format()
        known = set(TopicPattern(self.topic).names.values())
        levels = [(where, one.level) for where, one in self.readers() if one.level is not None]
        levels += [(f"signals.{one.path}", level) for one in self.signals for level in level_names(one.path)]
        for where, level in levels:
            if level not in known:
                have = f"; known are {', '.join(sorted(known))}" if known else "; the topic has no named level"
                raise ValueError(f"mapping {self.name}: {where}: no level {level!r}{name_advice(level, known) or have}")
        return self

    def _check_format(self) -> None:
        package, extra = EXTRAS.get(self.format, ("", ""))
        with suppress(ModuleNotFoundError):  # of the package around it
            package = "" if package and find_spec(package) else package
        if package:
            raise ValueError(
                f'mapping {self.name}: format "{self.format}" needs the package {package}: '
                f"install the extra {extra} (docs/install.md)"
            )
        if self.format == "sparkplug-b" and SPARKPLUG_NAMESPACE not in self.topic.split("/"):
            raise ValueError(
                f"mapping {self.name}: topic: the kind of message is in the topic: "
                f"{SPARKPLUG_NAMESPACE}/{{group}}/{{type}}/{{node}}/{{device}}"
            )
        if (self.format == "csv") != (self.csv is not None):
            raise ValueError(f'mapping {self.name}: csv.columns and format = "csv" belong together')
        if (self.format == "can") != (self.can is not None):
            raise ValueError(f'mapping {self.name}: can.dbc and format = "can" belong together')
        if self.can is None:
            return
        try:
            database = self.can.database
            for place, part in self.readers():
                if part.path is not None:
                    unit = "none" if isinstance(part, TimeSource) else getattr(part, "unit", "none")
                    database.check_member(place, part.path, unit)
        except ValueError as error:
            raise ValueError(f"mapping {self.name}: {error}") from None

    def readers(self) -> Iterator[tuple[str, ValueSource | TimeSource | Condition]]:
        """The place of each source and condition, and what reads there."""
        for place, part in self.parts():
            if isinstance(part, ValueSource | TimeSource):
                yield place, part
            yield from ((f"{place}.when".lstrip("."), one) for one in getattr(part, "when", ()))

    @property
    def may_mix_vehicles(self) -> bool:
        """Whether messages hold the positions of many vehicles, and no condition chooses one of them."""
        named = {f"vehicle.vehicle.{name}" for name in VEHICLE_NAMES} | {"id"}
        return self.format == "gtfs-realtime" and not any(one.path in named for one in self.when)

    @property
    def form(self) -> tuple[Any, ...]:
        """What decides how a message is decoded."""
        return self.format, self.csv, self.can

    def parts(self) -> Iterator[tuple[str, Any]]:
        """Each source and each table with conditions, with its place."""
        yield "", self
        yield "time", self.time
        if self.position is not None:
            yield "position", self.position
            for name in ("latitude", "longitude", "altitude", "speed", "heading", "accuracy"):
                if (source := getattr(self.position, name)) is not None:
                    yield f"position.{name}", source
        for signal in self.signals:
            yield f"signals.{signal.path}", signal
            yield f"signals.{signal.path}.value", signal.value
        for number, event in enumerate(self.events):
            yield f"events.{number}", event
            if not isinstance(event.name, str):
                yield f"events.{number}.name", event.name
            yield from ((f"events.{number}.attributes.{name}", source) for name, source in event.attributes.items())

    @property
    def digest(self) -> str:
        """The beginning of SHA-256 over the mapping's meaning: without name, preset and examples."""
        about = self.model_dump(mode="json", by_alias=True, exclude_none=True, exclude={"name", "examples", "preset"})
        if self.can is not None:
            about["can"] = self.can.database.digest  # of what is in the file, wherever it is
        text = json.dumps(about, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        return hashlib.sha256(text.encode()).hexdigest()[:_DIGEST_CHARACTERS]

    @property
    def label(self) -> str:
        """`name@digest`, as it stands on each record."""
        return f"{self.name}@{self.digest}"


def level_names(path: str) -> list[str]:
    """The names of levels in a signal's path. Raises ValueError for an odd bracket."""
    names = []
    for part in path.split("{")[1:]:
        name, bracket, _ = part.partition("}")
        if not bracket:
            raise ValueError(f"{path!r}: a bracket is not closed")
        names.append(name)
    return names


def check_mappings(mappings: tuple[MappingSettings, ...]) -> tuple[MappingSettings, ...]:
    """The mappings, if they can work together. Raises ValueError."""
    names = [one.name for one in mappings]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ValueError(f"two mappings have the name {twice!r}")
    patterns = [TopicPattern(one.topic) for one in mappings]
    for second, mine in enumerate(mappings):
        for first, other in enumerate(mappings[:second]):
            if patterns[first].overlaps(patterns[second]) and not _exclude(
                other, mine, patterns[first], patterns[second]
            ):
                raise ValueError(
                    f"mappings {other.name} and {mine.name}: a message can have both topics, {other.topic} and "
                    f"{mine.topic}: add a `when` to both that excludes the other"
                )
    return mappings


def _exclude(one: MappingSettings, other: MappingSettings, pattern: TopicPattern, its: TopicPattern) -> bool:
    """Whether no element can satisfy the conditions of both."""
    for mine in one.when:
        for theirs in other.when:
            if mine.level is not None and theirs.level is not None:
                same = pattern.level_at(mine.level) == its.level_at(theirs.level)
            else:
                # A path means the same member only in the same form and from the same start.
                same = mine.path == theirs.path is not None and (one.form, one.each) == (other.form, other.each)
            if same and _excludes(mine, theirs):
                return True
    return False


def _excludes(one: Condition, other: Condition) -> bool:
    allowed, others = _allowed(one), _allowed(other)
    if allowed is not None and others is not None:
        return not any(_may_both_match(mine, theirs) for mine in allowed for theirs in others)
    for some, rest in ((allowed, other), (others, one)):
        if some is not None and rest.is_not is not None:
            return all(equal_scalars(value, rest.is_not) for value in some)
        if some is not None and rest.exists is False:
            return True
    return {one.exists, other.exists} == {True, False}


def _allowed(condition: Condition) -> tuple[Scalar, ...] | None:
    return condition.in_ if condition.is_ is None else (condition.is_,)


def _may_both_match(one: Scalar, other: Scalar) -> bool:
    """Whether one value of a message can be equal to both: the text "1" is equal to the number 1, too."""
    if isinstance(one, str) == isinstance(other, str):
        return equal_scalars(one, other)
    text, number = (one, other) if isinstance(one, str) else (other, one)
    try:
        return not isinstance(number, bool) and float(text) == number
    except ValueError:
        return False


def equal_scalars(value: Any, other: Any) -> bool:
    """Whether two plain values are equal; true is no 1."""
    return bool(value == other) and (type(value) is bool) == (type(other) is bool)


def _unreserved(name: str) -> str:
    if name.startswith(RESERVED_PREFIX):
        raise ValueError(f"{name!r}: names that begin with {RESERVED_PREFIX} are reserved")
    return name


# Presets: mappings in files of the package.

_ORIGINS = ("path", "level", "constant")


@cache
def preset_names() -> tuple[str, ...]:
    """The presets of this package."""
    return tuple(sorted(file.name.removesuffix(".toml") for file in _folder().iterdir() if file.name.endswith(".toml")))


def preset_tables(name: str) -> dict[str, Any]:
    """The tables of a preset. Raises ValueError with the nearest known name."""
    if name not in preset_names():
        near = nearest(name, preset_names())
        advice = f"did you mean {near!r}? " if near else ""
        raise ValueError(f"no preset {name!r}; {advice}known are {', '.join(preset_names())}")
    return tomllib.loads((_folder() / f"{name}.toml").read_text(encoding="utf-8"))


def _folder() -> Traversable:
    from importlib import resources  # noqa: PLC0415 - few agents use a preset

    return resources.files("edge_agent.mapping") / "presets"


def _merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Tables are merged member by member; anything else, a list too, is replaced."""
    moved = any(name in over for name in _ORIGINS)
    whole = {name: value for name, value in base.items() if not (moved and name in _ORIGINS)}
    for key, value in over.items():
        below = whole.get(key)
        whole[key] = _merged(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return whole
