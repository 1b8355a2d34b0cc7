"""A fence of many rings is validated in bounded time, whatever lies in what, or refused before it is validated."""

from __future__ import annotations

import json
import time

import pytest

from geo.spatial import FenceReport, fences_from_geojson

LOW, HIGH = 300, 12_000


def square(half: float) -> list[list[float]]:
    low, high = (10.0 - half, 50.0 - half), (10.0 + half, 50.0 + half)
    return [[round(x, 7), round(y, 7)] for x, y in ((low[0], low[1]), (high[0], low[1]), high, (low[0], high[1]), low)]


def halves(count: int) -> list[float]:
    return [4.0 - 3.9 * at / count for at in range(count)]


def read(kind: str, coordinates: object) -> FenceReport:
    geometry = {"type": kind, "coordinates": coordinates}
    return fences_from_geojson(json.dumps({"type": "Feature", "properties": {"id": "f"}, "geometry": geometry}))


def nested(what: str, count: int) -> FenceReport:
    rings = [square(half) for half in halves(count)]
    if what == "annuli":
        return read("MultiPolygon", [list(pair) for pair in zip(rings[::2], rings[1::2], strict=True)])
    return read("MultiPolygon", [[ring] for ring in rings]) if what == "discs" else read("Polygon", rings)


def many_holes(count: int) -> FenceReport:
    holes = []
    for at in range(count):
        x, y = 7.0 + 6.0 * (at % 200) / 200, 47.0 + 6.0 * (at // 200) / 200
        holes.append([[x, y], [x, y + 0.01], [x + 0.01, y + 0.01], [x + 0.01, y], [x, y]])
    return read("Polygon", [square(4.0), *holes])


@pytest.mark.parametrize("what", ["annuli", "discs", "holes"])
def test_rings_that_lie_in_each_other_are_used_or_refused_before_they_are_validated(what: str) -> None:
    few = nested(what, LOW)
    assert (len(few.fences), few.refused) == (1, ())
    begin = time.process_time()
    many = nested(what, HIGH)
    assert "in each other's boxes" in many.refused[0]
    assert time.process_time() - begin < 30  # 72,000,000 pairs took minutes


def test_a_ring_may_hold_many_that_do_not_hold_each_other() -> None:
    report = many_holes(20_000)
    assert (len(report.fences), report.refused) == (1, ())
    assert len(report.fences[0].shape.interiors) == 20_000
