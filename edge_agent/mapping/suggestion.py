"""Proposes mappings from samples of foreign messages. Pure.

What a sample shows is written down: topics, paths, the unit of a time, degrees. A unit that it does not show is `"?"`,
and settings with a `?` are refused until a person replaces it: a speed that is read in a wrong unit is billed wrongly.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from edge_agent.errors import AgentError
from edge_agent.intake.messages import TIME_UNITS, YEAR_2000_S, YEAR_2100_S, read_number
from edge_agent.mapping.formats import UndecodableMessage, decode_json
from edge_agent.mapping.parser import compile_mappings
from edge_agent.mapping.settings import MappingSettings, preset_names
from edge_agent.vehicle_broker import ARRIVED_TOPIC
from waybill.record import NO_MAPPING
from waybill.settings import printable

MAX_SAMPLES: Final = 10_000
MAX_GROUPS: Final = 64
MAX_LEAVES: Final = 2_000
MAX_UNUSED: Final = 40
"""Members without a role that are listed in a comment."""
_FIELDS, _LEAST_NUMBERS = (4, 256), 2
"""Of a line of CSV."""

_ROLES: Final = {
    "time": ("tst", "timestamp", "ts", "time", "datetime", "utc", "fixtime", "gpstime", "devicetime", "eventtime"),
    "latitude": ("latitude", "lat"),
    "longitude": ("longitude", "lon", "lng", "long"),
    "altitude": ("altitude", "alt", "elevation", "ele"),
    "speed": ("speed", "spd", "vel", "velocity", "gpsspeed", "sog"),
    "heading": ("heading", "hdg", "cog", "course", "bearing"),
    "accuracy": ("accuracy", "gpsaccuracy", "horizontalaccuracy", "hacc", "acc"),
    "odometer": ("odometer", "odo", "mileage", "totaldistance"),
}
"""Names of members without signs, the most certain first. HDOP is no accuracy."""
_POSITION: Final = ("latitude", "longitude", "altitude", "speed", "heading", "accuracy")
_SIGNALS: Final = {
    "odometer": "Vehicle.TraveledDistance",
    "speed": "Vehicle.Speed",
    "heading": "Vehicle.CurrentLocation.Heading",
    "altitude": "Vehicle.CurrentLocation.Altitude",
}
_SUFFIXES: Final = {
    "kmh": "km/h",
    "kph": "km/h",
    "mph": "mph",
    "mps": "m/s",
    "kn": "kn",
    "knots": "kn",
    "km": "km",
    "m": "m",
    "ft": "ft",
    "deg": "deg",
    "rad": "rad",
}
_DIMENSION_SUFFIXES: Final = {
    "speed": frozenset({"km/h", "mph", "m/s", "kn"}),
    "altitude": frozenset({"m", "ft", "km"}),
    "accuracy": frozenset({"m", "ft", "km"}),
    "odometer": frozenset({"m", "km"}),
    "heading": frozenset({"deg", "rad"}),
    "latitude": frozenset({"deg", "rad"}),
    "longitude": frozenset({"deg", "rad"}),
}
_WORDS: Final = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|[0-9]+")
_BARE: Final = re.compile(r'[^\s."\[\]/\\*]+')


class SamplesUnreadable(AgentError):
    """A file of samples that has no message."""


class Sample(NamedTuple):
    """One message of the broker."""

    topic: str
    payload: bytes


def read_samples(text: str) -> list[Sample]:
    """The messages of a file: lines `TOPIC PAYLOAD`, or JSON objects with `topic` and `payload`.

    They are what `mosquitto_sub -v` and `mosquitto_sub -F %j` write. Raises SamplesUnreadable.
    """
    samples = list[Sample]()
    # not splitlines: a text of JSON may have other separators of lines
    for line in (one.rstrip("\r") for one in text.split("\n")):
        if len(samples) >= MAX_SAMPLES:
            break
        if line.startswith("$G") and samples:
            # The second sentence of a message that `mosquitto_sub -v` printed over several lines.
            last = samples.pop()
            samples.append(Sample(last.topic, last.payload + b"\r\n" + line.encode()))
        elif (sample := _sample(line)) is not None and not sample.topic.startswith(ARRIVED_TOPIC):
            samples.append(sample)
    if not samples:
        raise SamplesUnreadable(
            "no message in the samples: a line is TOPIC PAYLOAD, as written by `mosquitto_sub -v -t '#'`"
        )
    return samples


def _sample(line: str) -> Sample | None:
    if line.startswith("{"):
        try:
            message = decode_json(line.encode("utf-8", "replace"))
        except UndecodableMessage:
            return None
        topic, payload = message.get("topic"), message.get("payload")
        if not isinstance(topic, str) or payload is None:
            return None
        return Sample(topic, (payload if isinstance(payload, str) else json.dumps(payload)).encode())
    # A topic may have blanks; a payload of JSON begins with a bracket.
    match = re.fullmatch(r"(\S.*?) ([\[{].*)", line) or re.fullmatch(r"(\S+) (.+)", line)
    return Sample(match[1], match[2].encode()) if match else None


# Members of messages, and what their names and values show.


@dataclass
class _Leaf:
    """A member: the arrays above it as a path (""), its path below, and its values."""

    each: tuple[str, ...]
    steps: tuple[str, ...]
    values: list[Any] = field(default_factory=list)

    @property
    def role(self) -> tuple[int, str] | None:
        """The rank among names of its role, and the role."""
        word, _ = _word_and_unit(self.steps[-1]) if self.steps else ("", "")
        for role, names in _ROLES.items():
            if word in names:
                return names.index(word), role
        return None


def _word_and_unit(name: str) -> tuple[str, str]:
    """`gpsSpeed_kmh` is `gpsspeed` and `km/h`."""
    words = [word.lower() for word in _WORDS.findall(name)]
    if len(words) > 1 and words[-1] in _SUFFIXES:
        return "".join(words[:-1]), _SUFFIXES[words[-1]]
    if len(words) > 2 and "".join(words[-2:]) in _SUFFIXES:  # speed_km_h, odometer_km
        return "".join(words[:-2]), _SUFFIXES["".join(words[-2:])]
    return "".join(words), ""


def _unit(role: str, leaf: _Leaf, pair: Sequence[_Leaf]) -> str:
    """The unit of a number as far as name and values show it, or `?`. `pair`: latitude and longitude."""
    _, unit = _word_and_unit(leaf.steps[-1])
    if unit in _DIMENSION_SUFFIXES[role]:
        return unit
    values = [value for one in pair for value in one.values] if leaf in pair else leaf.values
    greatest = max((abs(number) for number in map(read_number, values) if number is not None), default=0.0)
    if role in {"latitude", "longitude"}:
        # Half a circle has 3.15 radians. A large whole number is a fraction of a degree, of unknown size.
        return "deg" if 3.15 < greatest <= 360 else "?"
    if role == "heading":
        return "deg" if 6.3 < greatest <= 360 else "?"
    return "?"


def _time(leaf: _Leaf) -> tuple[str, str]:
    """The members of a time's table after its path, and a comment."""
    value = leaf.values[0]
    number = read_number(value)
    if number is not None:
        for unit, (per_second, _) in TIME_UNITS.items():
            if YEAR_2000_S <= number / per_second < YEAR_2100_S:
                moment = datetime.fromtimestamp(number / per_second, UTC)
                return f'unit = "{unit}"', f"{_shown(value)} is {moment:%Y-%m-%dT%H:%M:%SZ}"
        return 'unit = "?"', f"{_shown(value)} is not a time of this century in s, ms, us or ns"
    try:
        has_offset = datetime.fromisoformat(str(value)).tzinfo is not None
    except ValueError:
        return 'unit = "?"', f"{_shown(value)}: iso, or a format of strptime instead of the unit"
    if has_offset:
        return 'unit = "iso"', _shown(value)
    return 'unit = "iso", zone = "?"', f"{_shown(value)} has no offset: the zone, such as Europe/Helsinki or UTC"


