"""A track and the borders of zones as an SVG drawing: what was metered in the zone, and what was not. Pure.

The projection is equirectangular about the middle of what is drawn: over the few kilometres of a picture true to scale.
Nothing is loaded from elsewhere, and the same input gives the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from math import cos, floor, log10, radians
from typing import Final, NamedTuple

import numpy as np
import shapely
from numpy.typing import NDArray

Points = NDArray[np.float64]
"""(n, 2): longitude and latitude in degrees, or x and y of the drawing."""

MAX_POINTS: Final = 20_000
"""The most points that a drawing has; of more the lines are simplified further."""
_WIDTH, _HEIGHT, _EDGE, _FOOT = 960.0, 640.0, 24.0, 56.0
_METRES_A_DEGREE: Final = 111_194.93
"""On a sphere of 6,371 km."""
_LEAST_SPAN_M: Final = 50.0
_MAX_BAR: Final = 240.0
_HALF_PIXEL: Final = 0.5
_COLOURS: Final = {True: "#c2410c", False: "#64748b"}
_STYLE: Final = (
    "text{font:13px sans-serif;fill:#0f172a}.zone{fill:#fde68a;fill-opacity:.45;stroke:#b45309;stroke-width:1.5;"
    "fill-rule:evenodd}polyline{fill:none;stroke-linecap:round;stroke-linejoin:round}"
)


class Stretch(NamedTuple):
    """A part of a track on the way from one fix to the next. `metered`: it is part of the charge."""

    begin: tuple[float, float]
    end: tuple[float, float]
    metered: bool


class Border(NamedTuple):
    """The rings (longitude, latitude) of one zone, or the line of a gate, and its name."""

    name: str
    rings: tuple[Points, ...]


class _View(NamedTuple):
    """From degrees to the drawing: `x = (longitude - west) * cos_middle * scale`, `y = (north - latitude) * scale`."""

    west: float
    north: float
    cos_middle: float
    scale: float

    def drawn(self, points: Points) -> Points:
        # the shorter way round: a track over the antimeridian is one line
        longitudes = (points[:, 0] - self.west + 180) % 360 - 180
        x = _EDGE + longitudes * self.cos_middle * self.scale
        return np.column_stack([x, _EDGE + (self.north - points[:, 1]) * self.scale])

    @property
    def pixels_a_metre(self) -> float:
        return self.scale / _METRES_A_DEGREE


def track_picture(title: str, stretches: Sequence[Stretch], borders: Iterable[Border]) -> str:
    """The drawing as SVG text. What lies far off the track is cut off. Raises ValueError for no stretches."""
    if not stretches:
        raise ValueError("a picture needs a track of at least one stretch")
    view = _view(np.array([point for one in stretches for point in (one.begin, one.end)]))
    lines = _bounded([*_lines(stretches, view)])
    zones = [part for border in borders for part in _zone(border, view)]
    tracks = [part for metered in (False, True) for part in _tracks(lines, metered)]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH:.0f} {_HEIGHT + _FOOT:.0f}" role="img">',
            f"<title>{escape(title)}</title>",
            f"<style>{_STYLE}</style>",
            f'<clipPath id="map"><rect width="{_WIDTH:.0f}" height="{_HEIGHT:.0f}"/></clipPath>',
            f'<rect width="{_WIDTH:.0f}" height="{_HEIGHT + _FOOT:.0f}" fill="#f8fafc"/>',
            '<g clip-path="url(#map)">',
            *zones,
            *tracks,
            "</g>",
            *_foot(title, view),
            "</svg>",
            "",
        ]
    )


def _view(points: Points) -> _View:
    """What holds all points with an edge around them, one scale for both directions."""
    first = points[0, 0]
    longitudes = (points[:, 0] - first + 180) % 360 - 180
    south, north = points[:, 1].min(), points[:, 1].max()
    cos_middle = max(cos(radians((south + north) / 2)), 1e-3)
    least = _LEAST_SPAN_M / _METRES_A_DEGREE
    wide = max((longitudes.max() - longitudes.min()) * cos_middle, least)
    high = max(north - south, least)
    scale = min((_WIDTH - 2 * _EDGE) / wide, (_HEIGHT - 2 * _EDGE) / high)
    # what is narrower than the drawing stands in its middle
    west = (longitudes.max() + longitudes.min()) / 2 - (_WIDTH / 2 - _EDGE) / scale / cos_middle
    top = (south + north) / 2 + (_HEIGHT / 2 - _EDGE) / scale
    return _View(float(first + west), float(top), cos_middle, float(scale))


def _lines(stretches: Sequence[Stretch], view: _View) -> Iterable[tuple[Points, bool]]:
    """Stretches that follow on each other and are alike as one line."""
    run: list[tuple[float, float]] = []
    metered = stretches[0].metered
    for one in stretches:
        if run and (one.metered != metered or one.begin != run[-1]):
            yield view.drawn(np.array(run)), metered
            run = []
        run = run or [one.begin]
        run.append(one.end)
        metered = one.metered
    yield view.drawn(np.array(run)), metered


def _bounded(lines: Sequence[tuple[Points, bool]]) -> Sequence[tuple[Points, bool]]:
    """The lines with at most MAX_POINTS points: what is lost first is finer than half a pixel."""
    found = [(_simplified(line, _HALF_PIXEL), metered) for line, metered in lines]
    tolerance = 2 * _HALF_PIXEL
    while sum(len(line) for line, _ in found) > MAX_POINTS:
        # what is shorter than the tolerance would be a dot
        found = [
            (_simplified(line, tolerance), metered) for line, metered in found if np.ptp(line, 0).max() > tolerance
        ]
        tolerance *= 2
    return found


def _simplified(points: Points, tolerance: float) -> Points:
    simplified: Points = shapely.get_coordinates(shapely.simplify(shapely.linestrings(points), tolerance))
    return simplified


def _tracks(lines: Iterable[tuple[Points, bool]], metered: bool) -> Iterable[str]:
    width = 4 if metered else 2
    for line, of in lines:
        if of == metered:
            yield f'<polyline points="{_written(line)}" stroke="{_COLOURS[metered]}" stroke-width="{width}"/>'


def _zone(border: Border, view: _View) -> Iterable[str]:
    drawn = [view.drawn(ring) for ring in border.rings if len(ring)]
    if not drawn:
        return
    path = "".join(f"M{_written(ring)}" for ring in drawn)
    closed = all(len(ring) > 2 for ring in drawn)
    fill = "" if closed else ' style="fill:none"'
    yield f'<path class="zone" d="{path}{"Z" if closed else ""}"{fill}><title>{escape(border.name)}</title></path>'


def _foot(title: str, view: _View) -> Iterable[str]:
    """Title, what the colours mean, and a bar of a round length."""
    metres = _round_length(_MAX_BAR / view.pixels_a_metre)
    long = metres * view.pixels_a_metre
    label = f"{metres / 1000:g} km" if metres >= 1000 else f"{metres:g} m"
    x, y = _WIDTH - _EDGE - long, _HEIGHT + 34
    yield f'<text x="{_EDGE:.0f}" y="{_HEIGHT + 22:.0f}">{escape(title)}</text>'
    for at, (metered, words) in enumerate(((True, "metered for this line"), (False, "the rest of the track"))):
        left = _EDGE + at * 190
        yield f'<path d="M{left:.0f},{y + 6:.0f}h26" stroke="{_COLOURS[metered]}" stroke-width="4"/>'
        yield f'<text x="{left + 32:.0f}" y="{y + 11:.0f}">{words}</text>'
    yield f'<path d="M{x:.1f},{y:.0f}h{long:.1f}" stroke="#0f172a" stroke-width="3"/>'
    yield f'<text x="{x:.1f}" y="{y - 8:.0f}">{label}</text>'


def _round_length(most_m: float) -> float:
    """The longest of 1, 2 and 5 times a power of ten."""
    power = 10.0 ** floor(log10(most_m))
    return max(step * power for step in (1, 2, 5) if step * power <= most_m)


def _written(points: Points) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points.tolist())
