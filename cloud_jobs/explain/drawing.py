"""The picture of an explained line: its track, and the borders of what it met."""

from __future__ import annotations

from typing import Final

import numpy as np
import shapely

from cloud_jobs.billing.meters import Meter
from cloud_jobs.explain.errors import NothingToDraw
from cloud_jobs.explain.issued_line import ExplainedLine
from cloud_jobs.explain.metered_again import stretches_of
from cloud_jobs.explain.picture import Border, track_picture

_EVERYWHERE: Final = {Meter.EVENT, Meter.TRANSMITTED, Meter.ACTIVE_DAY, Meter.CROSSING}
"""Meters that no stretch of a track is metered for more than another."""


def drawing_of(line: ExplainedLine) -> str:
    """SVG text. Raises NothingToDraw where no track can be computed again."""
    key = line.explanation.charge.key
    title = f"{line.number}, line {line.line}: {key.tenant}/{key.device}, {key.zone or 'outside all zones'}"
    if line.again is None:
        raise NothingToDraw(line.number, line.line)
    stretches = stretches_of(line.again.records, line.rules, key.zone)
    if key.meter in _EVERYWHERE:
        stretches = [one._replace(metered=False) for one in stretches]
    if not stretches:
        raise NothingToDraw(line.number, line.line)
    return track_picture(title, stretches, _borders(line, key.zone))


def _borders(line: ExplainedLine, zone: str) -> list[Border]:
    """The charge's zone in all its versions, or its gate; of what is outside all zones every one that there is."""
    fences = [
        Border(fence.id, tuple(np.asarray(ring.coords)[:, :2] for ring in _rings(fence.shape)))
        for fence in line.rules.zones.fences
        if zone in {"", fence.id}
    ]
    gates = [Border(gate.id, (gate.line,)) for gate in line.rules.gates.gates if gate.id == zone]
    return [*fences, *gates]


def _rings(shape: shapely.Geometry) -> list[shapely.LinearRing]:
    parts = [part for part in shapely.get_parts(shape) if isinstance(part, shapely.Polygon)]
    return [ring for part in parts for ring in (part.exterior, *part.interiors)]
