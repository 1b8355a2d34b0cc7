"""Many fences with one border between them: what lies on it is seen at a glance, whatever their number."""

import numpy as np
import pytest
import shapely

from geo.spatial import grid
from geo.spatial.grid import GridIndex
from geo.spatial.predicates import OnLines, Spots


@pytest.fixture
def at_a_glance(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object) -> None:
        raise AssertionError("asked in whole numbers")

    monkeypatch.setattr(grid, "turn_of", never)
    monkeypatch.setattr(grid, "on_or_odd", never)


def boxes(count: int) -> GridIndex:
    """Boxes from longitude 13.0 to 13.2 on one parallel, 53.0, and on two meridians; each reaches farther north."""
    return GridIndex.of([shapely.box(13.0, 53.0, 13.2, 53.1 + number * 1e-3) for number in range(count)])


def on_the_line(px: list[float], py: list[float], qx: list[float], qy: list[float]) -> Spots:
    ends = (np.array(px), np.array(py), np.array(qx), np.array(qy))
    return Spots.on_lines(OnLines(*ends, np.full(len(px), 1 / 3), np.zeros(len(px))))


@pytest.mark.usefixtures("at_a_glance")
def test_fixes_on_a_parallel_a_meridian_or_a_corner_are_in_every_fence():
    x = np.array([13.05, 13.0, 13.0, 13.2, 13.1])
    y = np.array([53.0, 53.05, 53.0, 53.0, 53.0])
    spot, _ = boxes(40).locate(Spots(x, y))
    assert np.bincount(spot, minlength=5).tolist() == [40] * 5


@pytest.mark.usefixtures("at_a_glance")
def test_a_way_along_a_border_is_in_every_fence():
    spot, _ = boxes(40).locate(on_the_line([13.05, 13.0], [53.0, 53.02], [13.15, 13.0], [53.0, 53.08]))
    assert np.bincount(spot, minlength=2).tolist() == [40] * 2


def test_what_lies_beside_the_border_or_beyond_its_end_is_in_none():
    x = np.array([13.05, np.nextafter(13.0, 0), np.nextafter(13.2, 14), 13.05])
    y = np.array([np.nextafter(53.0, 0), 53.05, 53.0, 52.9])
    assert not len(boxes(40).locate(Spots(x, y))[0])
    beyond = on_the_line([12.8], [53.0], [12.9], [53.0])
    assert not len(boxes(40).locate(beyond)[0])


def test_a_slanted_border_is_still_decided_in_whole_numbers():
    square = shapely.Polygon([(13.0, 53.0), (13.5, 53.5), (13.0, 54.0), (12.5, 53.5)])
    on, off = (13.25, 53.25), (13.25, np.nextafter(53.25, 0))
    spots = Spots(np.array([on[0], off[0]]), np.array([on[1], off[1]]))
    assert GridIndex.of([square]).locate(spots)[0].tolist() == [0]
