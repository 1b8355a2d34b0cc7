"""`cloud-jobs measure`: fences on a recorded track, before anybody is charged. Starts no Spark."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, BinaryIO, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import typer
from numpy.typing import NDArray
from pyarrow import csv

from cloud_jobs.terminal import write_csv
from geo.spatial import (
    Encounters,
    Fence,
    FenceError,
    FenceReport,
    FenceSet,
    FixError,
    Fixes,
    Gate,
    GateSet,
    SpatialError,
    TrackRule,
    Tracks,
    TrackSettings,
    build_tracks,
    charged_crossings,
    charged_entries,
    fences_from_geojson,
    find_encounters,
    use_by_fence,
)
from geo.spatial.geojson import box_of, latitude_first
from geo.spatial.ids import id_fault
from waybill.settings import near_equal, nearest, one_line, open_file
from waybill.settings.loading import SIMILAR

HEADER: Final = ("device_id", "fence_id", "km", "seconds", "entries")
WHOLE_TRACK: Final = "*"
MAX_LINE_CHARACTERS: Final = 2_000
MAX_ZERO_ROWS: Final = 100_000
FAILED: Final = 1
REFUSED: Final = 3
"""Exit status: written, but features were refused."""

FixesFile = Annotated[
    Path,
    typer.Option("--fixes", exists=True, dir_okay=False, help="CSV: device_id,t_ms,lat,lon[,speed_mps,accuracy_m]"),
]
MAX_GAP_S: Final = 31_622_400.0
MAX_FENCE_BYTES: Final = 1 << 28


def finite(value: float) -> float:
    """Refuses what a range lets pass: nan lies in every range."""
    if math.isnan(value):
        raise typer.BadParameter("it is not a number")
    return value


MaxGap = Annotated[
    float,
    typer.Option(
        min=0.001, max=MAX_GAP_S, callback=finite, help="A longer gap between two fixes breaks the track (seconds)"
    ),
]
Plausibility = Annotated[
    bool,
    typer.Option("--plausibility/--no-plausibility", help="Exclude fixes of impossible speed, place or accuracy"),
]
_USUAL: Final = TrackSettings()
DEFAULT_RULE: Final = _USUAL.rule
DEFAULT_ACCURACY_M: Final = _USUAL.accuracy_not_said_m
DEFAULT_BUFFER_M: Final = _USUAL.buffer_m
Rule = Annotated[
    TrackRule,
    typer.Option(help="standstill: remove receiver noise; every_fix: use each position as reported"),
]
AccuracyNotSaid = Annotated[
    float,
    typer.Option(
        min=0.001,
        max=100.0,
        callback=finite,
        help="Accuracy assumed for a fix without one (metres; standstill)",
    ),
]
Buffer = Annotated[
    float,
    typer.Option(
        min=0.0,
        max=1_000.0,
        callback=finite,
        help="Distance from a border that counts as certain (metres; standstill)",
    ),
]


def measure(
    *,
    fixes: FixesFile,
    fences: Annotated[Path, typer.Option(exists=True, dir_okay=False, help="GeoJSON features with properties.id")],
    out: Annotated[Path, typer.Option(dir_okay=False, help="CSV: device_id,fence_id,km,seconds,entries")],
    max_gap_s: MaxGap = 300.0,
    plausibility: Plausibility = True,
    rule: Rule = DEFAULT_RULE,
    accuracy_not_said_m: AccuracyNotSaid = DEFAULT_ACCURACY_M,
    buffer_m: Buffer = DEFAULT_BUFFER_M,
) -> None:
    """Measure kilometres, seconds and entries of each device in each fence, and on its whole track (fence *).

    Exit status: 0; 1 when nothing was written; 2 for wrong options; 3 when features were refused, each named
    on standard error, and the rest was written.

    Example: cloud-jobs measure --fixes fixes.csv --fences fences.geojson --out usage.csv
    """
    refuse_to_replace(out, fixes, fences)
    with file_errors_as_messages():
        read = read_fix_file(fixes)
        report = read_fence_file(fences)
        settings = track_settings(max_gap_s, plausibility, rule, accuracy_not_said_m, buffer_m)
        tracks = build_tracks(read.fixes, settings)
        usable = len(report.fences) + len(report.gates)
        if not usable:
            raise FenceError(f"{fences} holds no fence that can be used; nothing is written")
        fences_made, gates_made = FenceSet(report.fences), GateSet(report.gates)
        write_csv(out, HEADER, usage_rows(read.devices, tracks, fences_made, gates_made, settings))
    kinds = f"{count_text(len(report.fences), 'fence')} and {count_text(len(report.gates), 'gate')}"
    zeros = "" if writes_zeros(read.devices, fences_made, gates_made) else "; rows of zeros are left out, too many"
    print_summary(tracks, f"{kinds}, {len(report.refused)} refused; written to {out}{zeros}")
    apart = location_mismatch(tracks, report)
    if apart:
        typer.echo(apart, err=True)
    if report.refused:
        raise typer.Exit(REFUSED)


def usage_rows(
    devices: tuple[str, ...], tracks: Tracks, fences: FenceSet, gates: GateSet, settings: TrackSettings
) -> Iterator[tuple[str, str, str, str, int]]:
    """The rows of the CSV: for each device its fences in text order, its gates, then the whole track.

    A gate has entries (forward crossings) only. What a device never was in, or never crossed, has a row of zeros if
    `writes_zeros`.
    """
    use = use_by_fence(tracks, fences, lambda pieces: charged_entries(tracks, fences, pieces, settings))
    end = tracks.segments()
    device = tracks.fixes.device[tracks.row[end]]
    ms = tracks.fixes.t_ms[tracks.row[end]] - tracks.fixes.t_ms[tracks.row[end - 1]]
    all_metres = np.bincount(device, weights=tracks.metres[end], minlength=len(devices))
    all_ms = np.bincount(device, weights=ms, minlength=len(devices))
    zeros, gate_ids = writes_zeros(devices, fences, gates), _gate_ids(gates)
    first = np.searchsorted(use.device, np.arange(len(devices) + 1))
    forward = _forward(tracks, gates, settings)
    for number, name in enumerate(devices):
        rows = range(first[number], first[number + 1])
        used = {int(use.fence[at]): (use.metres[at], use.ms[at], int(use.entries[at])) for at in rows}
        for fence in range(len(fences.names)) if zeros else used:
            yield _row(name, fences.names[fence], *used.get(fence, (0.0, 0.0, 0)))
        crossed = forward.get(number, Counter())
        for gate in gate_ids if zeros else sorted(crossed, key=gate_ids.__getitem__):
            yield _row(name, gate, 0.0, 0.0, crossed[gate])
        yield _row(name, WHOLE_TRACK, all_metres[number], all_ms[number], 0)


def writes_zeros(devices: tuple[str, ...], fences: FenceSet, gates: GateSet) -> bool:
    """Is there a row for every pair of a device and a fence or gate? Not of more than `MAX_ZERO_ROWS`."""
    return len(devices) * (len(fences.names) + len(_gate_ids(gates))) <= MAX_ZERO_ROWS


def _gate_ids(gates: GateSet) -> dict[str, int]:
    """The ids of gates in the order of the file, each with its place."""
    return {name: at for at, name in enumerate(dict.fromkeys(gate.id for gate in gates.gates))}


def _forward(tracks: Tracks, gates: GateSet, settings: TrackSettings) -> dict[int, Counter[str]]:
    """How often each device crossed each gate forwards, whichever version of it."""
    forward: dict[int, Counter[str]] = {}
    crossings, many = gates.crossings(tracks), len(gates.gates)
    counted = np.flatnonzero(crossings.forward & charged_crossings(tracks, crossings, settings))
    device = tracks.fixes.device[crossings.end_fix[counted]]
    pairs, counts = np.unique(device * many + crossings.gate[counted], return_counts=True)
    for pair, count in zip(pairs.tolist(), counts.tolist(), strict=True):
        forward.setdefault(pair // many, Counter())[gates.gates[pair % many].id] += count
    return forward


def location_mismatch(tracks: Tracks, report: FenceReport) -> str:
    """That no fix is near any fence, if so, and where both are; or which fences would be where fixes are, with their
    axes swapped."""
    if not len(tracks.row):
        return "no fix was kept"
    lat, lon = (column[tracks.row] for column in (tracks.fixes.lat, tracks.fixes.lon))
    made: list[Fence | Gate] = [*report.fences, *report.gates]
    boxes = [box_of(one) for one in made]
    west, south, east, north = np.array(boxes).T
    fixes = float(lon.min()), float(lat.min()), float(lon.max()), float(lat.max())
    swapped = [made[number].id for number in latitude_first(boxes, [fixes])]
    near = (west <= fixes[2]) & (east >= fixes[0]) & (south <= fixes[3]) & (north >= fixes[1])
    advice = f"; {swapped_text(swapped)} where fixes are" if swapped else ""
    if near.any() or (np.abs([west, east]) > 180.0).any():
        return advice.removeprefix("; ")
    return (
        f"no fence is where a fix is: fixes lie at lat {fixes[1]:.4f} to {fixes[3]:.4f}, "
        f"lon {fixes[0]:.4f} to {fixes[2]:.4f}; "
        f"fences at lat {south.min():.4f} to {north.max():.4f}, lon {west.min():.4f} to {east.max():.4f}{advice}"
    )


def swapped_text(ids: Sequence[str]) -> str:
    """That fences seem to have their axes swapped: the first, and how many others; where it would be then follows."""
    others = f" and {count_text(len(ids) - 1, 'other')}" if len(ids) > 1 else ""
    return f"{ids[0]!r}{others} may have the latitude first, and GeoJSON has the longitude first: swapped, it would be"


def count_text(count: int, noun: str) -> str:
    """A number and its noun: 1 fence, 2 fences."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def refuse_to_replace(out: Path, *inputs: Path) -> None:
    """An input is never replaced by the result, by whatever name. Raises BadParameter (exit status 2)."""
    for path in inputs:
        if out.exists() and path.samefile(out):
            raise typer.BadParameter(f"it is the input {path}, which the result would replace", param_hint="--out")


