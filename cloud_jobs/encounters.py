"""`cloud-jobs encounters`: who met whom on recorded tracks. Starts no Spark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Final

import typer

from cloud_jobs.measure import (
    DEFAULT_ACCURACY_M,
    DEFAULT_BUFFER_M,
    DEFAULT_RULE,
    REFUSED,
    AccuracyNotSaid,
    FixesFile,
    MaxGap,
    Plausibility,
    Rule,
    file_errors_as_messages,
    finite,
    print_summary,
    read_fix_file,
    refuse_to_replace,
    track_settings,
)
from cloud_jobs.result_file import write_csv
from geo.spatial import Encounters, build_tracks, find_encounters

HEADER: Final = ("device_a", "device_b", "start_ms", "end_ms", "min_m", "t_min_ms")
MAX_DISTANCE_M: Final = 100_000.0
EncounterBuffer = Annotated[
    float,
    typer.Option(
        min=0.0, max=1_000.0, callback=finite, help="Devices part twice this beyond the distance (metres; standstill)"
    ),
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
    """Each time that two devices come within a distance of each other, with their closest approach.

    Exit status as of `measure`.

    Example: cloud-jobs encounters --fixes fixes.csv --distance-m 500 --out encounters.csv
    """
    refuse_to_replace(out, fixes)
    with file_errors_as_messages():
        read = read_fix_file(fixes)
        settings = track_settings(max_gap_s, plausibility, rule, accuracy_not_said_m, buffer_m)
        tracks = build_tracks(read.fixes, settings)
        found = find_encounters(tracks, distance_m, settings.apart_m(distance_m))
        write_csv(out, HEADER, encounter_rows(read.devices, found))
    print_summary(tracks, f"{len(found)} encounters written to {out}")
    if not read.is_whole:
        raise typer.Exit(REFUSED)


def encounter_rows(devices: tuple[str, ...], met: Encounters) -> Iterator[tuple[str, str, int, int, str, int]]:
    """The rows of the CSV; times are rounded to the millisecond, the distance to the millimetre."""
    columns = (met.device_a, met.device_b, met.start_ms, met.end_ms, met.min_m, met.t_min_ms)
    for a, b, start, end, least, when in zip(*(column.tolist() for column in columns), strict=True):
        yield devices[a], devices[b], round(start), round(end), f"{least:.3f}", round(when)


if __name__ == "__main__":
    typer.run(encounters)
