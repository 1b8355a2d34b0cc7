"""Prices of zones that there are: a mistyped zone would never be priced, and what is in the right one by another price.

A fence that is published later brings the zone; until then the price is for nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from pydantic import ValidationError

from cloud_jobs.billing.contracts.price import ANY_ZONE
from cloud_jobs.billing.contracts.tariff import Tariff
from cloud_jobs.billing.meters import Meter
from cloud_jobs.in_force import in_force
from geo.reference.fences import usable_fence
from waybill.settings import as_read, name_advice

MAX_FAULTS: Final = 100
Row = dict[str, Any]
_LAST: Final[Row] = {"publication_id": "~", "published_at": datetime.max.replace(tzinfo=UTC)}
"""A stated version, of no publication yet, comes after all that are published."""


def faults_of_zones(published: Sequence[Row], stated: Sequence[Row]) -> Iterator[tuple[str, bool]]:
    """What is wrong with the zones of stated prices, each behind its place, and whether a zone is merely not there.

    Fences and gates are those of both, as rows of the table `reference`. Without any publication and any fence nobody
    knows which zones there are, and nothing is said.
    """
    fences = [row for row in (*published, *stated) if row["kind"] == "fence"]
    if not published and not fences:
        return
    named = [
        (row, number, price.meter, price.zone)
        for row in stated
        if row["kind"] == "tariff" and (tariff := _tariff(row["body"]))
        for number, price in enumerate(tariff.prices)
        if price.zone not in {"", ANY_ZONE}
    ]
    gates = _gates(fences, {zone for *_, zone in named})
    # by their names alone: to see whether all of them can be used would take long
    known = {row["id"] for row in fences}
    for row, number, meter, zone in named[:MAX_FAULTS]:
        place = row["place_of"]("prices", number, "zone") if "place_of" in row else row["place"]
        price = f"{place}: tariff {row['id']!r}: prices.{number} is for {meter} in zone {zone!r}"
        if zone not in gates:
            # what is published later is never the one that reads the same: the price would be for nothing
            is_lack = not any(one != zone and as_read(one) == as_read(zone) for one in known)
            yield f"{price}, which no fence or gate is that can be used{name_advice(zone, known)}", is_lack
        elif gates[zone] != (meter is Meter.CROSSING):
            what = (
                "a gate, in which nothing is; a gate has crossings"
                if gates[zone]
                else "a fence; crossings are of gates"
            )
            yield f"{price}, which is {what}", False


def _gates(fences: Iterable[Row], names: set[str]) -> dict[str, bool]:
    """Of some ids those that are in force, and whether they are gates; no others are read: there may be a country's."""
    from geo.spatial import Gate  # noqa: PLC0415, as in `published_fences`

    rows = [_LAST | row for row in fences if row["id"] in names]
    found = in_force(rows, lambda _, body: usable_fence(body))
    return {held.row["id"]: isinstance(held.made, Gate) for held in found.held}


def _tariff(body: str) -> Tariff | None:
    try:
        return Tariff.model_validate_json(body)
    except ValidationError:
        return None