@contextmanager
def file_errors_as_messages() -> Iterator[None]:
    """What cannot be read, written or used is a message and exit status 1."""
    try:
        yield
    except SpatialError as error:
        typer.echo(str(error), err=True)
    except OSError as error:
        typer.echo(f"{error.filename or 'a file'}: {error.strerror or error}", err=True)
    except MemoryError:
        typer.echo("not enough memory for these files; nothing was written", err=True)
    else:
        return
    raise typer.Exit(FAILED)


class FixFile(NamedTuple):
    """Fixes of a file. `devices` are the ids in text order: `fixes.device` indexes it."""

    fixes: Fixes
    devices: tuple[str, ...]


def read_fix_file(path: Path) -> FixFile:
    """The fixes of a CSV file. Raises OSError, and `FixError` for a file with a row that cannot be used."""
    with open_file(path) as file:
        try:
            return read_fixes(file)
        except (FixError, pa.ArrowException) as error:
            raise FixError(one_line(f"{path}: {error}", MAX_LINE_CHARACTERS)) from None


REQUIRED: Final = ("device_id", "t_ms", "lat", "lon")
OPTIONAL: Final = ("speed_mps", "accuracy_m")
_MAX_HEADER_BYTES: Final = 65_536
# Times are interpolated as doubles, which from here on leave out whole milliseconds.
_MAX_TIME_MS: Final = 1 << 53
_SECONDS: Final = (1_000_000_000, 4_200_000_000)
"""Unix seconds of 2001 to 2103. As milliseconds they would all lie in the winter of 1970."""
_UNITS: Final = {"seconds": 1, "microseconds": 1_000_000}


