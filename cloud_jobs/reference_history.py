"""Every publication of one thing: who, when and why, what their signature is worth now, and what became of it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, NamedTuple

from cloud_jobs.in_force import in_force
from cloud_jobs.reference_files import usable
from geo.reference.in_force import publication_order
from geo.reference.messages import ReferenceTrust, stated_version
from geo.reference.moments import beginning
from waybill.identity.publication_id import PROPERTY, drawn_at
from waybill.identity.signatures import REASON, SIGNATURE, SIGNER, Publication


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