def _leaves(value: Any, each: tuple[str, ...] = (), steps: tuple[str, ...] = ()) -> Iterator[_Leaf]:
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _leaves(inner, each, (*steps, name))
    elif isinstance(value, list) and value and all(isinstance(one, dict) for one in value):
        for one in value:
            yield from _leaves(one, (*each, *steps), ())
    elif value is not None:
        yield _Leaf(each, steps, [value])


# Groups of messages that one mapping can read.


@dataclass
class _Group:
    """Messages with topics of one form. `leaves`: by the path of arrays and the path below."""

    format: str
    delimiter: str = ""
    topics: list[str] = field(default_factory=list)
    messages: int = 0
    leaves: dict[tuple[tuple[str, ...], tuple[str, ...]], _Leaf] = field(default_factory=dict)

    def add(self, topic: str, leaves: Iterable[_Leaf]) -> None:
        self.messages += 1
        if topic not in self.topics and len(self.topics) < MAX_LEAVES:
            self.topics.append(topic)
        for leaf in leaves:
            known = self.leaves.get((leaf.each, leaf.steps))
            if known is not None:
                known.values += leaf.values[: max(0, 100 - len(known.values))]
            elif len(self.leaves) < MAX_LEAVES:
                self.leaves[leaf.each, leaf.steps] = leaf

    def roles(self) -> dict[str, _Leaf]:
        """The best member of each role; those in the same element as the latitude are better."""
        found = dict[str, _Leaf]()
        places = [leaf for leaf in self.leaves.values() if leaf.role and leaf.role[1] == "latitude"]
        each = min(places, key=lambda leaf: (len(leaf.steps), leaf.role)).each if places else ()

        def rank(leaf: _Leaf) -> tuple[bool, int, int]:
            assert leaf.role is not None
            return leaf.each != each, leaf.role[0], len(leaf.steps)

        for leaf in sorted((one for one in self.leaves.values() if one.role), key=rank):
            assert leaf.role is not None
            # Above the element only the message itself can be reached by its name.
            if leaf.each in {each, ()}:
                found.setdefault(leaf.role[1], leaf)
        return found


