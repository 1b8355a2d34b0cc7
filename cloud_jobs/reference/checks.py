"""Checks of reference files against the lake, their differences, and the history of publications."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from difflib import unified_diff
from itertools import islice
from math import isnan
from pathlib import Path
from typing import Any, Final, NamedTuple

from cloud_jobs.billing.contracts.check import CheckedContracts, check_contracts
from cloud_jobs.lake.tables import Lake
from cloud_jobs.reference.files import PlacedVersion, ReferenceVersion, read_placed, usable
from cloud_jobs.reference.tables import in_force
from geo.alerts import AlertRule, UnusableRule, usable_rule
from geo.alerts.rule import matches_place
from geo.reference.in_force import publication_order
from geo.reference.messages import ReferenceTrust, stated_version
from geo.reference.moments import beginning, instant_text
from waybill.identity.signatures import ID_PROPERTY, REASON, SIGNATURE, SIGNER, Publication, drawn_at
from waybill.settings import name_advice

# Checks of reference files against a lake, the same for `check` and `put`.

# Checks of alert rules: existing accounts and places, and replaced versions. Pure.

MAX_LACKING: Final = 100
_KIND: Final = "alert_rule"
Row = dict[str, Any]


def check_rules(published: Sequence[Row], stated: Sequence[Row]) -> list[str]:
    """What stated alert rules refer to and is neither published nor stated, with file and line.

    `published`: all rows of the table `reference`. Without any publication fences are unknown and not checked.
    """
    # the fault of a rule that cannot be used is named elsewhere
    rules = [(row, made) for row in stated if row["kind"] == _KIND and (made := _rule(row["body"]))]
    known = {kind: {row["id"] for row in (*published, *stated) if row["kind"] == kind} for kind in ("account", "fence")}
    lacking = (said for row, rule in rules for said in _lacking(row, rule, known, knows_fences=bool(published)))
    return [*islice(lacking, MAX_LACKING)]


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


def _place(row: Row, *inner: str | int) -> str:
    return str(row["place_of"](*inner) if "place_of" in row else row["place"])


_NEAR_DEG: Final = 1.0
_NAMED: Final = ("account", "legal_entity")


@dataclass(frozen=True, slots=True)
class ReferenceCheck:
    """The versions of files, their faults, and what they would change."""

    placed: tuple[PlacedVersion, ...]
    checked: CheckedContracts

    @property
    def versions(self) -> tuple[ReferenceVersion, ...]:
        return tuple(one.version for one in self.placed)

    @property
    def rows(self) -> list[Row]:
        """The versions as rows of the table `reference` that are not published yet."""
        return [{"kind": one.kind, "id": one.id, "body": one.body} for one in self.versions]

    @property
    def counts(self) -> Counter[Any]:
        return Counter(version.kind for version in self.versions)


def check_reference(files: Iterable[Path], lake: Lake | None, moment: datetime) -> ReferenceCheck:
    """Checks files, against a lake if there is one.

    Raises ReferenceFileError for faults of the files alone; LakeError, StoreUnavailable.
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
    notices = [*said, *_swapped_fences(placed, published), *_undrawn_names(stated), *checked.notices]
    checked = checked._replace(lacking=[*checked.lacking, *rules], notices=notices)
    return ReferenceCheck(tuple(placed), checked)


def _swapped_fences(placed: Iterable[PlacedVersion], published: Iterable[Row]) -> list[str]:
    """Warns of fences far from all published ones that would be among them with swapped axes."""
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


def _undrawn_names(stated: Iterable[Row]) -> list[str]:
    """Warns of names in contracts that the PDF of a document would show as numbers, for lack of a font."""
    # bodies are JSON, which may have escaped what is not ASCII
    texts = ((row, json.dumps(json.loads(row["body"]), ensure_ascii=False)) for row in stated if row["kind"] in _NAMED)
    foreign = [(row, text) for row, text in texts if not text.isascii()]
    if not foreign:
        return []
    from cloud_jobs.billing.documents.pdf import FONT_VARIABLE, undrawn  # noqa: PLC0415 - most names are ASCII

    found = [(row, signs) for row, text in foreign if (signs := undrawn(text))]
    if not found:
        return []
    (row, signs), others = found[0], f" (and {len(found) - 1:,} more)" if len(found) > 1 else ""
    said = (
        f"{row['place']}: {row['kind']} {row['id']!r}{others}: no font has {''.join(signs[:10])}, so a PDF shows "
        f"[U+{ord(signs[0]):04X}]; where documents are printed, set {FONT_VARIABLE} to a file that has it, as "
        "DroidSansFallback.ttf of Debian's package fonts-droid-fallback"
    )
    return [said]


# The difference between files and the versions in force.


class VersionDiff(NamedTuple):
    """A version of files beside what is in force. `change`: `new`, `replaced`, `after another`, `same`.

    `compared_with`: the compared publication and its author, or "". `lines`: changed lines of the JSON bodies.
    """

    place: str
    kind: str
    id: str
    effective_from: str
    change: str
    compared_with: str
    lines: tuple[str, ...]


def diffs(rows: Iterable[dict[str, Any]], placed: Iterable[PlacedVersion]) -> Iterator[VersionDiff]:
    """Compares each version of files with rows of the table `reference`.

    A version is compared with the one in force with the same beginning, which it would replace, else with the one
    before it.
    """
    held: dict[tuple[str, str], list[tuple[str, dict[str, Any]]]] = {}
    for one in in_force(rows, usable).held:
        key = (one.row["kind"], one.row["id"])
        held.setdefault(key, []).append((beginning(one.row["kind"], one.row["body"]), one.row))
    for place, version, *_ in placed:
        begin = instant_text(version.effective_from)
        known = held.get((version.kind, version.id), [])
        same = next((row for other, row in known if other == begin), None)
        row = same or next((row for other, row in reversed(known) if other < begin), None)
        lines = _changed_lines("{}" if row is None else row["body"], version.body)
        change = "new" if row is None else "after another" if same is None else "replaced" if lines else "same"
        by = "" if row is None else f"{row['publication_id']} by {row['published_by'] or 'nobody known'}"
        yield VersionDiff(place, version.kind, version.id, version.effective_from, change, by, lines)


def _changed_lines(before: str, after: str) -> tuple[str, ...]:
    old, new = (
        json.dumps(json.loads(body), indent=1, sort_keys=True, ensure_ascii=False).splitlines()
        for body in (before, after)
    )
    lines = unified_diff(old, new, lineterm="")
    return tuple(line for line in lines if not line.startswith(("---", "+++", "@@")))


class HistoryEntry(NamedTuple):
    """One publication. `state`: `in force`, `replaced`, `cannot be used`, or `refused` (quarantined).

    `signature`: `signed`, `unsigned`, `not checked` without keys, or the fault.
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
    """The publications of one id, from rows of REFERENCE and of its quarantine, in their order."""
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
    return trust.signature_state(publication, body, known | {ID_PROPERTY: row["publication_id"]})


def _refused(row: dict[str, Any]) -> HistoryEntry:
    payload = (row.get("payload") or b"").decode("utf-8", "replace")
    at = "" if row["published_at"] is None else f"{row['published_at']:%Y-%m-%d %H:%M:%S}Z"
    kind = row["topic"].rpartition("/")[2]
    name, publication_id = row["key"] or "", row["publication_id"] or ""
    return HistoryEntry(kind, name, "", at, "", "", "", "", "refused", publication_id, row["reason"], payload)