def read_fixes(file: BinaryIO) -> FixFile:
    """Fixes of a CSV file whose header names at least `device_id,t_ms,lat,lon`, in any order.

    An absent accuracy or speed is empty or `nan`. Raises FixError or ArrowException for the first fault.
    """
    names = _column_names(file)
    others = [name for name in names if name not in REQUIRED + OPTIONAL]
    types = {name: pa.float64() for name in REQUIRED + OPTIONAL} | {"device_id": pa.string(), "t_ms": pa.int64()}
    options = csv.ConvertOptions(
        column_types=types | dict.fromkeys(others, pa.string()),
        include_columns=[*REQUIRED, *OPTIONAL, *others],
        include_missing_columns=True,
        null_values=["", "nan", "NaN"],
        strings_can_be_null=False,
    )
    # one thread, so that faults name their row
    reading = csv.ReadOptions(column_names=names, use_threads=False)
    rows = csv.read_csv(file, read_options=reading, convert_options=options)
    for name in others:
        # a quote that is not closed swallows the rows up to the next quote
        if pc.any(pc.match_substring(rows[name], "\n")).as_py():
            raise FixError(f"column {name!a} holds a line break: close the quote, or leave the column out")
    if pc.any(pc.is_null(rows["t_ms"])).as_py():
        raise FixError("a row has no t_ms")
    columns = {name: rows[name].to_numpy() for name in ("t_ms", "lat", "lon", *OPTIONAL)}
    _check_times(columns["t_ms"])
    devices = sorted(pc.unique(rows["device_id"]).to_pylist())
    for name in devices:
        if fault := id_fault(name):
            raise FixError(f"device_id {name!r}: {fault}")
    for same in near_equal(devices):
        raise FixError(f"these ids read the same: {', '.join(map(ascii, same))}")
    device = pc.index_in(rows["device_id"], pa.array(devices, pa.string())).to_numpy()
    try:
        return FixFile(Fixes(device=device, **columns), tuple(devices))
    except FixError as error:
        place = "" if error.row is None else f"row {error.row + 1}: "
        raise FixError(f"{place}{error.reason}") from None


