"""The schemas of the lake's tables; `cloud_jobs.lake.descriptions` says what each column means. Imports Arrow only."""

from __future__ import annotations

from typing import Final, NamedTuple

import pyarrow as pa

# Columns of alerts and verdicts.

PIECE_ROWS: Final = 1 << 17

_UTC = pa.timestamp("us", tz="UTC")

ALERTS = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("tenant", pa.string(), nullable=False),
        pa.field("device", pa.string(), nullable=False),
        pa.field("region", pa.string(), nullable=False),
        pa.field("epoch", pa.int64(), nullable=False),
        pa.field("seq", pa.int64(), nullable=False),
        pa.field("kind", pa.string(), nullable=False),
        pa.field("place", pa.string(), nullable=False),
        pa.field("time", _UTC, nullable=False),
        pa.field("value", pa.float64(), nullable=False),
        pa.field("received_at", _UTC, nullable=False),
        pa.field("raised_at", _UTC, nullable=False),
        pa.field("seen_until", pa.list_(pa.int64())),
        pa.field("collected_at", _UTC, nullable=False),
        pa.field("day", pa.date32(), nullable=False),
        pa.field("commit_number", pa.int64(), nullable=False),
    ]
)
"""The alerts of regions, each id once, as it first arrived."""

VERDICTS = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("revision", pa.int32(), nullable=False),
        pa.field("tenant", pa.string(), nullable=False),
        pa.field("device", pa.string(), nullable=False),
        pa.field("verdict", pa.string(), nullable=False),
        pa.field("reason", pa.string()),
        pa.field("epoch", pa.int64()),
        pa.field("seq", pa.int64()),
        pa.field("kind", pa.string()),
        pa.field("place", pa.string()),
        pa.field("time", _UTC),
        pa.field("value", pa.float64()),
        pa.field("alerted_time", _UTC),
        pa.field("alerted_value", pa.float64()),
        pa.field("previous_time", _UTC),
        pa.field("previous_value", pa.float64()),
        pa.field("day", pa.date32(), nullable=False),
        pa.field("emitted_at", _UTC, nullable=False),
        pa.field("commit_number", pa.int64(), nullable=False),
    ]
)
"""Verdicts on alerts, and on events without an alert."""


# Schemas of the register. Arrow only.


def _texts(*names: str) -> list[pa.Field]:
    return [pa.field(name, pa.string(), nullable=False) for name in names]


def _integers(*names: str) -> list[pa.Field]:
    return [pa.field(name, pa.int64(), nullable=False) for name in names]


def _days(*names: str) -> list[pa.Field]:
    return [pa.field(name, pa.date32(), nullable=False) for name in names]


CHARGE_KEY: Final = ("account", "region", "tenant", "device", "kind", "meter", "zone", "window", "price", "tax")
"""The key of a charge within a payer and period; "" stands for none."""

RATED_LINES = pa.schema(
    [
        *_days("first_day", "last_day"),
        *_texts("payer", "run", *CHARGE_KEY),
        *_integers("quantity", "free", "amount_minor"),
        pa.field("rows", pa.int64()),
        pa.field("first_hour", _UTC),
        pa.field("last_hour", _UTC),
        pa.field("digest", pa.string()),
        pa.field("parts", pa.string()),
        *_integers("gross_minor"),
    ]
)
"""One row for each charge of a closing. The row counts once CLOSINGS has a row with its `run`."""

CERTIFICATES = pa.schema(
    [
        *_days("first_day", "last_day"),
        *_texts("payer", "run", "tenant", "device", "state", "digest", "certificate"),
    ]
)
"""One row for each device of a closing."""

CLOSINGS = pa.schema(
    [
        *_days("first_day", "last_day"),
        *_texts("legal_entity", "payer", "snapshot_id", "run", "outcome", "reasons", "time_zone", "number_prefix"),
        *_texts("currency", "taxes", "lines_digest", "body_digest", "certificates_digest", "control_totals", "parties"),
        *_texts("contract_digest", "decisions"),
        *_integers("snapshot", "number", "net_minor", "tax_minor", "rounding_minor", "charges"),
        pa.field("period_start", _UTC, nullable=False),
        pa.field("period_end", _UTC, nullable=False),
        pa.field("closed_at", _UTC, nullable=False),
    ]
)
"""One row for each payer of a closing, see `billing.register.closing.Closing`."""

