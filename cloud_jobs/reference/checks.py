"""What a version of reference data would change: checks against the lake, differences and history."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import chain, islice
from math import isnan
from pathlib import Path
from typing import Any, Final, NamedTuple

from pydantic import ValidationError

from cloud_jobs.billing.contracts import Account
from cloud_jobs.billing.contracts.check import CheckedContracts, check_contracts
from cloud_jobs.lake.tables import Lake
from cloud_jobs.reference.files import PlacedVersion, ReferenceVersion, near_equal_fault, read_placed, usable
from cloud_jobs.reference.tables import in_force
from geo.alerts import AlertRule, UnusableRule, usable_rule
from geo.alerts.rule import matches_place
from geo.reference.in_force import publication_order
from geo.reference.messages import ReferenceTrust, stated_version
from geo.reference.moments import beginning, ending, instant_text
from waybill.identity.publication_id import PROPERTY, drawn_at
from waybill.identity.signatures import REASON, SIGNATURE, SIGNER, Publication
from waybill.settings import as_read, name_advice

# Checks of reference files against a lake, the same for `check` and `put`.

# Checks of alert rules: existing accounts and places, and replaced versions. Pure.

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
class ReferenceCheck:
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


def check_reference(files: Iterable[Path], lake: Lake | None, moment: datetime) -> ReferenceCheck:
    """What files say, beside what a lake has; None: by themselves.

    Raises ReferenceFileError where the files alone have a fault; LakeError, StoreUnavailable.
    """
    placed = read_placed(files)
    published = [] if lake is None else lake.rows("reference").to_pylist()
    stated = [
        {"kind": one.version.kind, "id": one.version.id, "body": one.version.body}
        | {"place": one.place, "place_of": one.place_of}
        for one in placed
    ]
    checked = check_contracts(published, stated, moment)
    rules = check_rules(published, stated)
    said = [f"{one.place}: {notice}" for one in placed for notice in one.notices]
    notices = [*said, *_swapped_fences(placed, published), *checked.notices, *rules.notices]
    slips = islice(chain(_near_equal_ids(placed, published, moment), _near_equal_devices(placed, published)), MAX_SLIPS)
    checked = checked._replace(
        faults=[*slips, *checked.faults], lacking=[*checked.lacking, *rules.lacking], notices=notices
    )
    return ReferenceCheck(tuple(placed), checked)


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


# Changes of a publication, field by field. Pure.

_NAMES: Final = (("tenant", "device", "begin"), ("meter", "zone", "window"), ("id",), ("name",))
"""By which keys the things of a list are known: the first of these that all of them have, and no two alike."""
_MAX_CHARACTERS: Final = 120


class FieldChange(NamedTuple):
    """A field that would be another one. None: it is not there."""

    path: str
    before: Any
    after: Any

    def __str__(self) -> str:
        if self.before is None:
            return f"{self.path}: + {_shown(self.after)}"
        if self.after is None:
            return f"{self.path}: - {_shown(self.before)}"
        return f"{self.path}: {_shown(self.before)} -> {_shown(self.after)}"


class VersionDiff(NamedTuple):
    """A version of files beside what is in force. `change`: `new`, `replaced`, `after another`, `same`.

    `compared_with`: the publication that it is compared with, and by whom that was; "": with nothing.
    """

    place: str
    kind: str
    id: str
    effective_from: str
    change: str
    compared_with: str
    fields: tuple[FieldChange, ...]


def diffs(rows: Iterable[dict[str, Any]], placed: Iterable[PlacedVersion]) -> Iterator[VersionDiff]:
    """Each version of files beside what rows of the table REFERENCE have in force.

    One with the same beginning would be replaced. A version with another beginning follows the one before it.
    """
    held: dict[tuple[str, str], list[tuple[str, dict[str, Any]]]] = {}
    for one in in_force(rows, usable).held:
        key = (one.row["kind"], one.row["id"])
        held.setdefault(key, []).append((beginning(one.row["kind"], one.row["body"]), one.row))
    for place, version, *_ in placed:
        begin = instant_text(version.effective_from)
        known = held.get((version.kind, version.id), [])
        same = next((row for other, row in known if other == begin), None)
        former = next((row for other, row in reversed(known) if other < begin), None)
        # a version says all of its thing, so what it would end is compared, too
        row = same or former
        fields = tuple(changes({} if row is None else json.loads(row["body"]), json.loads(version.body)))
        change = "new" if row is None else "after another" if same is None else "replaced" if fields else "same"
        by = "" if row is None else f"{row['publication_id']} by {row['published_by'] or 'nobody known'}"
        yield VersionDiff(place, version.kind, version.id, version.effective_from, change, by, fields)


def changes(before: Any, after: Any, path: str = "") -> Iterator[FieldChange]:
    """The fields in which two values of JSON differ, by their paths."""
    if before == after and type(before) is type(after):
        return
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for name in sorted({*before, *after}):
            yield from changes(before.get(name), after.get(name), f"{path}.{name}" if path else name)
    elif (found := _named(before, after)) is not None:
        for name in sorted({*found[0], *found[1]}):
            yield from changes(found[0].get(name), found[1].get(name), f"{path}[{name}]")
    else:
        yield FieldChange(path, before, after)


def _named(before: Any, after: Any) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """Two lists of things by their names; None where they have none."""
    if not isinstance(before or [], list) or not isinstance(after or [], list):
        return None
    both = [*(before or []), *(after or [])]
    if not both or not all(isinstance(one, dict) for one in both):
        return None
    for keys in _NAMES:
        if all(keys[0] in one for one in both):
            lists = [_by_name(some or [], keys) for some in (before, after)]
            if len(lists[0]) == len(before or []) and len(lists[1]) == len(after or []):
                return lists[0], lists[1]
    return None


def _by_name(things: Sequence[dict[str, Any]], keys: tuple[str, ...]) -> dict[str, Any]:
    return {" ".join(str(one[key]) for key in keys if one.get(key) is not None): one for one in things}


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, sort_keys=True)
    return text if len(text) <= _MAX_CHARACTERS else f"{text[:_MAX_CHARACTERS]}... ({len(text)} characters)"


class HistoryEntry(NamedTuple):
    """One publication. `state`: `in force`, `replaced`, `cannot be used`, or `refused`: it was taken into quarantine.

    `signature`: `signed`, `unsigned`, `not checked` without keys to check it by, or the word of what is wrong with it.
    """

    kind: str
    id: str
    effective_from: str
    published_at: str
    published_by: str
    signer: str
    reason: str
    signature: str
    state: str
    publication_id: str
    problem: str
    body: str


def history(
    rows: Iterable[dict[str, Any]], quarantined: Iterable[dict[str, Any]], trust: ReferenceTrust
) -> list[HistoryEntry]:
    """What rows of REFERENCE and of its quarantine, all of one thing, amount to, in the order of the publications."""
    ordered = sorted(rows, key=publication_order)
    found = in_force(ordered, usable)
    held = {one.row["publication_id"] for one in found.held}
    unusable = {one.publication_id: one.reason for one in found.refused}
    entries = [_entry(row, trust, held, unusable) for row in ordered] + [_refused(row) for row in quarantined]
    return sorted(entries, key=lambda one: one.publication_id)


def _entry(row: dict[str, Any], trust: ReferenceTrust, held: set[str], unusable: dict[str, str]) -> HistoryEntry:
    publication_id = row["publication_id"]
    states = {True: "in force", False: "cannot be used" if publication_id in unusable else "replaced"}
    return HistoryEntry(
        row["kind"],
        row["id"],
        beginning(row["kind"], row["body"]),
        f"{drawn_at(publication_id):%Y-%m-%d %H:%M:%S}Z",
        row["published_by"] or "",
        row["signer"] or "",
        row["reason"] or "",
        _signature(row, trust),
        states[publication_id in held],
        publication_id,
        unusable.get(publication_id, ""),
        row["body"],
    )


def _signature(row: dict[str, Any], trust: ReferenceTrust) -> str:
    body = json.loads(row["body"])
    key = "@".join(stated_version(row["kind"], body))
    # as the publisher names its message; who spells the key in another way has a signature of another message
    properties = {SIGNER: row["signer"], SIGNATURE: row["signature"], REASON: row["reason"]}
    publication = Publication(row["kind"], key, row["body"].encode())
    known = {name: text for name, text in properties.items() if text is not None}
    return trust.signature_state(publication, body, known | {PROPERTY: row["publication_id"]})


def _refused(row: dict[str, Any]) -> HistoryEntry:
    payload = (row.get("payload") or b"").decode("utf-8", "replace")
    at = "" if row["published_at"] is None else f"{row['published_at']:%Y-%m-%d %H:%M:%S}Z"
    kind = row["topic"].rpartition("/")[2]
    name, publication_id = row["key"] or "", row["publication_id"] or ""
    return HistoryEntry(kind, name, "", at, "", "", "", "", "refused", publication_id, row["reason"], payload)
