"""The schemas of the register's tables: what was closed and what was issued. Arrow only, as `schemas`."""

from __future__ import annotations

from typing import Final

import pyarrow as pa

_UTC = pa.timestamp("us", tz="UTC")


def _texts(*names: str) -> list[pa.Field]:
    return [pa.field(name, pa.string(), nullable=False) for name in names]


def _integers(*names: str) -> list[pa.Field]:
    return [pa.field(name, pa.int64(), nullable=False) for name in names]


def _days(*names: str) -> list[pa.Field]:
    return [pa.field(name, pa.date32(), nullable=False) for name in names]


CHARGE_KEY: Final = ("account", "region", "tenant", "device", "kind", "meter", "zone", "window", "price")
"""No two charges of a payer and period have the same of all of them; "" stands for none."""

RATED_LINES = pa.schema(
    [
        *_days("first_day", "last_day"),
        *_texts("payer", "run", *CHARGE_KEY),
        *_integers("quantity", "free", "amount_minor"),
        pa.field("rows", pa.int64()),
        pa.field("first_hour", _UTC),
        pa.field("last_hour", _UTC),
        pa.field("digest", pa.string()),
    ]
)
"""One row a charge of a closing. `run`: which run of the closing wrote it; it counts once a row of CLOSINGS has that
run. `rows`, `first_hour`, `last_hour`, `digest`: of the usage that it was made of; null of a charge that is of none.
`first_day`: of the period, the partition."""

CERTIFICATES = pa.schema(
    [
        *_days("first_day", "last_day"),
        *_texts("payer", "run", "tenant", "device", "state", "digest", "certificate"),
    ]
)
"""One row a device of a closing: its certificate of completeness as canonical JSON, whose SHA-256 is `digest`."""

CLOSINGS = pa.schema(
    [
        *_days("first_day", "last_day"),
        *_texts("legal_entity", "payer", "snapshot_id", "run", "outcome", "reasons", "time_zone", "number_prefix"),
        *_texts("currency", "taxes", "lines_digest", "body_digest", "certificates_digest", "control_totals", "parties"),
        *_texts("contract_digest", "decisions"),
        *_integers("snapshot", "number", "net_minor", "tax_minor", "charges"),
        pa.field("period_start", _UTC, nullable=False),
        pa.field("period_end", _UTC, nullable=False),
        pa.field("closed_at", _UTC, nullable=False),
    ]
)
"""One row a payer of a closing, see `billing.register.closing.Closing`. `number`: which commit of this table brought
it, counted from 1. `outcome`: final, provisional or blocked. `reasons`, `taxes`, `control_totals`, `parties`: JSON.
`body_digest`: of the lines, sub-totals and annex that its invoice has. `contract_digest`: of what was agreed with the
payer. `decisions`: the numbers of the decisions that its certificates rest on, JSON."""

DOCUMENTS = pa.schema(
    [
        *_texts("legal_entity"),
        *_integers("counter"),
        *_texts("number"),
        pa.field("type", pa.int32(), nullable=False),
        *_texts("payer"),
        *_days("first_day", "last_day"),
        *_texts("closing", "before", "currency", "time_zone"),
        *_integers("snapshot", "closing_number", "net_minor", "tax_minor"),
        pa.field("issued_at", _UTC, nullable=False),
        *_days("issue_date"),
        pa.field("reference_number", pa.string()),
        pa.field("reference_date", pa.date32()),
        *_texts("by", "reason", "head", "digest", "attempt"),
    ]
)
"""One row an invoice or note, see `billing.register.ledger.IssuedDocument`: numbered, and never changed. `head`: the
document without its lines, canonical JSON. `digest`: of the whole document. `attempt`: which command wrote it."""