DOCUMENTS = pa.schema(
    [
        *_texts("legal_entity"),
        *_integers("counter"),
        *_texts("number"),
        pa.field("type", pa.int32(), nullable=False),
        *_texts("payer"),
        *_days("first_day", "last_day"),
        *_texts("closing", "before", "currency", "time_zone"),
        *_integers("snapshot", "closing_number", "net_minor", "tax_minor", "rounding_minor"),
        pa.field("issued_at", _UTC, nullable=False),
        *_days("issue_date"),
        pa.field("due_date", pa.date32()),
        pa.field("reference_number", pa.string()),
        pa.field("reference_date", pa.date32()),
        *_texts("by", "reason", "head", "digest", "attempt"),
    ]
)
"""One row for each invoice or note, see `billing.register.ledger.IssuedDocument`; never changed."""

PAYMENTS = pa.schema(
    [
        *_texts("id", "document"),
        *_days("date"),
        *_integers("amount_minor"),
        *_texts("currency", "reference", "by"),
        pa.field("imported_at", _UTC, nullable=False),
    ]
)
"""One row for each imported payment, see `billing.register.payments`; never changed."""


RECORDS = pa.schema(
    [
        pa.field("tenant", pa.string(), nullable=False),
        pa.field("region", pa.string()),
        pa.field("device", pa.string(), nullable=False),
        pa.field("epoch", pa.int64(), nullable=False),
        pa.field("seq", pa.int64(), nullable=False),
        pa.field("kind", pa.string(), nullable=False),
        pa.field("device_time", _UTC, nullable=False),
        pa.field("received_at", _UTC),
        pa.field("latitude", pa.float64()),
        pa.field("longitude", pa.float64()),
        pa.field("altitude_m", pa.float64()),
        pa.field("speed_mps", pa.float64()),
        pa.field("heading_deg", pa.float64()),
        pa.field("accuracy_m", pa.float64()),
        pa.field("name", pa.string()),
        pa.field("number", pa.float64()),
        pa.field("text", pa.string()),
        pa.field("payload", pa.binary()),
        pa.field("time_uncertainty_ms", pa.int32()),
        pa.field("monotonic_us", pa.int64()),
        pa.field("boot", pa.string()),
        pa.field("mapping", pa.string()),
        pa.field("content_bytes", pa.int32(), nullable=False),
        pa.field("device_date", pa.date32()),
        pa.field("ingested_at", _UTC),
        pa.field("ingest_number", pa.int64(), nullable=False),
    ]
)
"""One row for each record. `content_bytes`: see `cloud_jobs.lake.values`."""

FIX = pa.schema(
    [
        pa.field("device", pa.string()),
        pa.field("t_ms", pa.int64()),
        pa.field("epoch", pa.int64()),
        pa.field("seq", pa.int64()),
        pa.field("latitude", pa.float64()),
        pa.field("longitude", pa.float64()),
        pa.field("accuracy_m", pa.float64()),
        pa.field("speed_mps", pa.float64()),
    ]
)
"""The columns of a position that the jobs use; `t_ms`: its device time in milliseconds since 1970."""

CONTENT = (
    *("kind", "device_time", "latitude", "longitude", "altitude_m", "speed_mps", "heading_deg", "accuracy_m"),
    *("name", "number", "text", "payload", "monotonic_us", "boot", "mapping"),
)
"""Two records with the same id conflict if one of these columns differs. The corrected uncertainty is left out, because
a device may know its clock better when it sends a record again."""

QUARANTINE = pa.schema(
    [
        pa.field("cause", pa.string(), nullable=False),
        pa.field("fingerprint", pa.string(), nullable=False),
        pa.field("tenant", pa.string()),
        pa.field("device", pa.string()),
        pa.field("epoch", pa.int64()),
        pa.field("seq", pa.int64()),
        pa.field("detail", pa.string()),
        pa.field("payload", pa.binary()),
        pa.field("topic", pa.string()),
        pa.field("message_id", pa.string()),
        pa.field("quarantined_at", _UTC, nullable=False),
        pa.field("commit_number", pa.int64(), nullable=False),
    ]
)
"""Rejected input. `commit_number` mostly equals the ingest number of the micro-batch."""

INGEST_BATCHES = pa.schema(
    [
        pa.field("ingest_number", pa.int64(), nullable=False),
        pa.field("committed_at", _UTC, nullable=False),
        pa.field("messages", pa.int64(), nullable=False),
        pa.field("records", pa.int64(), nullable=False),
        pa.field("accepted", pa.int64(), nullable=False),
        pa.field("duplicates", pa.int64(), nullable=False),
        *(pa.field(name, pa.int64(), nullable=False) for name in ("conflicts", "malformed", "far_off", "disbelieved")),
        pa.field("clocks_ahead", pa.string(), nullable=False),
        pa.field("unreadable", pa.int64(), nullable=False),
        pa.field("unreadable_of", pa.string(), nullable=False),
        pa.field("seconds", pa.float64(), nullable=False),
    ]
)
"""One row for each completed micro-batch."""

