"""What a trial's device sends: a line to copy, the user's own track, or a simulated drive; how a message is read."""

from __future__ import annotations

import csv
import json
import math
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any, Final, NamedTuple
from xml.etree import ElementTree as ET

from paho.mqtt.client import topic_matches_sub

from deploy.trial.errors import TrialError
from deploy.trial.ladder import MessageHeard
from deploy.trial.servers import Place
from edge_agent.intake.messages import Parsed, parse_message
from simulator import drive, generated_scenario
from simulator.messages import event, position
from waybill.record import (
    VEHICLE_CANARY,
    VEHICLE_EVENT,
    VEHICLE_POSITION,
    VEHICLE_SIGNAL,
    Position,
    Raw,
    meant_contract_topic,
)
from waybill.settings import file_fault, nearest


class Fix(NamedTuple):
    t_ms: int
    latitude: float
    longitude: float

    @property
    def place(self) -> Place:
        return Place(self.latitude, self.longitude)


class Message(NamedTuple):
    """One MQTT message to the vehicle's broker."""

    topic: str
    payload: bytes


_METRES_A_DEGREE: Final = 111_320.0


def apart_m(one: Place, other: Place) -> float:
    """The approximate distance of two near places in metres."""
    east = (one.longitude - other.longitude + 180) % 360 - 180
    east *= math.cos(math.radians((one.latitude + other.latitude) / 2))
    return math.hypot(east, one.latitude - other.latitude) * _METRES_A_DEGREE


# What a message becomes: the same code as in the agent.

_TOPICS: Final = (VEHICLE_POSITION, VEHICLE_SIGNAL, VEHICLE_EVENT, VEHICLE_CANARY)
_SAMPLE_BYTES: Final = 160
Read = Callable[[str, bytes], tuple[Parsed, ...]]


