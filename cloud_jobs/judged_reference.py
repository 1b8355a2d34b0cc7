"""Files of reference data, judged beside what a lake has: one judgement for checking and for publishing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import chain, islice
from math import isnan
from pathlib import Path
from typing import Any, Final, NamedTuple

from pydantic import ValidationError

from cloud_jobs.billing.contracts import Account
from cloud_jobs.billing.contracts.check import Bills, CheckedContracts, check_contracts
from cloud_jobs.lake.tables import Lake
from cloud_jobs.reference_files import PlacedVersion, ReferenceVersion, near_equal_fault, read_placed
from geo.alerts import AlertRule, UnusableRule, usable_rule
from geo.alerts.rule import matches_place
from geo.reference.in_force import publication_order
from geo.reference.moments import beginning, ending
from waybill.settings import as_read, name_advice

# Alert rules before they are published: accounts and places that there are, and versions that replace others. Pure.

MAX_LACKING: Final = 100
_KIND: Final = "alert_rule"
Row = dict[str, Any]


class CheckedRules(NamedTuple):
    """`lacking`: what rules need and is neither published nor stated; `notices`: what may be meant, or a slip."""

    lacking: list[str]
    notices: list[str]


def check_rules(published: Sequence[Row], stated: Sequence[Row]) -> CheckedRules:
    """Judges the rules of stated rows, each with its `place`, beside all rows of the table `reference`.

    Without any publication nobody knows which fences there are, and of them nothing is said.
    """
    # a rule that cannot be used has a fault of its own, named elsewhere
    rules = [(row, made) for row in stated if row["kind"] == _KIND and (made := _rule(row["body"]))]
    if not rules:
        return CheckedRules([], [])
    known = {kind: {row["id"] for row in (*published, *stated) if row["kind"] == kind} for kind in ("account", "fence")}
    lacking = [said for row, rule in rules for said in _lacking(row, rule, known, knows_fences=bool(published))]
    return CheckedRules(lacking[:MAX_LACKING], [*_replaced(published, [row for row, _ in rules])])


def _rule(body: str) -> AlertRule | None:
    try:
        return usable_rule(body).made
    except UnusableRule:
        return None


def _lacking(row: Row, rule: AlertRule, known: dict[str, set[str]], *, knows_fences: bool) -> Iterator[str]:
    if rule.account not in known["account"]:
        advice = name_advice(rule.account, known["account"])
        yield f"{_place(row)}: alert_rule {rule.id!r} is of account {rule.account!r}, which was not published{advice}"
    if not knows_fences and not known["fence"]:
        return
    for number, pattern in enumerate(rule.places):
        if not any(matches_place(pattern, one) for one in known["fence"]):
            advice = name_advice(pattern, known["fence"])
            yield (
                f"{_place(row, 'places', number)}: alert_rule {rule.id!r}: no fence or gate was published as "
                f"{pattern!r}{advice}"
            )


def _replaced(published: Sequence[Row], stated: Sequence[Row]) -> Iterator[str]:
    def version(row: Row) -> tuple[str, str]:
        return row["id"], beginning(_KIND, row["body"])

    bodies = {version(row): row["body"] for row in sorted(published, key=publication_order) if row["kind"] == _KIND}
    for row in stated:
        if bodies.get(version(row), row["body"]) != row["body"]:
            yield (
                f"{row['place']}: alert_rule {row['id']!r} from {version(row)[1]} is published with another content; "
                "this replaces it from that moment on"
            )


def _place(row: Row, *inner: str | int) -> str:
    return str(row["place_of"](*inner) if "place_of" in row else row["place"])


MAX_SLIPS: Final = 100
"""So many ids that read as others are named."""
_NEAR_DEG: Final = 1.0


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