QUANTITIES: Final = ("distance_mm", "duration_ms", "entries", "crossings", "events", "content_bytes")
"""What usage is metered in."""
OBSERVED: Final = (
    *("messages", "positions", "kept", "refused"),
    *("driven_ms", "unknown_ms", "unknown_mm", "inferred_entries"),
)
"""Further facts of usage about a device, for the closing of a period; inferred entries may be sold."""
QUARTERS: Final = 4
"""The values of each quantity in a row of usage, one for each quarter of the hour: local midnights and windows lie on
quarters."""
WHOLE_DEVICE: Final = "*"
"""The zone of rows about a device as a whole."""
LATE_POSITIONS: Final = "*late"
"""The zone of rows that name positions that arrived after the positions around them were erased. Their bytes are in the
row of the whole device; their distance is not metered, so such a row counts nothing."""

USAGE = pa.schema(
    [
        pa.field("tenant", pa.string(), nullable=False),
        pa.field("device", pa.string(), nullable=False),
        pa.field("hour", _UTC, nullable=False),
        pa.field("zone", pa.string(), nullable=False),
        *(pa.field(name, pa.list_(pa.int64()), nullable=False) for name in QUANTITIES),
        *(pa.field(name, pa.list_(pa.int64())) for name in OBSERVED),
        pa.field("unreadable", pa.string()),
        pa.field("counters", pa.string()),
        pa.field("seq_ranges", pa.string(), nullable=False),
        pa.field("fence_version", pa.string(), nullable=False),
        pa.field("engine_version", pa.int32(), nullable=False),
        pa.field("digest", pa.string(), nullable=False),
        pa.field("day", pa.date32(), nullable=False),
        pa.field("computed_at", _UTC, nullable=False),
        pa.field("commit_number", pa.int64(), nullable=False),
        pa.field("rules_number", pa.int64()),
    ]
)
"""Metered quantities. Rows are never changed: for each tenant, device, hour and zone the row of the highest commit is
in force. A zone that no longer applies gets a row of zeros.

Each quantity has QUARTERS numbers, one for each quarter of the hour, none of them null. Zone "" is outside all zones;
WHOLE_DEVICE has the `events` and `content_bytes` of the device anywhere. `crossings` are those of a gate. Rows of
LATE_POSITIONS count nothing.

Only rows of WHOLE_DEVICE have OBSERVED, `counters` (see `cloud_jobs.lake.values`) and `unreadable`: JSON
`{"kind/reason": [of each quarter, …]}` of raw records, the kind by topic, or "". `messages`: those that could be read;
`positions` of them, of which tracks use `kept`. `driven_ms`: of driven segments. Unknown distance: `refused` positions,
`unknown_ms`, `unknown_mm`, and inferred entries, which rows of zones have too: see `cloud_jobs.usage.metering`.

`seq_ranges`: JSON `{"epoch": [[first, last], …]}` of the records behind the row. `fence_version`: the versions of the
zone's fence that applied, or `""`; `engine_version`: of the engine; `digest`: of all of it. `day`: the UTC day of the
hour, the partition. `commit_number`: the commit of this table, from 1. `computed_at`: by the job's clock.
`rules_number`: the number of the track settings and engine version that computed the row (`applied_tracks`); a row with
the same result under other rules keeps its digest."""

GEOFENCE_EVENTS = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("revision", pa.int32(), nullable=False),
        pa.field("tenant", pa.string(), nullable=False),
        pa.field("device", pa.string(), nullable=False),
        pa.field("epoch", pa.int64(), nullable=False),
        pa.field("seq", pa.int64(), nullable=False),
        pa.field("kind", pa.string(), nullable=False),
        pa.field("place", pa.string(), nullable=False),
        pa.field("time", _UTC, nullable=False),
        pa.field("value", pa.float64(), nullable=False),
        pa.field("retracted", pa.bool_(), nullable=False),
        pa.field("day", pa.date32(), nullable=False),
        pa.field("emitted_at", _UTC, nullable=False),
        pa.field("commit_number", pa.int64(), nullable=False),
    ]
)
"""Events at fences and gates."""

