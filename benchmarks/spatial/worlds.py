"""Made-up fences and vehicles, the same from the same seed. As a program it writes fences to files: COUNT FOLDER."""

import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import shapely

from geo.spatial import Fixes
from geo.spatial.fences import Outlines

FENCES_PER_DEGREE2 = 375.0  # the density of every world: about 1.6 fences over each place
SOUTH = 45.0


def side_deg(count: int) -> float:
    """Width of a world with so many fences, degrees of longitude; it is half as high."""
    return float(np.sqrt(count / FENCES_PER_DEGREE2 * 2))


def outlines(count: int, seed: int = 5) -> Outlines:
    """City-sized polygons of 4 to 500 corners (log-uniform), 1 to 11 km across, in whole 1e-7 degrees."""
    rng = np.random.default_rng(seed)
    corners = np.exp(rng.uniform(np.log(4), np.log(500), count)).astype(np.int64)
    first = np.concatenate([[0], np.cumsum(corners)])
    owner = np.repeat(np.arange(count), corners)
    step = np.arange(len(owner)) - first[owner]
    angle = (step + rng.uniform(0, 0.9, len(owner))) / corners[owner] * 2 * np.pi
    radius = rng.uniform(0.005, 0.05, count)[owner]
    radius *= 1 + 0.25 * np.sin(3 * angle + rng.uniform(0, 6.28, count)[owner]) + 0.05 * rng.uniform(-1, 1, len(owner))
    x = rng.uniform(0, side_deg(count), count)[owner]
    y = rng.uniform(low(count), low(count) + side_deg(count) / 2, count)[owner]
    row = np.arange(len(owner)) + owner
    lon, lat = np.empty(len(owner) + count), np.empty(len(owner) + count)
    lon[row] = np.round(x + radius / np.cos(np.radians(y)) * np.cos(angle), 7)
    lat[row] = np.round(y + radius * np.sin(angle), 7)
    ends = first[1:] + np.arange(count)
    lon[ends], lat[ends] = lon[row[first[:-1]]], lat[row[first[:-1]]]
    return Outlines(np.column_stack([lon, lat]), first + np.arange(count + 1), np.arange(count), count)


def written(count: int, folder: Path) -> None:
    made = outlines(count).compact()
    for name in ("points", "rings", "fence"):
        np.save(folder / f"{name}.npy", getattr(made, name))


def read(folder: Path) -> Outlines:
    points, rings, fence = (np.load(folder / f"{name}.npy") for name in ("points", "rings", "fence"))
    return Outlines(points, rings, fence, len(rings) - 1)


def low(count: int) -> float:
    """The southern border of a world: it grows towards both poles around 45° north."""
    return SOUTH - side_deg(count) / 4


def polygons(made: Outlines, count: int | None = None) -> list[shapely.Polygon]:
    limits = made.rings[: (count or made.count) + 1]
    return [shapely.Polygon(np.column_stack(made.at(np.arange(a, b)))) for a, b in pairwise(limits)]


def scattered(count: int, points: int, seed: int = 6) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.uniform(0, side_deg(count), points), low(count) + rng.uniform(0, side_deg(count) / 2, points)


def vehicles(
    count: int, devices: int, fixes: int, *, step_m: float, seconds: float, noise_m: float = 0.0, seed: int = 7
) -> Fixes:
    """Devices that drive `step_m` in `seconds`, a fix each, with receivers that state twice their noise."""
    rng = np.random.default_rng(seed)
    heading = rng.uniform(0, 2 * np.pi, (devices, 1)) + np.cumsum(rng.normal(0, 0.2, (devices, fixes)), axis=1)
    west, south, height = 0.0, low(count), side_deg(count) / 2
    step = step_m / 111_195
    lat = south + rng.uniform(0.1, 0.9, (devices, 1)) * height + np.cumsum(step * np.sin(heading), axis=1)
    lon = west + rng.uniform(0.1, 0.9, (devices, 1)) * side_deg(count)
    lon = lon + np.cumsum(step * np.cos(heading) / np.cos(np.radians(lat)), axis=1)
    if noise_m:
        lat, lon = (place + rng.normal(0, noise_m / 111_195, place.shape) for place in (lat, lon))
    t_ms = (
        1_767_603_422_000 + rng.integers(0, int(seconds * 1000), (devices, 1)) + np.arange(fixes) * int(seconds * 1000)
    )
    return Fixes(
        device=np.repeat(np.arange(devices), fixes),
        t_ms=t_ms.ravel(),
        lat=np.round(np.clip(lat, -89, 89).ravel(), 7),
        lon=np.round((lon.ravel() + 180) % 360 - 180, 7),
        accuracy_m=np.full(lat.size, 2.0 * noise_m) if noise_m else None,
    )


if __name__ == "__main__":
    written(int(sys.argv[1]), Path(sys.argv[2]))
