"""The columns of the tables of alerts and of verdicts."""

from __future__ import annotations

import pyarrow as pa

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
"""What regions said at once, as it came first: each id once. `received_at`, `raised_at`: by the region's clocks.
`seen_until`: epoch, seq, epoch, seq, ..., the newest records by which the region saw it; empty: it did not say.
`collected_at`: by the centre's clock; from then on the alert waits for its verdict. `day`: the UTC day of `time`."""

VERDICTS = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("revision", pa.int32(), nullable=False),
        pa.field("tenant", pa.string(), nullable=False),
        pa.field("device", pa.string(), nullable=False),
        pa.field("verdict", pa.string(), nullable=False),
        pa.field("reason", pa.string()),
        pa.field("corrective_ids", pa.list_(pa.string()), nullable=False),
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
"""What the centre says of alerts, and of events of which no region said anything. Of each id the row with the highest
revision is in force. The columns from `epoch` to `value` are the event in force, or what was said and is withdrawn.
`alerted_time`, `alerted_value`: what a region had said of the same; null: none had. `previous_time`, `previous_value`:
what the revision before said."""