ENCOUNTERS = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("revision", pa.int32(), nullable=False),
        pa.field("tenant", pa.string(), nullable=False),
        pa.field("device_a", pa.string(), nullable=False),
        pa.field("device_b", pa.string(), nullable=False),
        pa.field("start", _UTC, nullable=False),
        pa.field("end", _UTC, nullable=False),
        pa.field("min_m", pa.float64(), nullable=False),
        pa.field("min_at", _UTC, nullable=False),
        pa.field("retracted", pa.bool_(), nullable=False),
        pa.field("parts", pa.string(), nullable=False),
        pa.field("day", pa.date32(), nullable=False),
        pa.field("emitted_at", _UTC, nullable=False),
        pa.field("commit_number", pa.int64(), nullable=False),
    ]
)
"""Encounters of two devices of a tenant. `parts`: JSON `[[slice, start_ms, end_ms, min_m, t_min_ms, open], …]`, one for
each slice of time, from which a later run computes the whole again."""

REFERENCE = pa.schema(
    [
        pa.field("publication_id", pa.string(), nullable=False),
        pa.field("kind", pa.string(), nullable=False),
        pa.field("id", pa.string(), nullable=False),
        pa.field("body", pa.string(), nullable=False),
        pa.field("digest", pa.string(), nullable=False),
        pa.field("published_at", _UTC, nullable=False),
        pa.field("collected_at", _UTC, nullable=False),
        pa.field("place", pa.string()),
        pa.field("commit_number", pa.int64(), nullable=False),
        pa.field("signer", pa.string()),
        pa.field("published_by", pa.string()),
        pa.field("reason", pa.string()),
        pa.field("signature", pa.string()),
    ]
)
"""Publications of reference data, each once under its id, in the order of `publication_id`."""

REFERENCE_QUARANTINE = pa.schema(
    [
        pa.field("fingerprint", pa.string(), nullable=False),
        pa.field("topic", pa.string(), nullable=False),
        pa.field("message_id", pa.string()),
        pa.field("key", pa.string()),
        pa.field("publication_id", pa.string()),
        pa.field("reason", pa.string(), nullable=False),
        pa.field("payload", pa.binary()),
        pa.field("published_at", _UTC),
        pa.field("quarantined_at", _UTC, nullable=False),
    ]
)
"""Messages in the topics of reference data that are not publications, each once, with place and reason."""

ERASURES = pa.schema(
    [
        pa.field("number", pa.int64(), nullable=False),
        pa.field("tenant", pa.string()),
        pa.field("device", pa.string()),
        pa.field("before", _UTC, nullable=False),
        pa.field("erased_at", _UTC, nullable=False),
        pa.field("since", _UTC),
    ]
)
"""Erasures: positions with a device time before `before`, of a device, or of all devices or tenants if null. With
`since`, the request of a data subject: everything that the device recorded from then until `before`, in every table
that `cloud_jobs.maintenance.erasing` names.

`number` counts from 1 in the order of commits. A row is committed before the first position is erased, so readers open
the records first and this table afterwards: see `erasures`."""


SNAPSHOTS = pa.schema(
    [
        pa.field("number", pa.int64(), nullable=False),
        pa.field("id", pa.string(), nullable=False),
        pa.field("ingest_commit", pa.int64()),
        pa.field("usage_commit", pa.int64()),
        pa.field("usage_fences", pa.int64()),
        pa.field("usage_tracks", pa.string()),
        pa.field("covers", pa.int64(), nullable=False),
        pa.field("reference_commit", pa.int64(), nullable=False),
        pa.field("erasures_number", pa.int64(), nullable=False),
        pa.field("decisions_number", pa.int64(), nullable=False),
        pa.field("quarantine_commit", pa.int64(), nullable=False),
        pa.field("taken_at", _UTC, nullable=False),
        *(pa.field(name, pa.int64()) for name in ("events_commit", "events_fences", "events_covers")),
    ]
)
"""Snapshots, numbered from 1 in the order of commits: see `snapshots`."""

DECISIONS = pa.schema(
    [
        pa.field("number", pa.int64(), nullable=False),
        pa.field("kind", pa.string(), nullable=False),
        pa.field("tenant", pa.string(), nullable=False),
        pa.field("device", pa.string(), nullable=False),
        pa.field("since", _UTC, nullable=False),
        pa.field("until", _UTC, nullable=False),
        pa.field("withdraws", pa.int64()),
        pa.field("decided_by", pa.string(), nullable=False),
        pa.field("reason", pa.string(), nullable=False),
        pa.field("decided_at", _UTC, nullable=False),
        pa.field("accepts", pa.string()),
    ]
)
"""Decisions of operators about devices, numbered from 1 in the order of commits, never changed. `kind`: `silent` or
`open`, which closes that state of the device for all periods within `since` and `until`; or `doubts`, of which it
`accepts` an amount (JSON). `withdraws`: the number of the decision that this row withdraws; null: the row is a
decision."""


