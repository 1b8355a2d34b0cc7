"""Draw the pictures of docs/spatial.md by the engine itself: `python -m tests.structure.spatial_pictures`."""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl

mpl.use("svg")

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from shapely import Polygon, box

from geo.spatial import (
    EventSettings,
    Fence,
    FenceSet,
    Fixes,
    GeofenceEvent,
    TrackSettings,
    ZoneSet,
    build_tracks,
    find_encounters,
    find_events,
)

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "pictures"
INK, BLUE, RED, GREY, PALE = "#222222", "#2563eb", "#dc2626", "#9ca3af", "#dbeafe"
START_MS = 1_767_603_422_000


def fixes(lon: np.ndarray, lat: np.ndarray, step_s: float, device: int = 0) -> Fixes:
    """One device, a fix every `step_s` seconds."""
    times = START_MS + np.arange(len(lon)) * int(step_s * 1000)
    return Fixes(device=np.full(len(lon), device), t_ms=times, lat=lat, lon=lon)


def save(name: str) -> None:
    """Write the picture beside this script."""
    # no date and fixed ids: the same picture has the same bytes
    plt.savefig(FOLDER / f"{name}.svg", metadata={"Date": None}, bbox_inches="tight")
    plt.close()


def area(axes: Axes, shape: Polygon, colour: str, name: str) -> None:
    """A zone with its name."""
    x, y = shape.exterior.xy
    axes.fill(x, y, facecolor=colour, edgecolor=INK, linewidth=0.8, alpha=0.6)
    axes.annotate(name, (min(x) + 0.0004, max(y) - 0.0008), fontsize=9, color=INK)


def split() -> None:
    """A segment over two zones: pieces, metres, seconds, entries."""
    city, harbour = box(10.004, 50.0, 10.014, 50.008), box(10.010, 50.002, 10.020, 50.010)
    zones = ZoneSet([Fence("city", city), Fence("harbour", harbour, 5)])
    lon, lat = np.array([10.000, 10.012, 10.024]), np.array([50.001, 50.004, 50.0095])
    tracks = build_tracks(fixes(lon, lat, 60.0), TrackSettings.every_fix())
    pieces = zones.split(tracks)
    _, axes = plt.subplots(figsize=(8, 3.6))
    area(axes, city, PALE, "city (priority 0)")
    area(axes, harbour, "#fee2e2", "harbour (priority 5)")
    names = [*zones.names, "outside"]
    colours = {"city": BLUE, "harbour": RED, "outside": GREY}
    for at in range(len(pieces)):
        end = int(pieces.end_fix[at])
        along = np.array([pieces.start[at], pieces.end[at]])
        x, y = lon[end - 1] + along * (lon[end] - lon[end - 1]), lat[end - 1] + along * (lat[end] - lat[end - 1])
        name = names[pieces.zone[at]]
        axes.plot(x, y, color=colours[name], linewidth=2.5)
        text = f"{pieces.metres[at]:.0f} m\n{pieces.ms[at] / 1000:.1f} s"
        axes.annotate(text, (x.mean(), y.mean()), (0, -24), textcoords="offset points", fontsize=7, ha="center")
        if pieces.entry[at]:
            axes.plot(x[0], y[0], marker=">", color=colours[name], markersize=9, markeredgecolor="white")
    axes.plot(lon, lat, "o", color=INK, markersize=5)
    axes.set_title("Two segments (dots are fixes) split over a zone set; arrows are entries", fontsize=9)
    axes.set_axis_off()
    save("spatial-split")


def flapping() -> None:
    """Parked on a border: which events come without and with hysteresis."""
    rng = np.random.default_rng(4)
    noise = 10.0 + rng.normal(0, 8.0 / 71_500, 240)
    lon = np.concatenate([np.linspace(9.9985, 10.0, 60), noise, np.linspace(10.0, 10.0015, 60)])
    lat = np.full(len(lon), 50.01)
    depot = FenceSet([Fence("depot", box(10.0, 50.0, 10.02, 50.02))])
    tracks = build_tracks(fixes(lon, lat, 1.0), TrackSettings.every_fix())
    figure, rows = plt.subplots(2, 1, figsize=(8, 4), sharex=True)
    for axes, buffer_m in zip(rows, (0.0, 40.0), strict=True):
        events = find_events(tracks, depot, settings=EventSettings(buffer_m=buffer_m))
        axes.axhspan(0, 120, color=PALE)
        axes.axhline(0, color=INK, linewidth=0.8)
        axes.plot(np.arange(len(lon)), (lon - 10.0) * 71_695, color=GREY, linewidth=0.9)
        mark(axes, events)
        shown = f"{len(events)} events" if len(events) != 1 else "1 event"
        axes.set_title(f"buffer_m = {buffer_m:.0f}: {shown}", fontsize=9, loc="left")
        axes.set_ylabel("metres inside", fontsize=8)
        axes.set_ylim(-120, 120)
    rows[-1].set_xlabel("seconds", fontsize=8)
    figure.tight_layout()
    save("spatial-flapping")


def mark(axes: Axes, events: list[GeofenceEvent]) -> None:
    """Entries and exits on the border."""
    for kind, colour, shape in (("enter", RED, "^"), ("exit", BLUE, "v")):
        seconds = [(event.t_ms - START_MS) / 1000 for event in events if event.kind == kind]
        axes.plot(seconds, np.zeros(len(seconds)), shape, color=colour, markersize=5, label=kind)
    axes.legend(fontsize=7, loc="upper left")


def encounter() -> None:
    """Two vehicles that pass each other between their fixes."""
    turn = np.array([0.0, 1.0, 2.0, 3.0])
    first = fixes(10.0 + turn * 0.004, 50.0 + turn * 0.0004, 20.0)
    second = fixes(10.0115 - turn * 0.004, 50.0035 - turn * 0.0006, 20.0, device=1)
    columns = {
        name: np.concatenate([getattr(first, name), getattr(second, name)]) for name in ("device", "t_ms", "lat", "lon")
    }
    tracks = build_tracks(Fixes(**columns), TrackSettings.every_fix())
    found = find_encounters(tracks, 350.0)
    _, axes = plt.subplots(figsize=(8, 3.2))
    for one, colour in ((first, BLUE), (second, RED)):
        axes.plot(one.lon, one.lat, "o-", color=colour, linewidth=1, markersize=4)
        for t_ms, style in ((found.start_ms[0], ":"), (found.t_min_ms[0], "-"), (found.end_ms[0], ":")):
            x, y = (
                [np.interp(t_ms, part.t_ms, part.lon) for part in (first, second)],
                [np.interp(t_ms, part.t_ms, part.lat) for part in (first, second)],
            )
            axes.plot(x, y, style, color=INK, linewidth=1.2)
    start, end = ((value - START_MS) / 1000 for value in (found.start_ms[0], found.end_ms[0]))
    when = (found.t_min_ms[0] - START_MS) / 1000
    axes.set_title(
        f"An encounter within 350 m: from {start:.1f} s to {end:.1f} s (dotted),"
        f" closest {found.min_m[0]:.1f} m at {when:.1f} s",
        fontsize=9,
    )
    axes.set_axis_off()
    save("spatial-encounter")


if __name__ == "__main__":
    mpl.rcParams["svg.hashsalt"] = "waybill"
    split()
    flapping()
    encounter()