def _decoded(payload: bytes) -> tuple[str, Any]:
    if payload.lstrip().startswith((b"$", b"!")):
        return "nmea", None
    try:
        value = decode_json(payload)
    except UndecodableMessage:
        return "text", payload.decode("utf-8", "replace").strip()
    return ("json", value) if isinstance(value, dict | list) else ("text", value)


def _csv_row(text: object) -> tuple[str, list[str]] | None:
    """The delimiter and fields of the first line, if it is CSV: 4 to 256 fields, with two numbers or more."""
    line = text.partition("\n")[0] if isinstance(text, str) else ""
    for delimiter in ",;\t|":
        try:
            fields = [field.strip() for field in next(csv.reader([line], delimiter=delimiter), [])]
        except csv.Error:
            continue
        numbers = sum(read_number(field) is not None for field in fields)
        if _FIELDS[0] <= len(fields) <= _FIELDS[1] and numbers >= _LEAST_NUMBERS:
            return delimiter, fields
    return None


def _groups(samples: Iterable[Sample]) -> list[_Group]:
    groups = dict[tuple[Any, ...], _Group]()
    for topic, payload in samples:
        form, value = _decoded(payload)
        levels = topic.split("/")
        begin = next((level for level in levels if level), "")
        delimiter = ""
        leaves: list[_Leaf]
        key: tuple[Any, ...]
        if form == "text" and (row := _csv_row(value)) is not None:
            delimiter, fields = row
            leaves = [_Leaf((), (f"column{place}",), [field]) for place, field in enumerate(fields, 1)]
            form, key = "csv", ("csv", len(levels), begin, delimiter, len(fields))
        elif form == "text":
            leaves = [_Leaf((), (levels[-1],), [value])]
            key = (form, len(levels), begin, *levels[1:-1])
        else:
            leaves = list(_leaves(value)) if form == "json" else []
            has_place = {"latitude", "longitude"} <= {leaf.role[1] for leaf in leaves if leaf.role}
            key = (form, len(levels), begin, has_place)
        if key in groups or len(groups) < MAX_GROUPS:
            groups.setdefault(key, _Group(form, delimiter)).add(topic, leaves)
    return list(groups.values())


