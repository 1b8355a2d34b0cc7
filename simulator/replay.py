"""A recorded track as a fleet: reads the CSV of a fleet's positions and sends them again as they were.

The columns that are read: vehicle_id, trip_id, timestamp (UTC when it says nothing else), latitude, longitude, bearing
(degrees, may be empty). Others are ignored. A row that says nothing new or makes no sense is left out and counted; a
bearing that is no finite number is refused with its line: the fix would be good, and its message no JSON.
"""

import csv
import io
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from simulator import messages
from simulator.errors import TrackError
from simulator.messages import VehicleMessage
from simulator.vehicle import Clock
from waybill.record import VEHICLE_CANARY, VEHICLE_EVENT, VEHICLE_POSITION
from waybill.settings import open_file

COLUMNS = ("vehicle_id", "trip_id", "timestamp", "latitude", "longitude", "bearing")
CANARY_EVERY = 25
MAX_ROWS = 1_000_000


class RecordedFix(NamedTuple):
    """One recorded position; `time_ms` since the epoch, degrees."""

    time_ms: int
    latitude: float
    longitude: float
    heading_deg: float | None
    trip: str


class Recording(NamedTuple):
    """The fixes of each recorded vehicle in order of time, how many rows there were, and why some were left out."""

    fixes: Mapping[str, Sequence[RecordedFix]]
    rows: int
    left_out: Mapping[str, int]


def read_recording(path: Path) -> Recording:
    """Read a recorded track. Raises TrackError if it is no such file or nothing in it can be used."""
    try:
        # A spreadsheet writes a byte order mark, which would be a part of the first column's name.
        with io.TextIOWrapper(open_file(path), newline="", encoding="utf-8-sig") as lines:
            reader = csv.DictReader(lines)
            missing = [column for column in COLUMNS if column not in (reader.fieldnames or ())]
            if missing:
                raise TrackError(str(path), 1, f"columns are missing: {', '.join(missing)}")
            return _recording(path, reader)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise TrackError(str(path), 0, f"cannot be read: {error}") from error


def _recording(path: Path, rows: "csv.DictReader[str]") -> Recording:
    found: dict[str, dict[int, RecordedFix]] = {}
    left_out: Counter[str] = Counter()
    count = 0
    for count, row in enumerate(rows, start=1):
        if count > MAX_ROWS:
            raise TrackError(str(path), rows.line_num, f"more than {MAX_ROWS} rows; split the file")
        fix = _fix(row)
        if isinstance(fix, RecordedFix) and not math.isfinite(fix.heading_deg or 0.0):
            raise TrackError(str(path), rows.line_num, f"the bearing {row['bearing'].strip()!r} is not a finite number")
        vehicle = (row["vehicle_id"] or "").strip()
        if isinstance(fix, str):
            left_out[fix] += 1
        elif not vehicle:
            left_out["no vehicle"] += 1
        elif fix.time_ms in found.setdefault(vehicle, {}):
            left_out["second row of the same vehicle and time"] += 1
        else:
            found[vehicle][fix.time_ms] = fix
    tracks = {
        vehicle: tuple(fixes[time] for time in sorted(fixes)) for vehicle, fixes in sorted(found.items()) if fixes
    }
    if not tracks:
        raise TrackError(str(path), 0, f"none of {count} rows can be used: {dict(left_out)}")
    return Recording(tracks, count, dict(left_out))


def _fix(row: dict[str, str]) -> RecordedFix | str:
    """The fix of a row, or why there is none."""
    try:
        time = datetime.fromisoformat(row["timestamp"].strip())
        latitude, longitude = float(row["latitude"]), float(row["longitude"])
        heading = float(row["bearing"]) % 360.0 if (row["bearing"] or "").strip() else None
    except (ValueError, TypeError, AttributeError):
        return "a field that cannot be read"
    # Put this way it refuses NaN too, of which every comparison is false.
    if not (-90 <= latitude <= 90 and -180 <= longitude <= 180):
        return "a position that is not on Earth"
    if time.tzinfo is None:
        time = time.replace(tzinfo=UTC)
    # Rounded: timestamp() is a double, and the milliseconds of it may lie just below a whole number.
    return RecordedFix(round(time.timestamp() * 1000), latitude, longitude, heading, (row["trip_id"] or "").strip())


def replay_vehicle(device: str, fixes: Sequence[RecordedFix], start_ms: int, clock: Clock) -> Iterator[VehicleMessage]:
    """Every message of one recorded vehicle: its fixes, an event at both ends of each trip, and canaries between."""
    for index, fix in enumerate(fixes):
        before = fixes[index - 1] if index else None
        after = fixes[index + 1] if index + 1 < len(fixes) else None
        offset_s = (fix.time_ms - start_ms) / 1000
        time_ms = clock(fix.time_ms)
        if before is None or before.trip != fix.trip:
            yield VehicleMessage(
                offset_s, device, VEHICLE_EVENT, messages.event(time_ms, "trip_start", {"trip": fix.trip})
            )
        payload = messages.position(time_ms, fix.latitude, fix.longitude, heading_deg=fix.heading_deg)
        yield VehicleMessage(offset_s, device, VEHICLE_POSITION, payload)
        if index % CANARY_EVERY == 0:
            yield VehicleMessage(offset_s, device, VEHICLE_CANARY, messages.canary(time_ms, f"{device}/{index}"))
        if after is None or after.trip != fix.trip:
            yield VehicleMessage(
                offset_s, device, VEHICLE_EVENT, messages.event(time_ms, "trip_end", {"trip": fix.trip})
            )
