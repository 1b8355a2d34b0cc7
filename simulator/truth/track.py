"""From the positions of a device to its tracks: what is excluded, and where a track breaks.

The order of the rules: sort by device time (equal times in the order of their making), keep the first of each time,
leave out fixes at 0°/0° and those less accurate than 100 m, then in one pass over what is left the fixes that jump out
and back, and last break the track at gaps and at what remains impossibly fast.
"""

import base64
import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, NamedTuple

from geographiclib.geodesic import Geodesic

from simulator.truth.shapes import TruthError
from simulator.truth.track import TruePlace, as_reported, cleaned, uncertain_m

# A record as it exists, whichever side shows it: kind, device time and content on the grid on which it travels.

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
POSITION_GRID = (
    ("latitude", 10_000_000),
    ("longitude", 10_000_000),
    ("altitude_m", 1_000),
    ("speed_mps", 1_000),
    ("heading_deg", 100),
    ("accuracy_m", 1_000),
)


class Made(NamedTuple):
    """One record that exists. `time_us` is None for raw payloads: only the agent's clock dates them."""

    kind: str
    time_us: int | None
    content: str


def made_position(
    time_us: int,
    latitude: float,
    longitude: float,
    *,
    altitude_m: float | None = None,
    speed_mps: float | None = None,
    heading_deg: float | None = None,
    accuracy_m: float | None = None,
) -> Made:
    """A position; numbers in degrees, metres, metres per second; None where the record has none."""
    values = (latitude, longitude, altitude_m, speed_mps, heading_deg, accuracy_m)
    content = {
        # Whole numbers of the grid compare exactly, whichever doubles led to them.
        name: round(value * grid)
        for (name, grid), value in zip(POSITION_GRID, values, strict=True)
        if value is not None
    }
    return Made("position", time_us, _canonical(content))


def made_signal(time_us: int, path: str, value: float | bool | str) -> Made:
    """A signal; a truth value is the text "true" or "false", as tables keep it, and a number is a double."""
    kept: float | str = (
        # Asked first: to Python a bool is also a number.
        str(value).lower() if isinstance(value, bool) else value if isinstance(value, str) else float(value)
    )
    return Made("signal", time_us, _canonical({"path": path, "value": kept}))


def made_event(time_us: int, name: str, attributes: str | dict[str, Any]) -> Made:
    """An event; attributes as a mapping or as the text of a JSON object, in any order of keys."""
    mapping = json.loads(attributes) if isinstance(attributes, str) else attributes
    return Made("event", time_us, _canonical({"name": name, "attributes": mapping}))


def made_canary(time_us: int, name: str) -> Made:
    """A canary."""
    return Made("canary", time_us, _canonical({"id": name}))


def is_customer_event(made: Made) -> bool:
    """Whether the record is an event that a customer pays for: not one of the system's own."""
    return made.kind == "event" and not json.loads(made.content)["name"].startswith("waybill.")


def content_bytes(made: Made) -> int:
    """How much a record says: 16 bytes, 8 for each number, and the bytes of its texts or its payload.

    An event of the system's own says nothing that a customer pays for.
    """
    content = json.loads(made.content)
    match made.kind:
        case "position":
            return 16 + 8 * len(content)
        case "signal":
            value = content["value"]
            return 16 + _length(content["path"]) + (_length(value) if isinstance(value, str) else 8)
        case "event" if not is_customer_event(made):
            return 0
        case "event":
            # as a vehicle writes them: without blanks, and in ASCII
            attributes = json.dumps(content["attributes"], separators=(",", ":"))
            return 16 + _length(content["name"]) + _length(attributes)
        case "canary":
            return 16 + _length(content["id"])
        case _:
            return 16 + _length(content["topic"]) + len(base64.b64decode(content["payload_base64"]))


def made_raw(topic: str, payload: bytes) -> Made:
    """A payload that nobody understood."""
    encoded = base64.b64encode(payload).decode("ascii")
    return Made("raw", None, _canonical({"topic": topic, "payload_base64": encoded}))


def time_us_of(time: int | str) -> int:
    """Microseconds since the epoch of a payload's time: whole milliseconds or ISO 8601 with an offset."""
    if isinstance(time, int):
        return time * 1000
    # In whole numbers: timestamp() is a double, which rounds microseconds.
    return (datetime.fromisoformat(time) - EPOCH) // timedelta(microseconds=1)


def _length(text: str) -> int:
    return len(text.encode("utf-8"))


def _canonical(content: dict[str, Any]) -> str:
    return json.dumps(content, sort_keys=True, separators=(",", ":"))


# Reads the journal: which records exist, and the positions among them in the order of their making.


class TruePosition(NamedTuple):
    """A fix on the grid: 1e-7 degrees; accuracy in millimetres, speed in millimetres a second, None if not said."""

    time_us: int
    longitude_e7: int
    latitude_e7: int
    accuracy_mm: int | None
    speed_mm_s: int | None = None


def position_of(made: Made) -> TruePosition:
    """The fix that a record of a position is."""
    grid = json.loads(made.content)
    assert made.time_us is not None
    return TruePosition(
        made.time_us, grid["longitude"], grid["latitude"], grid.get("accuracy_m"), grid.get("speed_mps")
    )


class Entry(NamedTuple):
    """A line of the journal: whose record, the record, and the fix if it is one."""

    device: str
    made: Made
    position: TruePosition | None


def read_journal(path: Path) -> Iterator[Entry]:
    """The entries of a journal in order. Raises TruthError with the line."""
    try:
        with path.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, start=1):
                try:
                    yield _entry(json.loads(line))
                except (ValueError, KeyError, TypeError, RecursionError) as error:
                    raise TruthError(f"{path}, line {number}: {error!r}") from error
    except FileNotFoundError as error:
        raise TruthError(f"there is no journal {path}: run `fleet-simulator drive` first, which writes it") from error
    except OSError as error:
        raise TruthError(f"{path}: cannot be read: {error}") from error