def _pattern(topics: Sequence[str], named_last: str = "") -> str:
    """The topics as one pattern: levels that differ get a name, if possible that of the level before."""
    levels, names = list[str](), set[str]()
    columns = list(zip(*(topic.split("/") for topic in topics), strict=False))
    for place, column in enumerate(columns):
        if named_last and place == len(columns) - 1:
            levels.append(f"{{{named_last}}}")
        elif len(set(column)) == 1 and not set(column[0]) & set("{}+#"):
            levels.append(column[0])
        else:
            before = levels[-1] if levels else ""
            name = before.rstrip("s") if re.fullmatch(r"[a-z][a-z_]{1,30}", before) else ""
            name = name if name and name not in names else f"level{place + 1}"
            names.add(name)
            levels.append(f"{{{name}}}")
    return "/".join(levels)


# The proposal as TOML.


def propose(samples: Sequence[Sample]) -> str:
    """Settings for these messages: `[[mappings]]` tables in TOML with comments, and `?` for each unknown unit."""
    parts, names, rest = list[str](), set[str](), list(samples)
    for preset in preset_names():
        count, unread = _read_by(preset, rest)
        if count:
            names.add(preset)
            rest = unread
            parts.append(
                f"# {_count(count)} that a preset reads.\n"
                f"[[mappings]]\nname = {_text(preset)}\npreset = {_text(preset)}\n"
            )
    parts += [_mapping(group, names) for group in _groups(rest)]
    return "\n".join(parts)


def _read_by(preset: str, samples: Sequence[Sample]) -> tuple[int, list[Sample]]:
    """How many samples a preset reads, and those whose topics are not its own."""
    try:
        parser = compile_mappings((MappingSettings.model_validate({"name": preset, "preset": preset}),))
    except (ValueError, ImportError):  # its extra is not installed
        return 0, [*samples]
    count, others = 0, list[Sample]()
    for sample in samples:
        parsed = parser.parse(*sample)
        count += any(one.mapping and not one.malformed for one in parsed)
        if not any(one.mapping or one.malformed == NO_MAPPING for one in parsed):
            others.append(sample)
    return count, others


def _mapping(group: _Group, names: set[str]) -> str:
    if group.format == "nmea":
        topic = _pattern(group.topics)
        name = _name(topic, names)
        return f'# {_count(group.messages)}.\n[[mappings]]\nname = {name}\npreset = "nmea"\ntopic = {_text(topic)}\n'
    if group.format == "csv":
        return _csv_mapping(group, names)
    roles = group.roles()
    is_flat = group.format == "text"
    topic = _pattern(group.topics, "member" if is_flat else "")
    if not {"latitude", "longitude"} <= roles.keys():
        unused = _unused(group, {})
        return (
            f"# {_count(group.messages)} of {printable(topic)}: no latitude and longitude found. If they have other"
            f" names, write the mapping yourself:\n# docs/connect.md, A mapping of your own.\n{unused}"
        )
    pair = roles["latitude"], roles["longitude"]
    each = pair[0].each
    lines = [
        f"# {_count(group.messages)}. Replace each ? before use: the samples do not show the unit.",
        "[[mappings]]",
        f"name = {_name(topic, names)}",
        f"topic = {_text(topic)}",
    ]
    if is_flat:
        lines.append('format = "text"')
    if each:
        lines.append(f"each = {_text(_path(each))}")
    lines += [*_time_lines(roles.get("time"), each, is_flat=is_flat), "", "[mappings.position]"]
    # In topics of their own they come at other times than a position.
    members = _POSITION[:2] if is_flat else _POSITION
    lines += [_source(role, roles[role], pair, is_flat=is_flat) for role in members if role in roles]
    for role, path in _SIGNALS.items():
        if role in roles and role not in members:
            source = _source(role, roles[role], pair, is_flat=is_flat).replace(f"{role} =", "value =", 1)
            lines += ["", "[[mappings.signals]]", f"path = {_text(path)}", source]
    if is_flat:
        lines += ["", "[mappings.join]", "settle_ms = 500", "hold_s = 30"]
    return "\n".join(lines) + "\n" + _unused(group, roles)


