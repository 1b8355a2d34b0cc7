"""`cloud-jobs measure`: fences on a recorded track, before anybody is charged. Starts no Spark."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Final

import numpy as np
import typer

from geo.spatial import (
    FenceSet,
    FixError,
    FixFile,
    GateSet,
    Tracks,
    TrackSettings,
    build_tracks,
    fences_from_geojson,
    read_fixes,
    use_by_fence,
)

HEADER: Final = ("device_id", "fence_id", "km", "seconds", "entries")
WHOLE_TRACK: Final = "*"
MAX_ZERO_ROWS: Final = 100_000

FixesFile = Annotated[
    Path,
    typer.Option("--fixes", exists=True, dir_okay=False, help="CSV: device_id,t_ms,lat,lon[,speed_mps,accuracy_m]"),
]
MaxGap = Annotated[float, typer.Option(min=0.001, help="A longer gap between two fixes breaks the track (seconds)")]
Plausibility = Annotated[
    bool,
    typer.Option("--plausibility/--no-plausibility", help="Set aside fixes of impossible speed, place or accuracy"),
]


def measure(
    *,
    fixes: FixesFile,
    fences: Annotated[Path, typer.Option(exists=True, dir_okay=False, help="GeoJSON features with properties.id")],
    out: Annotated[Path, typer.Option(dir_okay=False, help="CSV: device_id,fence_id,km,seconds,entries")],
    max_gap_s: MaxGap = 300.0,
    plausibility: Plausibility = True,
) -> None:
    """Kilometres, seconds and entries of each device in each fence, every fence on its own, and in all (fence *).

    Example: cloud-jobs measure --fixes fixes.csv --fences fences.geojson --out usage.csv
    """
    read = read_fix_file(fixes)
    report = fences_from_geojson(fences.read_text(encoding="utf-8-sig", errors="replace"))
    complain(fences, [*report.refused, *report.repaired])
    tracks = build_tracks(read.fixes, track_settings(max_gap_s, plausibility))
    usable = len(report.fences) + len(report.gates)
    with out.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(HEADER)
        writer.writerows(usage_rows(read.devices, tracks, FenceSet(report.fences), GateSet(report.gates)))
    tell(tracks, f"{usable} fences, {len(report.refused)} refused; written to {out}")
    if not usable:
        raise typer.Exit(1)


def usage_rows(
    devices: tuple[str, ...], tracks: Tracks, fences: FenceSet, gates: GateSet
) -> Iterator[tuple[str, str, str, str, int]]:
    """The rows of the CSV: for each device its fences in text order, its gates, then the whole track.

    A gate has entries (forward crossings) only. A fence that a device never was in has a row of zeros, unless these
    would be more than `MAX_ZERO_ROWS`.
    """
    use = use_by_fence(tracks, fences)
    end = tracks.segments()
    device = tracks.fixes.device[tracks.row[end]]
    ms = tracks.fixes.t_ms[tracks.row[end]] - tracks.fixes.t_ms[tracks.row[end - 1]]
    all_metres = np.bincount(device, weights=tracks.metres[end], minlength=len(devices))
    all_ms = np.bincount(device, weights=ms, minlength=len(devices))
    zeros = len(devices) * len(fences.names) <= MAX_ZERO_ROWS
    first = np.searchsorted(use.device, np.arange(len(devices) + 1))
    forward = _forward(tracks, gates)
    for number, name in enumerate(devices):
        rows = range(first[number], first[number + 1])
        used = {int(use.fence[at]): (use.metres[at], use.ms[at], int(use.entries[at])) for at in rows}
        for fence in range(len(fences.names)) if zeros else used:
            yield _row(name, fences.names[fence], *used.get(fence, (0.0, 0.0, 0)))
        for at, gate in enumerate(gates.gates):
            yield _row(name, gate.id, 0.0, 0.0, forward[number, at])
        yield _row(name, WHOLE_TRACK, all_metres[number], all_ms[number], 0)


def _forward(tracks: Tracks, gates: GateSet) -> Counter[tuple[int, int]]:
    """How often each device crossed each gate forwards."""
    crossings = gates.crossings(tracks)
    device = tracks.fixes.device[crossings.end_fix[crossings.forward]]
    return Counter(zip(device.tolist(), crossings.gate[crossings.forward].tolist(), strict=True))


def read_fix_file(path: Path) -> FixFile:
    """The fixes of a CSV file; malformed rows are named on standard error."""
    try:
        with path.open(encoding="utf-8-sig", errors="replace", newline="") as file:
            read = read_fixes(file)
    except FixError as error:
        complain(path, [str(error)])
        raise typer.Exit(1) from None
    complain(path, read.faults)
    if read.fault_count > len(read.faults):
        complain(path, [f"and {read.fault_count - len(read.faults)} more malformed rows"])
    return read


def track_settings(max_gap_s: float, plausibility: bool) -> TrackSettings:
    """How tracks are made of the fixes of a file."""
    return TrackSettings(max_gap_s=max_gap_s) if plausibility else TrackSettings.every_fix(max_gap_s)


def complain(path: Path, messages: list[str] | tuple[str, ...]) -> None:
    """Say on standard error what is wrong with a file, each message with the file's name."""
    for message in messages:
        typer.echo(f"{path}: {message}", err=True)


def tell(tracks: Tracks, result: str) -> None:
    """Say on standard error what became of the fixes: kept, set aside and why, and what is unknown."""
    counts = {name: count for name, count in tracks.counts().items() if count and name != "kept"}
    aside = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in counts.items()) or "none"
    _, start, end = tracks.unknown()
    unknown_s = float((end - start).sum()) / 1000.0
    breaks = f"{tracks.gap_breaks} gaps and {tracks.speed_breaks} jumps left {unknown_s:.0f} s unknown"
    typer.echo(f"{len(tracks.row)} fixes kept, set aside: {aside}; {breaks}; {result}", err=True)


def _row(device: str, fence: str, metres: float, ms: float, entries: int) -> tuple[str, str, str, str, int]:
    return device, fence, f"{metres / 1000.0:.9f}", f"{ms / 1000.0:.6f}", entries


if __name__ == "__main__":
    typer.run(measure)