def _entry(line: dict[str, Any]) -> Entry:
    device, kind, content = line["device"], line["kind"], line["content"]
    if kind == "raw":
        return Entry(device, made_raw(content["topic"], base64.b64decode(content["payload_base64"])), None)
    time_us = time_us_of(line["time"])
    if kind == "position":
        made = made_position(time_us, **content)
        return Entry(device, made, position_of(made))
    if kind == "signal":
        return Entry(device, made_signal(time_us, content["path"], content["value"]), None)
    if kind == "event":
        return Entry(device, made_event(time_us, content["name"], content.get("attributes", {})), None)
    if kind == "canary":
        return Entry(device, made_canary(time_us, content["id"]), None)
    raise ValueError(f"unknown kind {kind!r}")


TrueRule = Literal["standstill", "every_fix"]

MAX_GAP_US = 300 * 1_000_000
MAX_SPEED_MPS = 70.0
WORST_ACCURACY_MM = 100_000
NULL_ISLAND_E7 = 10  # 1e-6 degrees
SPIKE_MPS, SPIKE_US = 10.0, 60 * 1_000_000


def metres(latitude_a: float, longitude_a: float, latitude_b: float, longitude_b: float) -> float:
    """The length of the WGS84 geodesic between two places in degrees."""
    length: float = Geodesic.WGS84.Inverse(latitude_a, longitude_a, latitude_b, longitude_b, Geodesic.DISTANCE)["s12"]
    return length


def places(positions: list[TruePosition], rule: TrueRule = "every_fix") -> Iterator[list[TruePlace]]:
    """Where the device was, of each of its unbroken tracks."""
    for track in tracks(positions, rule):
        lengths = [0.0, *(_step_m(before, after) for before, after in pairwise(track))]
        yield as_reported(track, lengths) if rule == "every_fix" else cleaned(track, lengths)


def tracks(positions: list[TruePosition], rule: TrueRule = "every_fix") -> Iterator[list[TruePosition]]:
    """The unbroken tracks of one device; `positions` in the order in which it made them."""
    track: list[TruePosition] = []
    for fix in _without_jumps(_plausible(_one_of_each_time(positions)), rule):
        if track and (_gap_us(track[-1], fix) > MAX_GAP_US or _too_fast(track[-1], fix, rule)):
            yield track
            track = []
        track.append(fix)
    if track:
        yield track


def _one_of_each_time(positions: list[TruePosition]) -> list[TruePosition]:
    kept: list[TruePosition] = []
    # sorted() is stable: of equal times the one that was made first comes first, and is kept.
    for fix in sorted(positions, key=lambda fix: fix.time_us):
        if not kept or kept[-1].time_us != fix.time_us:
            kept.append(fix)
    return kept


def _plausible(positions: list[TruePosition]) -> list[TruePosition]:
    return [
        fix
        for fix in positions
        if not (abs(fix.latitude_e7) < NULL_ISLAND_E7 and abs(fix.longitude_e7) < NULL_ISLAND_E7)
        and (fix.accuracy_mm is None or fix.accuracy_mm <= WORST_ACCURACY_MM)
    ]


def _without_jumps(positions: list[TruePosition], rule: TrueRule) -> list[TruePosition]:
    """Without each fix that is too far from both neighbours while they are not too far from each other."""
    return [fix for index, fix in enumerate(positions) if not _jumps(positions, index, rule)]


def _jumps(positions: list[TruePosition], index: int, rule: TrueRule) -> bool:
    # A jump goes out and back, which the first and the last fix cannot.
    if index in {0, len(positions) - 1}:
        return False
    if rule == "standstill" and _is_spike(positions[max(index - 2, 0) : index + 3]):
        return True
    before, fix, after = positions[index - 1 : index + 2]
    near = _gap_us(before, fix) <= MAX_GAP_US and _gap_us(fix, after) <= MAX_GAP_US
    out_and_back = _too_fast(before, fix, rule) and _too_fast(fix, after, rule)
    return near and out_and_back and not _too_fast(before, after, rule)


def _is_spike(around: list[TruePosition]) -> bool:
    """Of five fixes in a row the one in the middle: driven to and back within two minutes, from one place at rest."""
    if len(around) < 5:
        return False
    first, before, fix, after, last = around
    out = all(
        _gap_us(*step) <= SPIKE_US and _step_m(*step) > SPIKE_MPS * _gap_us(*step) / 1e6 + _off_m(*step)
        for step in ((before, fix), (fix, after))
    )
    rests = all(_step_m(*pair) <= _off_m(*pair) for pair in ((first, before), (before, after), (after, last)))
    return out and rests and max(_gap_us(first, fix), _gap_us(fix, last)) <= MAX_GAP_US


def _off_m(before: TruePosition, after: TruePosition) -> float:
    """How far two places may be off together."""
    return uncertain_m(before) + uncertain_m(after)


def _gap_us(before: TruePosition, after: TruePosition) -> int:
    return after.time_us - before.time_us


def _step_m(before: TruePosition, after: TruePosition) -> float:
    return metres(
        before.latitude_e7 / 1e7, before.longitude_e7 / 1e7, after.latitude_e7 / 1e7, after.longitude_e7 / 1e7
    )


def _too_fast(before: TruePosition, after: TruePosition, rule: TrueRule) -> bool:
    """By the rule `standstill` the places may be off by as much as they state."""
    off_m = _off_m(before, after) if rule == "standstill" else 0.0
    return _step_m(before, after) > MAX_SPEED_MPS * (_gap_us(before, after) / 1e6) + off_m