def _csv_mapping(group: _Group, names: set[str]) -> str:
    """The form of lines whose columns have no names."""
    topic = _pattern(group.topics)
    columns = [f"    {_text(leaf.steps[0])},  # {_shown(leaf.values[0])}" for leaf in group.leaves.values()]
    lines = [
        f"# {_count(group.messages)} of CSV without names. Name the columns, and replace each ?.",
        "[[mappings]]",
        f"name = {_name(topic, names)}",
        f"topic = {_text(topic)}",
        'format = "csv"',
        'time = { path = "?", unit = "?" }',
        "",
        "[mappings.csv]",
        "columns = [",
        *columns,
        "]",
        f"delimiter = {_text(group.delimiter)}",
        "",
        "[mappings.position]",
        *(f'{name} = {{ path = "?", unit = "?" }}' for name in ("latitude", "longitude")),
    ]
    return "\n".join(lines) + "\n"


def _count(messages: int) -> str:
    return f"{messages} message{'' if messages == 1 else 's'}"


def _time_lines(leaf: _Leaf | None, each: tuple[str, ...], *, is_flat: bool) -> list[str]:
    if leaf is None or is_flat:
        # Whether the time of arrival is good enough is no question of the format.
        return ['time = { else = "?" }  # no time in these messages; "arrival": the time when the agent receives them']
    rest, about = _time(leaf)
    return [f"time = {{ path = {_text(_from(leaf, each))}, {rest} }}  # {about}"]


def _source(role: str, leaf: _Leaf, pair: Sequence[_Leaf], *, is_flat: bool) -> str:
    each = pair[0].each
    unit = _unit(role, leaf, pair)
    table = f"path = {_text('.' if is_flat else _from(leaf, each))}, unit = {_text(unit)}"
    if is_flat:
        table += f', when = [{{ level = "member", is = {_text(leaf.steps[-1])} }}]'
    about = f"  # {_shown(leaf.values[0])}"
    if unit == "?" and role in _DIMENSION_SUFFIXES:
        about += f": {' or '.join(sorted(_DIMENSION_SUFFIXES[role]))}?"
    if role == "accuracy":
        about += " The radius that contains 68 % of the positions; delete this line if it is anything else"
    return f"{role} = {{ {table} }}{about}"


def _unused(group: _Group, roles: dict[str, _Leaf]) -> str:
    used = {id(leaf) for leaf in roles.values()}
    rest = [leaf for leaf in group.leaves.values() if id(leaf) not in used][:MAX_UNUSED]
    shown = (
        f"#   {printable(_path((*leaf.each, *leaf.steps)))} = {_shown(leaf.values[0])}\n" for leaf in rest if leaf.steps
    )
    text = "".join(shown)
    return f"# Not used:\n{text}" if text else ""


def _from(leaf: _Leaf, each: tuple[str, ...]) -> str:
    """The path of a member, from the element or from the whole message."""
    return _path(leaf.steps) if leaf.each == each else f"/{_path(leaf.steps)}"


def _path(steps: Sequence[str]) -> str:
    quoted = ('"' + step.replace("\\", "\\\\").replace('"', '\\"') + '"' for step in steps)
    return ".".join(step if _BARE.fullmatch(step) else quote for step, quote in zip(steps, quoted, strict=True))


def _name(topic: str, names: set[str]) -> str:
    words = re.findall(r"[a-z0-9]+", re.sub(r"\{\w+\}|level\d+", "", topic.lower()))
    base = "-".join(words)[:40] or "mapping"
    base = base if base[0].isalpha() else f"m-{base}"
    name, number = base, 2
    while name in names:
        name, number = f"{base}-{number}", number + 1
    names.add(name)
    return _text(name)


def _text(text: str) -> str:
    """A text of TOML."""
    if set(text) & set('"\\') and "'" not in text and text.isprintable():
        return f"'{text}'"
    signs = ("\\" + sign if sign in '"\\' else sign if sign.isprintable() else f"\\U{ord(sign):08X}" for sign in text)
    return '"' + "".join(signs) + '"'


def _shown(value: Any) -> str:
    return printable(json.dumps(value, ensure_ascii=False))[:60]