class TableSchema(NamedTuple):
    """The columns of a table and the layout of its files.

    `partition_by`: the day column of the partitions. `order`: the sort order of rows in a file. `bounded`: columns
    whose bounds are in the log, so that readers open only the files they need. `rows_in_group`: the most rows of a row
    group.
    """

    schema: pa.Schema
    partition_by: tuple[str, ...] = ()
    order: tuple[str, ...] = ()
    bounded: tuple[str, ...] = ()
    rows_in_group: int = PIECE_ROWS

    @property
    def in_file(self) -> pa.Schema:
        """The columns in a file: the partition column is only in its path and in the log."""
        return without(self.schema, *self.partition_by)


def without(schema: pa.Schema, *names: str) -> pa.Schema:
    """The schema without columns that the writer of the table adds."""
    return pa.schema([pa.field(field.name, field.type) for field in schema if field.name not in names])


_OF_ONE: Final = 1 << 13
"""The row group of tables in which single rows are looked up."""
_OF_LONG: Final = 1 << 10
"""The row group of tables with long texts."""
_STREAM: Final = ("tenant", "device", "epoch", "seq")


TABLES: Final = {
    "records": TableSchema(RECORDS, ("device_date",), _STREAM, (*_STREAM, "device_time", "ingest_number")),
    # single rows are looked for in it, by digests
    "quarantine": TableSchema(
        QUARANTINE, (), ("cause", "fingerprint"), ("cause", "fingerprint", "commit_number", "quarantined_at"), 1 << 13
    ),
    "ingest_batches": TableSchema(INGEST_BATCHES, (), ("ingest_number",), ("ingest_number",)),
    "usage": TableSchema(
        USAGE, ("day",), ("tenant", "device", "hour", "zone"), ("tenant", "device", "hour", "commit_number"), _OF_ONE
    ),
    "geofence_events": TableSchema(
        GEOFENCE_EVENTS, ("day",), ("device", "time", "id"), ("device", "commit_number"), _OF_ONE
    ),
    "alerts": TableSchema(ALERTS, ("day",), ("device", "time", "id"), ("device", "commit_number")),
    "verdicts": TableSchema(VERDICTS, ("day",), ("device", "id", "revision"), ("device", "commit_number")),
    "encounters": TableSchema(
        ENCOUNTERS, ("day",), ("device_a", "device_b", "start", "id"), ("device_a", "device_b", "commit_number")
    ),
    "reference": TableSchema(REFERENCE, (), ("publication_id",), ("publication_id",)),
    "erasures": TableSchema(ERASURES, (), ("number",), ("number",)),
    "snapshots": TableSchema(SNAPSHOTS, (), ("number",), ("number",)),
    "decisions": TableSchema(DECISIONS, (), ("number",), ("number",)),
    "reference_quarantine": TableSchema(REFERENCE_QUARANTINE, (), ("fingerprint",), ("fingerprint",)),
    # of the register one payer is looked up among all
    "rated_lines": TableSchema(
        RATED_LINES, ("first_day",), ("payer", "run", *CHARGE_KEY), ("payer", "run", "tenant", "device"), _OF_ONE
    ),
    "certificates": TableSchema(
        CERTIFICATES, ("first_day",), ("payer", "run", "tenant", "device"), ("payer", "run"), _OF_ONE
    ),
    "closings": TableSchema(
        CLOSINGS, ("first_day",), ("payer", "last_day", "number"), ("payer", "last_day", "run", "number"), _OF_LONG
    ),
    "documents": TableSchema(
        DOCUMENTS,
        (),
        ("legal_entity", "counter"),
        ("legal_entity", "counter", "number", "payer", "first_day", "last_day", "issue_date", "attempt"),
        _OF_LONG,
    ),
    "payments": TableSchema(PAYMENTS, (), ("document", "date", "id"), ("document",)),
}

WRITTEN_BY: Final = {
    **dict.fromkeys(("records", "coverage", "quarantine", "ingest_batches"), "cloud-jobs ingest"),
    # `geofence` takes reference data too; the bill needs that of `usage`, and its result
    # and each job makes the tables of the bill where they are not there yet
    **dict.fromkeys(("usage", "reference", "reference_quarantine", "snapshots", "decisions"), "cloud-jobs usage"),
    "geofence_events": "cloud-jobs geofence",
    "encounters": "cloud-jobs proximity",
    **dict.fromkeys(("alerts", "verdicts"), "cloud-jobs verdicts"),
    "erasures": "cloud-jobs maintain",
    **dict.fromkeys(("rated_lines", "certificates", "closings"), "waybill bill close"),
    "documents": "waybill bill issue",
    "payments": "waybill bill paid",
}
"""The command that fills a table."""