def _column_names(file: BinaryIO) -> list[str]:
    header = file.readline(_MAX_HEADER_BYTES).decode("utf-8-sig", errors="replace")
    names = [name.strip().strip('"').lower() for name in header.split(",")]
    missing = [name for name in REQUIRED if name not in names]
    if missing:
        raise FixError(f"the header lacks {', '.join(missing)}; it needs {','.join(REQUIRED)}")
    if len(set(names)) < len(names):
        raise FixError("the header names a column twice")
    for name in OPTIONAL:
        if near := nearest(name, [] if name in names else {*names} - {*OPTIONAL}, SIMILAR):
            raise FixError(f"column {near!a} looks like {name}: rename it if it is, or leave it out")
    return names


def _check_times(t_ms: NDArray[np.int64]) -> None:
    if (np.abs(t_ms) >= _MAX_TIME_MS).any():
        raise FixError("a t_ms is not below 2^53")
    low, high = (bound * 1_000 for bound in _SECONDS)
    has_milliseconds = bool(((low <= t_ms) & (t_ms < high)).any())
    for unit, factor in _UNITS.items():
        suspect = (_SECONDS[0] * factor <= t_ms) & (t_ms < _SECONDS[1] * factor)
        # 0 means unknown; times that count from 0 stay
        if suspect.any() and (has_milliseconds or (suspect | (t_ms == 0)).all()):
            row = int(np.flatnonzero(suspect)[0])
            raise FixError(f"row {row + 1}: t_ms {t_ms[row]} looks like {unit}, but must be in milliseconds")


def read_fence_file(path: Path) -> FenceReport:
    """The fences of a GeoJSON file; what is refused or ignored is named on standard error. Raises OSError."""
    with open_file(path) as file:
        content = file.read(MAX_FENCE_BYTES + 1)
    if len(content) > MAX_FENCE_BYTES:
        raise FenceError(f"{path} is longer than {MAX_FENCE_BYTES:,} bytes: split it")
    report = fences_from_geojson(content.decode("utf-8-sig", errors="surrogateescape"))
    print_problems(path, [*report.refused, *report.notices])
    return report


def track_settings(
    max_gap_s: float, plausibility: bool, rule: TrackRule, accuracy_not_said_m: float, buffer_m: float
) -> TrackSettings:
    """How tracks are made of the fixes of a file."""
    settings = TrackSettings(max_gap_s=max_gap_s) if plausibility else TrackSettings.every_fix(max_gap_s)
    said = {"rule": rule, "accuracy_not_said_m": accuracy_not_said_m, "buffer_m": buffer_m}
    return settings.model_copy(update=said)


