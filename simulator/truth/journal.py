"""Reads the journal: which records exist, and the positions among them in the order of their making."""

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from simulator.truth.errors import TruthError
from simulator.truth.made import (
    Made,
    made_canary,
    made_event,
    made_position,
    made_raw,
    made_signal,
    time_us_of,
)


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
