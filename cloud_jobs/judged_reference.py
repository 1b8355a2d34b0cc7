"""Files of reference data, judged beside what a lake has: one judgement for checking and for publishing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import chain, islice
from math import isnan
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from cloud_jobs.alert_rule_checks import check_rules
from cloud_jobs.billing.contracts import Account
from cloud_jobs.billing.contracts.check import CheckedContracts, check_contracts
from cloud_jobs.billing.contracts.what_if import Bills
from cloud_jobs.lake.tables import Lake
from cloud_jobs.reference_files import PlacedVersion, ReferenceVersion, near_equal_fault, read_placed
from geo.reference.beginning import beginning, ending
from geo.reference.in_force import publication_order
from waybill.settings import as_read

MAX_SLIPS: Final = 100
"""So many ids that read as others are named."""
_NEAR_DEG: Final = 1.0
Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class JudgedReference:
    """The versions of files, what is wrong with them, and what they would change."""

    placed: tuple[PlacedVersion, ...]
    checked: CheckedContracts

    @property
    def versions(self) -> tuple[ReferenceVersion, ...]:
        """The versions, without where they stand."""
        return tuple(one.version for one in self.placed)

    @property
    def counts(self) -> Counter[Any]:
        """How many versions there are of each kind."""
        return Counter(version.kind for version in self.versions)


def judged_reference(
    files: Iterable[Path], lake: Lake | None, moment: datetime, bills: Bills | None = None
) -> JudgedReference:
    """What files say, beside what a lake has; None: by themselves. `bills`: also which of these would change.

    Raises ReferenceFileError where the files alone have a fault; LakeError, StoreUnavailable.
    """
    placed = read_placed(files)
    published = [] if lake is None else lake.rows("reference").to_pylist()
    stated = [
        {"kind": one.version.kind, "id": one.version.id, "body": one.version.body}
        | {"place": one.place, "place_of": one.place_of}
        for one in placed
    ]
    checked = check_contracts(published, stated, moment, bills)
    rules = check_rules(published, stated)
    said = [f"{one.place}: {notice}" for one in placed for notice in one.notices]
    notices = [*said, *_swapped_fences(placed, published), *checked.notices, *rules.notices]
    slips = islice(chain(_near_equal_ids(placed, published, moment), _near_equal_devices(placed, published)), MAX_SLIPS)
    checked = checked._replace(
        faults=[*slips, *checked.faults], lacking=[*checked.lacking, *rules.lacking], notices=notices
    )
    return JudgedReference(tuple(placed), checked)


def _near_equal_ids(placed: Iterable[PlacedVersion], published: Iterable[Row], moment: datetime) -> Iterator[str]:
    """Ids that read as another one of their kind that is published and has not ended: a bill would know two things."""
    known: dict[tuple[str, str], dict[str, list[Row]]] = {}
    for row in published:
        known.setdefault((row["kind"], as_read(row["id"])), {}).setdefault(row["id"], []).append(row)
    for place, version, *_ in placed:
        for other, rows in known.get((version.kind, as_read(version.id)), {}).items():
            if other != version.id and not _has_ended(rows, moment):
                yield f"{place}: {near_equal_fault(version.kind, version.id, other, 'published')}"


def _has_ended(rows: Iterable[Row], moment: datetime) -> bool:
    """Whether the last version of a thing has an end, and that is over: what is written by mistake is ended so."""
    last = max(rows, key=lambda row: (beginning(row["kind"], row["body"]), publication_order(row)))
    end = ending(last["kind"], last["body"])
    return end is not None and end <= moment


def _near_equal_devices(placed: Sequence[PlacedVersion], published: Iterable[Row]) -> Iterator[str]:
    """Devices of stated accounts that read as another one of these, or of a published account that is not stated."""
    accounts = {one.version.id for one in placed if one.version.kind == "account"}
    if not accounts:
        return
    first: dict[tuple[str, str], tuple[str, str]] = {}
    for row in published:
        if row["kind"] == "account" and row["id"] not in accounts:
            for tenant, device in _devices(row["body"]):
                first.setdefault((tenant, as_read(device)), (device, f"account {row['id']!r}"))
    for place, version, *_ in placed:
        if version.kind == "account":
            for tenant, device in _devices(version.body):
                other, where = first.setdefault((tenant, as_read(device)), (device, f"account {version.id!r}"))
                if other != device:
                    yield f"{place}: account {version.id!r}: {near_equal_fault('device', device, other, where)}"


def _devices(body: str) -> list[tuple[str, str]]:
    try:
        stated = Account.model_validate_json(body).devices
    except ValidationError:
        return []  # of a published version: it is not in force
    return [(one.tenant, one.device) for one in stated]


def _swapped_fences(placed: Iterable[PlacedVersion], published: Iterable[Row]) -> list[str]:
    """That stated fences are far from all published ones, and would be among them with their axes swapped."""
    stated = [one for one in placed if one.version.kind == "fence"]
    there = [row["body"] for row in published if row["kind"] == "fence"]
    if not stated or not there:
        return []
    import shapely  # noqa: PLC0415 - contracts are judged without it

    from geo.spatial.geojson import latitude_first  # noqa: PLC0415

    def boxes(bodies: Sequence[str]) -> Any:
        return shapely.bounds(shapely.from_geojson(bodies, on_invalid="ignore"))

    places = [box for box in boxes(there).tolist() if not isnan(box[0])]
    numbers = latitude_first(boxes([one.version.body for one in stated]).tolist(), places, _NEAR_DEG)
    if not numbers:
        return []
    first = stated[numbers[0]]
    others = f" (and {len(numbers) - 1:,} more)" if len(numbers) > 1 else ""
    said = "is far from all that are published, and among them with latitude and longitude swapped"
    return [f"{first.place}: fence {first.version.id!r}{others} {said}: GeoJSON has the longitude first"]
