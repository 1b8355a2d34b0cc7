"""What each table of the lake and each of its columns means.

Tables carry these texts as Delta comments; the pages `docs/tables.md` and `docs/tables-internal.md` and the data
contracts are made from them.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import pyarrow as pa

from cloud_jobs.lake.schemas import OBSERVED, QUANTITIES, TABLES


class TableDescription(NamedTuple):
    """`row`: what one row is. `key`: the columns that identify it. `columns`: those that SHARED does not explain."""

    row: str
    key: tuple[str, ...]
    columns: dict[str, str]
    is_published: bool = False
    """Whether customers query it: it has a data contract."""


SHARED: Final = {
    "tenant": "Customer that owns the vehicle.",
    "device": "Vehicle; unique within its tenant.",
    "region": "Region whose gateway received the record.",
    "epoch": "Number of the vehicle's buffer. Above 2^53: cast it to text for JavaScript, JSON and spreadsheets.",
    "seq": "Number of the record within its epoch: 1, 2, 3, … without gaps.",
    "revision": "Counts from 0; the highest revision of an id is in force.",
    "retracted": "True: the event did not happen.",
    "place": "Id of the fence or gate.",
    "commit_number": "Commit that wrote the row, from 1, increasing.",
    "emitted_at": "Time of the run that wrote the row, by the centre's clock.",
    "collected_at": "Time at which the centre read it, by the centre's clock.",
    "first_day": "First local day of the billing period; the partition.",
    "last_day": "Last local day of the billing period.",
    "payer": "Id of the account that pays.",
    "legal_entity": "Id of the seller.",
    "run": "Run of `close` that wrote the row; it counts once `closings` names that run.",
    "currency": "ISO 4217 code of the amounts.",
    "net_minor": "Net amount in minor units (cents).",
    "tax_minor": "Tax in minor units (cents).",
    "rounding_minor": "What is added to net and tax to make the sum to pay, in minor units.",
    "time_zone": "IANA time zone of the period's days.",
    "message_id": "Pulsar's id of the message.",
}
"""Columns that mean the same in each table that has them and does not explain them itself."""

QUARTERS: Final = "Four numbers, one per quarter of the hour: "

_USAGE: Final = TableDescription(
    "Usage of a vehicle in one UTC hour and zone. The row with the highest commit of its tenant, device, hour and zone "
    "is in force.",
    ("tenant", "device", "hour", "zone", "commit_number"),
    {
        "hour": "Start of the UTC hour.",
        "zone": "Id of the fence; empty: outside all; `*`: the whole vehicle; `*late`: only names late positions.",
        "distance_mm": f"{QUARTERS}distance in mm. Rows of zones and of the outside have it; zones never overlap.",
        "duration_ms": f"{QUARTERS}time in ms. Rows of zones and of the outside have it.",
        "entries": f"{QUARTERS}entries into the zone.",
        "crossings": f"{QUARTERS}crossings, if the zone is a gate.",
        "events": f"{QUARTERS}event records; only in rows of `*`.",
        "content_bytes": f"{QUARTERS}billed bytes of all records; only in rows of `*`.",
        "messages": f"{QUARTERS}readable records; only in rows of `*`.",
        "positions": f"{QUARTERS}position records; only in rows of `*`.",
        "kept": f"{QUARTERS}positions that tracks use; only in rows of `*`.",
        "refused": f"{QUARTERS}positions that tracks refuse and that may hide distance; only in rows of `*`.",
        "driven_ms": f"{QUARTERS}time driven faster than 1 m/s; only in rows of `*`.",
        "unknown_ms": f"{QUARTERS}time in gaps of more than 200 m; only in rows of `*`.",
        "unknown_mm": f"{QUARTERS}straight distance of gaps of more than 200 m; only in rows of `*`.",
        "inferred_entries": f"{QUARTERS}entries inferred from a gap.",
        "unreadable": "JSON: raw records by `kind/reason`, four numbers each; empty: none. Only in rows of `*`.",
        "counters": "JSON: messages dropped by the vehicle's broker, and odometer bounds in metres; empty: none.",
        "seq_ranges": "JSON: the records behind the row, `{epoch: [[first, last], …]}`.",
        "fence_version": "Digest of the versions of the fence in this hour; empty: no fence.",
        "engine_version": "Version of the spatial engine that computed the row.",
        "digest": "16 hex digits of the SHA-256 over the row.",
        "day": "UTC day of the hour; the partition.",
        "computed_at": "Time of the computation, by the job's clock.",
        "rules_number": "Number of the track settings and engine version that decided the row.",
    },
    is_published=True,
)

_RECORDS: Final = TableDescription(
    "One record of a vehicle, exactly once.",
    ("tenant", "device", "epoch", "seq"),
    {
        "kind": "`position`, `signal`, `event`, `canary` or `raw`.",
        "device_time": "Time of the record by the vehicle's clock, UTC.",
        "received_at": "Time at which the region stored the batch; null: unknown.",
        "latitude": "WGS84 degrees; null: not a position.",
        "longitude": "WGS84 degrees; null: not a position.",
        "altitude_m": "Metres above the ellipsoid or sea level, as the receiver says.",
        "speed_mps": "Metres per second.",
        "heading_deg": "Degrees clockwise from north, 0 to 360.",
        "accuracy_m": "Horizontal accuracy in metres.",
        "name": "Path of a signal, name of an event, id of a canary, topic of a raw record.",
        "number": "Value of a numeric signal, an IEEE 754 double; whole numbers above 2^53 are refused.",
        "text": "Text or bool of a signal, JSON attributes of an event, reason of a raw record.",
        "payload": "Uninterpreted bytes of a raw record.",
        "time_uncertainty_ms": "0: time as measured; else half-width of a corrected time.",
        "monotonic_us": "Microseconds of the vehicle's monotonic clock since its boot.",
        "boot": "Identifies the boot that `monotonic_us` counts from.",
        "mapping": "Name and digest of the mapping that translated a foreign message; null: none.",
        "content_bytes": "Billed bytes: 16, plus 8 for each number, plus texts and payload.",
        "device_date": "UTC day of `device_time`, the partition; null: the clock is far off.",
        "ingested_at": "Time of the ingest, by the centre's clock.",
        "ingest_number": "Commit of the ingest, from 1.",
    },
    is_published=True,
)

_EVENTS: Final = {
    "id": "Hash of vehicle, fix, kind, place and UTC day.",
    "epoch": "Epoch of the fix at the event's time, or of the first one after it. Above 2^53, see `records`.",
    "seq": "Seq of the fix at the event's time, or of the first one after it.",
    "kind": "`enter`, `exit`, `dwell`, `forward`, `backward` or `speeding`.",
    "time": "Time of the event, UTC.",
    "value": "Seconds of the visit (`exit`, `dwell`), highest m/s (`speeding`), else 0.",
    "day": "UTC day of `time`; the partition.",
}

_OF_JOBS: Final = {
    "records": _RECORDS,
    "usage": _USAGE,
    "geofence_events": TableDescription(
        "A revision of an event at a fence or gate.", ("id", "revision"), _EVENTS, is_published=True
    ),
    "encounters": TableDescription(
        "A revision of an encounter of two vehicles of a tenant.",
        ("id", "revision"),
        {
            "id": "Hash of tenant, both vehicles, the 15 minutes of its start and an index.",
            "device_a": "The vehicle whose name sorts first; `*`: a crowd.",
            "device_b": "The other vehicle.",
            "start": "First moment within the distance, UTC.",
            "end": "Last moment within the distance, UTC.",
            "min_m": "Closest distance in metres.",
            "min_at": "Time of the closest distance.",
            "retracted": "True: the encounter did not happen.",
            "parts": "JSON for later runs of the job; not for queries.",
            "day": "UTC day; the partition. No encounter spans two days.",
        },
        is_published=True,
    ),
    "alerts": TableDescription(
        "An alert that a region raised, as it first arrived.",
        ("id",),
        _EVENTS
        | {
            "id": "Id of the alert; that of the event if it is confirmed.",
            "region": "Region that raised the alert.",
            "received_at": "Time at which the region received the record, by its clock.",
            "raised_at": "Time at which the region raised the alert, by its clock.",
            "seen_until": "Newest records that the region used: epoch, seq, epoch, seq, …; empty: not stated.",
        },
        is_published=True,
    ),
    "verdicts": TableDescription(
        "A revision of the centre's verdict on an alert, or on an event without an alert.",
        ("id", "revision"),
        _EVENTS
        | {
            "id": "Id of the alert or event.",
            "verdict": "`confirmed`, `corrected`, `withdrawn` or `late` (an event without an alert).",
            "reason": "Why the alert is corrected or withdrawn; null: no reason.",
            "alerted_time": "Time in the region's alert; null: no alert.",
            "alerted_value": "Value in the region's alert; null: no alert.",
            "previous_time": "Time in the previous revision.",
            "previous_value": "Value in the previous revision.",
        },
        is_published=True,
    ),
}

_OF_BILLS: Final = {
    "rated_lines": TableDescription(
        "One charge of a closing.",
        ("run", "payer", "account", "region", "tenant", "device", "kind", "meter", "zone", "window", "price", "tax"),
        {
            "account": "Id of the account that used it.",
            "region": "Region of a record charge; empty: none.",
            "tenant": "Customer of the vehicle; empty: the charge is of no vehicle.",
            "device": "Vehicle; empty: the charge is of no vehicle.",
            "kind": "`usage`, or the kind of another charge.",
            "meter": "What is metered, such as `distance`; empty: nothing.",
            "zone": "Zone that is priced; empty: outside all fences, or a meter without zones.",
            "window": "Time window of the price with its hours, such as `night (mon-fri 22:00-06:00)`; empty: none.",
            "price": "Price or fee as text, such as `0.45 EUR/km`.",
            "tax": "VAT category (UNCL 5305) and rate in per cent, such as `S 19`.",
            "quantity": "Quantity in the meter's base unit (mm, ms, bytes, pieces); of a fee 1.",
            "free": "Free part of the quantity, in the base unit.",
            "amount_minor": "Amount in minor units of the payer's currency.",
            "rows": "Number of usage rows behind the charge; null: none.",
            "first_hour": "First hour of that usage.",
            "last_hour": "Last hour of that usage.",
            "digest": "SHA-256 of those usage rows.",
            "parts": "Days that a daily cap reduced, or up to 100 visits and passages: begin, quantity, amount "
            "(`2026-03-02T09:00:00Z/2400000/300`), and how many more (`+17`).",
            "gross_minor": "Amount with tax of a price that includes it; otherwise 0.",
        },
        is_published=True,
    ),
    "documents": TableDescription(
        "An issued invoice or note; never changed.",
        ("legal_entity", "counter"),
        {
            "first_day": "First local day of the billing period.",
            "counter": "Number within the legal entity, from 1 without gaps.",
            "number": "Printed document number.",
            "type": "UNTDID 1001: 380 invoice, 381 credit note, 383 debit note.",
            "closing": "Id of the closing that it posts; empty: a void.",
            "before": "Id of the closing posted until then; empty: an invoice.",
            "snapshot": "Number of the lake's snapshot.",
            "closing_number": "Commit of the posted closing.",
            "net_minor": "Net amount in minor units; negative for a credit.",
            "tax_minor": "Tax in minor units; negative for a credit.",
            "issued_at": "Time of issue, UTC.",
            "issue_date": "Date of issue on the document.",
            "due_date": "Date until which it is to be paid; null: a credit.",
            "reference_number": "Number of the invoice that a note corrects; null: an invoice.",
            "reference_date": "Date of that invoice.",
            "by": "Who issued it.",
            "reason": "Why it was issued; empty: no reason was given.",
            "head": "JSON: the document without its lines.",
            "digest": "SHA-256 of the whole document.",
            "attempt": "Command that wrote it.",
        },
        is_published=True,
    ),
    "payments": TableDescription(
        "A payment of a document, as a file of the accounting system states it; never changed.",
        ("id",),
        {
            "id": "Digest of document, date, amount, currency, reference and number among equal rows of its file.",
            "document": "Number of the document.",
            "date": "Day of the payment.",
            "amount_minor": "Amount in minor units; negative for a refund or a correction.",
            "reference": "Reference of the accounting system; empty: none.",
            "by": "Who imported it.",
            "imported_at": "Time of the import, UTC.",
        },
        is_published=True,
    ),
    "closings": TableDescription(
        "What a payer owes for a period at a snapshot. The newest snapshot and commit is in force.",
        ("payer", "first_day", "last_day", "snapshot", "number"),
        {
            "snapshot_id": "Id of the lake's snapshot.",
            "run": "Run that wrote the charges and certificates of this closing.",
            "outcome": "`final`, `provisional` or `blocked`.",
            "reasons": "JSON: why it is not final.",
            "number_prefix": "Prefix of the document numbers.",
            "taxes": "JSON: taxable amount and tax by category and rate.",
            "lines_digest": "SHA-256 over the charges.",
            "body_digest": "SHA-256 over lines, sub-totals and annex of the invoice; empty: no valid invoice.",
            "certificates_digest": "SHA-256 over the certificates.",
            "control_totals": "JSON: sums that the closing was checked against.",
            "parties": "JSON: seller, buyer and notes.",
            "contract_digest": "SHA-256 of the payer's contract.",
            "decisions": "JSON: numbers of the decisions that its certificates use.",
            "snapshot": "Number of the snapshot.",
            "number": "Commit of this table, from 1.",
            "charges": "Number of charges.",
            "period_start": "Start of the period, UTC.",
            "period_end": "End of the period, UTC, excluded.",
            "closed_at": "Time of the closing, UTC.",
        },
    ),
    "certificates": TableDescription(
        "The certificate of completeness of a vehicle in a closing.",
        ("run", "payer", "tenant", "device"),
        {
            "state": "State of the vehicle's records in the period.",
            "digest": "SHA-256 of the certificate.",
            "certificate": "JSON: the certificate in canonical form.",
        },
    ),
}

_INTERNAL: Final = {
    "quarantine": TableDescription(
        "A malformed message, or a known record id with other content.",
        ("cause", "fingerprint"),
        {
            "cause": "`conflict` or `malformed`.",
            "fingerprint": "SHA-256 of the refused input.",
            "detail": "JSON of the conflict, or why the message is malformed.",
            "payload": "Bytes of the message.",
            "topic": "Topic of the message.",
            "quarantined_at": "Time, by the centre's clock.",
        },
    ),
    "ingest_batches": TableDescription(
        "A completed micro-batch of the ingest with its counts.",
        ("ingest_number",),
        {
            "ingest_number": "Commit of the ingest, from 1.",
            "committed_at": "Time of the commit.",
            "messages": "Messages read, with the malformed ones.",
            "records": "Records read; each is accepted or a duplicate.",
            "accepted": "New records.",
            "duplicates": "Records that were known, with the conflicts.",
            "conflicts": "Known record ids with other content.",
            "malformed": "Messages that are not a consistent batch.",
            "far_off": "Accepted records without a day, because the clock is far off.",
            "disbelieved": "Statements ignored because the region's clock is ahead.",
            "clocks_ahead": "Regions of the ignored statements.",
            "unreadable": "Raw records that the agent should have been able to read.",
            "unreadable_of": "JSON: unreadable records by vehicle.",
            "seconds": "Duration of the micro-batch.",
        },
    ),
    "reference": TableDescription(
        "A publication of a fence, tariff, account or legal entity.",
        ("publication_id",),
        {
            "publication_id": "UUID of version 7, assigned by the publisher; the order of publications.",
            "kind": "What is published, such as `fence` or `tariff`.",
            "id": "Id of the fence, tariff or account.",
            "body": "JSON or GeoJSON: the published text.",
            "digest": "SHA-256 of kind and body.",
            "published_at": "Time in the message.",
            "place": "Topic and message id.",
            "signer": "Id of the signing key; null: accepted without a signature.",
            "published_by": "Owner of the signing key.",
            "reason": "The publisher's words.",
            "signature": "Signature in base64.",
        },
    ),
    "reference_quarantine": TableDescription(
        "A message on a reference topic that is not a publication.",
        ("fingerprint",),
        {
            "fingerprint": "SHA-256 of the message.",
            "topic": "Topic of the message.",
            "key": "Key of the message.",
            "publication_id": "Publication id that the message states.",
            "reason": "Why it is not a publication.",
            "payload": "Bytes of the message.",
            "published_at": "Time in the message.",
            "quarantined_at": "Time, by the centre's clock.",
        },
    ),
    "erasures": TableDescription(
        "An erasure of positions, or of all that a vehicle recorded.",
        ("number",),
        {
            "number": "Counts from 1 in the order of commits.",
            "tenant": "Customer; null: all.",
            "device": "Vehicle; null: all.",
            "before": "Positions with an earlier device time are erased.",
            "erased_at": "Time of the erasure; the row is committed before the first position is erased.",
            "since": "A data subject's request: everything from then on is erased; null: positions only.",
        },
    ),
    "snapshots": TableDescription(
        "A state of the lake that can be read for years, as commit numbers of its tables.",
        ("number",),
        {
            "number": "Counts from 1 in the order of commits.",
            "id": "Number and digest.",
            "ingest_commit": "Commit of `records`.",
            "usage_commit": "Commit of `usage`.",
            "usage_fences": "Number of the fences that usage was computed with.",
            "usage_tracks": "JSON: track settings and engine version of usage.",
            "covers": "Ingest number up to which usage covers the records.",
            "reference_commit": "Commit of `reference`.",
            "erasures_number": "Newest erasure.",
            "decisions_number": "Newest decision.",
            "quarantine_commit": "Commit of `quarantine`.",
            "taken_at": "Time of the snapshot.",
            "events_commit": "Commit of `geofence_events`; null: never computed.",
            "events_fences": "Number of the fences that events were computed with.",
            "events_covers": "Ingest number up to which events cover the records.",
        },
    ),
    "decisions": TableDescription(
        "A decision of an operator about a vehicle, or the withdrawal of one.",
        ("number",),
        {
            "number": "Counts from 1 in the order of commits.",
            "kind": "`silent`, `open` or `doubts`.",
            "since": "Start of the time that the decision is about.",
            "until": "End of that time.",
            "withdraws": "Number of the decision that is withdrawn; null: the row is a decision.",
            "decided_by": "Who decided.",
            "reason": "Why.",
            "decided_at": "When.",
            "accepts": "JSON: amounts of doubts that are accepted.",
        },
    ),
}

DESCRIPTIONS: Final = _OF_JOBS | _OF_BILLS | _INTERNAL


def column_text(table: str, column: str) -> str:
    """What a column means. Raises KeyError for one that nothing explains."""
    own = DESCRIPTIONS[table].columns
    return own[column] if column in own else SHARED[column]


def described_schema(table: str) -> pa.Schema:
    """The schema of a table with a Delta comment on each column."""
    return pa.schema(field.with_metadata({"comment": column_text(table, field.name)}) for field in TABLES[table].schema)


assert {*QUANTITIES, *OBSERVED} <= _USAGE.columns.keys(), "each quantity is explained"
