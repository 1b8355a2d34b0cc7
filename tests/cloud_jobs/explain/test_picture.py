"""The picture of a line: what was metered stands out, and nothing in a name becomes markup."""

from __future__ import annotations

from itertools import pairwise
from xml.etree import ElementTree as ET

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from cloud_jobs.explain import Border, Stretch, track_picture

SVG = "{http://www.w3.org/2000/svg}"
HARBOUR = Border("harbour", (np.array([[9.98, 53.53], [9.99, 53.53], [9.99, 53.54], [9.98, 53.54], [9.98, 53.53]]),))
THROUGH = [
    Stretch((9.970, 53.535), (9.980, 53.535), metered=False),
    Stretch((9.980, 53.535), (9.990, 53.535), metered=True),
    Stretch((9.990, 53.535), (10.000, 53.535), metered=False),
]

places = st.tuples(st.floats(-180, 180), st.floats(-89.9, 89.9))
tracks = st.lists(places, min_size=2, max_size=30)


def drawing(svg: str) -> ET.Element:
    return ET.fromstring(svg)  # noqa: S314 - made by the code under test


def polylines(svg: str) -> list[tuple[str, list[tuple[float, float]]]]:
    found = []
    for line in drawing(svg).iter(f"{SVG}polyline"):
        points = [tuple(map(float, pair.split(","))) for pair in line.attrib["points"].split()]
        found.append((line.attrib["stroke"], [(x, y) for x, y in points]))
    return found


def test_what_is_metered_is_one_line_between_those_that_are_not() -> None:
    lines = polylines(track_picture("a line", THROUGH, [HARBOUR]))
    assert [stroke for stroke, _ in lines] == ["#64748b", "#64748b", "#c2410c"]
    before, after, metered = (points for _, points in lines)
    assert before[-1] == metered[0]
    assert metered[-1] == after[0]


@given(tracks)
def test_every_place_of_the_track_is_within_the_drawing(places: list[tuple[float, float]]) -> None:
    # a track does not jump round half of the world: each place is near the one before
    near = [places[0]]
    for longitude, latitude in places[1:]:
        west, south = near[0]
        near.append(((west + longitude / 4 + 180) % 360 - 180, max(-89.9, min(89.9, south + latitude / 10))))
    stretches = [Stretch(a, b, metered=True) for a, b in pairwise(near)]
    for _, points in polylines(track_picture("a line", stretches, [])):
        assert all(-0.2 <= x <= 960.2 and -0.2 <= y <= 640.2 for x, y in points)


def test_names_are_text_and_never_markup() -> None:
    hostile = "</title><script>alert(1)</script>"
    svg = track_picture(hostile, THROUGH, [Border(hostile, HARBOUR.rings)])
    assert not [one for one in drawing(svg).iter() if one.tag.endswith("script")]
    assert hostile in "".join(drawing(svg).itertext())
