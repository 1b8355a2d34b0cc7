"""The picture of an explained line: its track, and the borders of what it met."""

from __future__ import annotations

from typing import Final

import numpy as np
import shapely

from cloud_jobs.billing.meters import MEASURE_OF, Meter, MeterZones, place_text
from cloud_jobs.explain.errors import NothingToDraw
from cloud_jobs.explain.issued_line import ExplainedLine
from cloud_jobs.explain.metered_again import stretches_of
from cloud_jobs.explain.picture import Border, track_picture
from cloud_jobs.usage.metering import MeterRules

_OF_STRETCHES: Final = {MeterZones.EVERYWHERE, MeterZones.INSIDE}
"""Where meters count that are metered for one stretch of a track, and not for another."""


def drawing_of(line: ExplainedLine) -> str:
    """SVG text. Raises NothingToDraw where no track can be computed again."""
    key, meter = line.explanation.charge.key, line.explanation.charge.key.meter
    assert meter is not None, "a usage charge is of a meter"
    parts = (f"{line.number}, line {line.line}: {key.tenant}/{key.device}", place_text(meter, key.zone))
    title = ", ".join(part for part in parts if part)
    if line.again is None:
        raise NothingToDraw(line.number, line.line)
    stretches = stretches_of(line.again.records, line.again.rules, key.zone)
    # what is inferred happened where no track is
    if MEASURE_OF[meter].zones not in _OF_STRETCHES or meter is Meter.INFERRED_ENTRY:
        stretches = [one._replace(metered=False) for one in stretches]
    if not stretches:
        raise NothingToDraw(line.number, line.line)
    return track_picture(title, stretches, _borders(line.again.rules, key.zone))


def _borders(rules: MeterRules, zone: str) -> list[Border]:
    """The charge's zone in all its versions, or its gate; outside of all zones those that are near the track."""
    fences = [
        Border(fence.id, tuple(np.asarray(ring.coords)[:, :2] for ring in _rings(fence.shape)))
        for fence in rules.zones.fences
        if zone in {"", fence.id}
    ]
    gates = [Border(gate.id, (gate.line,)) for gate in rules.gates.gates if gate.id == zone]
    return [*fences, *gates]


def _rings(shape: shapely.Geometry) -> list[shapely.LinearRing]:
    parts = [part for part in shapely.get_parts(shape) if isinstance(part, shapely.Polygon)]
    return [ring for part in parts for ring in (part.exterior, *part.interiors)]