def print_problems(path: Path, messages: list[str] | tuple[str, ...]) -> None:
    """Say on standard error what is wrong with a file, each message on a line of its own, with the file's name."""
    for message in messages:
        typer.echo(one_line(f"{path}: {message}", MAX_LINE_CHARACTERS), err=True)


def print_summary(tracks: Tracks, result: str) -> None:
    """Say on standard error what became of the fixes: kept, excluded and why, and what is unknown."""
    counts = {name: count for name, count in tracks.counts().items() if count and name != "kept"}
    excluded = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in counts.items()) or "none"
    _, start, end = tracks.unknown()
    unknown_s = float((end - start).sum()) / 1000.0
    gaps, jumps = count_text(tracks.gap_breaks, "gap"), count_text(tracks.speed_breaks, "jump")
    breaks = f"{gaps} and {jumps} left {unknown_s:.0f} s unknown"
    noise_m = float((tracks.reported_m - tracks.metres).sum())
    if noise_m >= 0.5:
        breaks += f"; {noise_m / 1000:.3f} km of noise left out"
    fixes = f"{len(tracks.row)} of {len(tracks.fixes)} fixes kept, excluded: {excluded}"
    typer.echo(f"{fixes}; {breaks}; {result}", err=True)


def _row(device: str, fence: str, metres: float, ms: float, entries: int) -> tuple[str, str, str, str, int]:
    return device, fence, f"{metres / 1000.0:.9f}", f"{ms / 1000.0:.6f}", entries


# `cloud-jobs encounters`: encounters of recorded tracks, without Spark.

ENCOUNTERS_HEADER: Final = ("device_a", "device_b", "start_ms", "end_ms", "min_m", "t_min_ms")
MAX_DISTANCE_M: Final = 100_000.0
EncounterBuffer = Annotated[
    float,
    typer.Option(min=0.0, max=1_000.0, callback=finite, help="Encounters end at --distance-m plus twice this (metres)"),
]


def encounters(
    *,
    fixes: FixesFile,
    distance_m: Annotated[
        float, typer.Option(min=0.001, max=MAX_DISTANCE_M, callback=finite, help="Devices this close meet (metres)")
    ],
    out: Annotated[Path, typer.Option(dir_okay=False, help="CSV: device_a,device_b,start_ms,end_ms,min_m,t_min_ms")],
    max_gap_s: MaxGap = 300.0,
    plausibility: Plausibility = True,
    rule: Rule = DEFAULT_RULE,
    accuracy_not_said_m: AccuracyNotSaid = DEFAULT_ACCURACY_M,
    buffer_m: EncounterBuffer = DEFAULT_BUFFER_M,
) -> None:
    """Find each encounter: two devices within a distance of each other, with their closest approach.

    Exit status: 0; 1 when nothing was written; 2 for wrong options.

    Example: cloud-jobs encounters --fixes fixes.csv --distance-m 500 --out encounters.csv
    """
    refuse_to_replace(out, fixes)
    with file_errors_as_messages():
        read = read_fix_file(fixes)
        settings = track_settings(max_gap_s, plausibility, rule, accuracy_not_said_m, buffer_m)
        tracks = build_tracks(read.fixes, settings)
        found = find_encounters(tracks, distance_m, settings.apart_m(distance_m))
        write_csv(out, ENCOUNTERS_HEADER, encounter_rows(read.devices, found))
    print_summary(tracks, f"{len(found)} encounters written to {out}")


def encounter_rows(devices: tuple[str, ...], met: Encounters) -> Iterator[tuple[str, str, int, int, str, int]]:
    """The rows of the CSV; times are rounded to the millisecond, the distance to the millimetre."""
    columns = (met.device_a, met.device_b, met.start_ms, met.end_ms, met.min_m, met.t_min_ms)
    for a, b, start, end, least, when in zip(*(column.tolist() for column in columns), strict=True):
        yield devices[a], devices[b], round(start), round(end), f"{least:.3f}", round(when)