@dataclass(frozen=True, slots=True)
class MessageReader:
    """Reads messages as the agent does. `filters`: what the agent subscribes to."""

    filters: tuple[str, ...]
    read: Read = parse_message

    def heard(self, topic: str, payload: bytes, now_ms: int) -> tuple[MessageHeard, Fix | None]:
        """What the ladder learns of a message, and the newest fix in it."""
        sample = payload[:_SAMPLE_BYTES].decode(errors="replace")
        if not any(topic_matches_sub(one, topic) for one in self.filters):
            return MessageHeard(topic=topic, is_read=False, near=nearest(topic, _TOPICS), sample=sample), None
        parsed = self.read(topic, payload)
        raw = next((one for one in parsed if one.malformed), None)
        kinds = tuple(type(one.body).__name__.lower() for one in parsed if not isinstance(one.body, Raw))
        seen = MessageHeard(topic=topic, kinds=kinds, sample=sample)
        if not kinds and raw is not None:
            meant = (meant_contract_topic(topic) or nearest(topic, _TOPICS)) if "topic" in raw.malformed else ""
            return replace(seen, malformed=raw.malformed, detail=raw.detail, near=meant), None
        times = [one.device_time_us // 1000 for one in parsed if one.device_time_us is not None]
        fixes = [
            Fix(one.device_time_us // 1000, one.body.latitude, one.body.longitude)
            for one in parsed
            if isinstance(one.body, Position) and one.device_time_us is not None
        ]
        lag_s = (now_ms - max(times)) / 1000 if times else None
        return replace(seen, lag_s=lag_s), max(fixes, default=None)


# The line to copy: it drives 600 m in 40 seconds, into the fence around `place`.

_APART_DEG: Final = 0.0058
_DRIVEN_S: Final = 40


def line_to_copy(place: Place, port: int) -> str:
    """A command that publishes two fixes with fresh times; the second one is at `place`."""
    far = round(place.latitude + (_APART_DEG if place.latitude < 89 else -_APART_DEG), 7)
    fixes = ", ".join(
        f'{{\\"time\\": {time}, \\"latitude\\": {latitude}, \\"longitude\\": {place.longitude}}}'
        for time, latitude in (
            (f"$(($(date +%s%3N) - {_DRIVEN_S * 1000}))", far),
            ("$(date +%s%3N)", place.latitude),
        )
    )
    return f'mosquitto_pub -p {port} -q 1 -t {VEHICLE_POSITION} -m "[{fixes}]"'


def owntracks_line(place: Place, port: int, topic: str) -> str:
    """The same as two messages of OwnTracks, whose times are in seconds."""
    far = round(place.latitude + (_APART_DEG if place.latitude < 89 else -_APART_DEG), 7)
    messages = " ".join(
        f'"{{\\"_type\\":\\"location\\",\\"tst\\":{time},\\"lat\\":{latitude},\\"lon\\":{place.longitude},\\"acc\\":5}}"'
        for time, latitude in ((f"$(($(date +%s) - {_DRIVEN_S}))", far), ("$(date +%s)", place.latitude))
    )
    return f"printf '%s\\n' {messages} | mosquitto_pub -p {port} -q 1 -t {shlex.quote(topic)} -l"


# Tracks, shifted so that the last fix is now.

MAX_FIXES: Final = 50_000
_MAX_BYTES: Final = 64 << 20
_AT_ONCE: Final = 200
_STANDING_M: Final = 30
_STANDING_FIXES: Final = 4
_TIMES = ("time", "t_ms", "timestamp", "datetime", "date")
_LATITUDES, _LONGITUDES = ("lat", "latitude"), ("lon", "lng", "long", "longitude")


@dataclass(frozen=True, slots=True)
class Track:
    """Fixes in order of time. `label` says where they come from."""

    fixes: tuple[Fix, ...]
    label: str

    @property
    def end(self) -> Place:
        return self.fixes[-1].place

    def shifted(self, now_ms: int) -> Track:
        """The same track, whose last fix is now."""
        by_ms = now_ms - self.fixes[-1].t_ms
        return replace(self, fixes=tuple(one._replace(t_ms=one.t_ms + by_ms) for one in self.fixes))

    def messages(self) -> Iterator[Message]:
        """The fixes in arrays, then an event with the label."""
        fixes = iter(self.fixes)
        while part := [*islice(fixes, _AT_ONCE)]:
            listed = b",".join(position(*one) for one in part)
            yield Message(VEHICLE_POSITION, b"[" + listed + b"]")
        yield Message(VEHICLE_EVENT, event(self.fixes[-1].t_ms, self.label.split(":")[0], {"about": self.label}))


def read_track(file: Path) -> Track:
    """A track of a CSV or GPX file. Raises TrialError, which names the file and the line."""
    try:
        if file.stat().st_size > _MAX_BYTES:
            raise TrialError(f"{file} has more than {_MAX_BYTES >> 20} MiB: cut it")
        found = [*islice(_gpx(file) if file.suffix.lower() == ".gpx" else _csv(file), MAX_FIXES + 1)]
    except csv.Error as error:
        raise TrialError(f"{file} is not CSV: {error}") from error
    except (OSError, UnicodeDecodeError) as error:
        raise TrialError(f"{file} cannot be read: {file_fault(error)}") from error
    except ET.ParseError as error:
        raise TrialError(f"{file} is not GPX: {error}") from error
    if len(found) > MAX_FIXES:
        raise TrialError(f"{file} has more than {MAX_FIXES:,} fixes: cut it")
    if len(found) < 2:
        raise TrialError(f"{file} has {len(found)} fixes with a time and a place; a track has two or more")
    # Of equal times one fix is kept: the agent would store both.
    fixes = sorted({one.t_ms: one for one in reversed(found)}.values())
    moving = _until_parked(fixes)
    left_out = f"; {len(fixes) - len(moving)} fixes at its end left out, where it stands" if moving != (*fixes,) else ""
    return Track(moving, f"replay: {file.name}, shifted in time{left_out}")


def simulated_track(seed: int) -> Track:
    """Twenty minutes of a simulated vehicle."""
    scenario = generated_scenario(seed=seed, vehicles=1, regions=("eu",))
    scenario = scenario.model_copy(update={"duration_s": 1200, "interval_s": 5})
    fixes = [
        Fix(members["time"], members["latitude"], members["longitude"])
        for one in drive(scenario)
        if one.topic == VEHICLE_POSITION and (members := _members(one.payload))
    ]
    return Track(_until_parked(sorted(fixes)), "simulated: no vehicle drove this")


def _until_parked(fixes: Sequence[Fix]) -> tuple[Fix, ...]:
    """Without the minutes that a vehicle stands at its end: an entry before them would be too old for an alert."""
    moving = [at for at, one in enumerate(fixes) if apart_m(one.place, fixes[-1].place) > _STANDING_M]
    return tuple(fixes[: (moving[-1] if moving else 0) + _STANDING_FIXES])


def _members(payload: bytes) -> dict[str, Any]:
    try:
        found = json.loads(payload)
    except ValueError:
        return {}
    names = {"time", "latitude", "longitude"}
    is_fix = isinstance(found, dict) and all(isinstance(found.get(name), int | float) for name in names)
    return found if is_fix else {}


def _csv(file: Path) -> Iterator[Fix]:
    with file.open(encoding="utf-8-sig", newline="") as lines:
        head = lines.read(4096)
        lines.seek(0)
        try:
            dialect: Any = csv.Sniffer().sniff(head.splitlines()[0] if head else "", delimiters=",;\t")
        except csv.Error:
            dialect = csv.excel
        rows = csv.DictReader(lines, dialect=dialect)
        names = {name.strip().lower(): name for name in rows.fieldnames or ()}
        columns = [_column(file, names, wanted) for wanted in (_TIMES, _LATITUDES, _LONGITUDES)]
        for row in rows:
            time, latitude, longitude = (row[one] for one in columns)
            yield _fix(f"{file}:{rows.line_num}", time, latitude, longitude)


def _column(file: Path, names: dict[str, str], wanted: Sequence[str]) -> str:
    found = next((names[one] for one in wanted if one in names), None)
    if found is None:
        raise TrialError(f"{file} has no column {' or '.join(wanted)}; its first line has {', '.join(names) or 'none'}")
    return found


def _gpx(file: Path) -> Iterator[Fix]:
    for number, (_, element) in enumerate(ET.iterparse(file)):  # noqa: S314 - the user's own file
        if element.tag.rpartition("}")[2] != "trkpt":
            continue
        time = next((one.text for one in element if one.tag.rpartition("}")[2] == "time"), None)
        if time is not None:
            yield _fix(f"{file}, element {number}", time, element.get("lat"), element.get("lon"))
        element.clear()


def _fix(where: str, time: str | None, latitude: str | None, longitude: str | None) -> Fix:
    try:
        t_ms, lat, lon = _milliseconds((time or "").strip()), float(latitude or ""), float(longitude or "")
    except (ValueError, OverflowError) as error:
        raise TrialError(
            f"{where} is not a fix: time {time!r}, latitude {latitude!r}, longitude {longitude!r}"
        ) from error
    if not (-90 <= lat <= 90 and -180 <= lon <= 180):
        raise TrialError(f"{where}: latitude {lat} or longitude {lon} is out of range")
    return Fix(t_ms, lat, lon)


_SECONDS_UNTIL: Final = 1e11
"""A greater number is in milliseconds."""


def _milliseconds(text: str) -> int:
    """Numbers are seconds or milliseconds since 1970; a time without offset is UTC: the track is shifted anyway."""
    try:
        number = float(text)
    except ValueError:
        moment = datetime.fromisoformat(text)
        return round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)
    if not 0 <= number < 1e14:
        raise ValueError("no time")
    return round(number * 1000 if number < _SECONDS_UNTIL else number)
