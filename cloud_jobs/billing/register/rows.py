"""Closings, charges and documents as rows of the register's tables, and back. Pure.

What the digests are over is canonical JSON: sorted keys, no spaces, amounts in integers.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from hashlib import sha256
from typing import Any, Final

import pyarrow as pa

from cloud_jobs.billing.certificates import DeviceCertificate
from cloud_jobs.billing.contracts.account import VatCategory
from cloud_jobs.billing.documents import DocumentType, PrecedingInvoice
from cloud_jobs.billing.meters import Meter
from cloud_jobs.billing.rating import Charge, ChargeKey, ChargeKind, MeteredRows, TaxGroup
from cloud_jobs.billing.register.closing import Closing, ClosingState, PeriodKey
from cloud_jobs.billing.register.ledger import IssuedDocument
from cloud_jobs.lake.register_schemas import CERTIFICATES, CHARGE_KEY, RATED_LINES

_METERED: Final = ("rows", "first_hour", "last_hour", "digest")


def canonical(value: Any) -> str:
    """The one JSON text of a value."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), sort_keys=True)


def digest_of(text: str) -> str:
    """SHA-256, in hex, of a text."""
    return sha256(text.encode()).hexdigest()


def charge_rows(key: PeriodKey, run: str, charges: Iterable[Charge]) -> pa.Table:
    """The charges of a payer as rows of RATED_LINES."""
    of_period = {"first_day": key.first_day, "last_day": key.last_day, "payer": key.payer, "run": run}
    return pa.Table.from_pylist([of_period | _charge_row(charge) for charge in charges], schema=RATED_LINES)


def certificate_rows(key: PeriodKey, run: str, certificates: Iterable[DeviceCertificate]) -> pa.Table:
    """The certificates of a payer's devices as rows of CERTIFICATES."""
    of_period = {"first_day": key.first_day, "last_day": key.last_day, "payer": key.payer, "run": run}
    return pa.Table.from_pylist([of_period | _certificate_row(one) for one in certificates], schema=CERTIFICATES)


def charges_from(rows: pa.Table) -> tuple[Charge, ...]:
    """The charges of one payer and run, in the order of their keys. The same row twice is one charge."""
    found = {_sort_key(row): _charge(row) for row in rows.to_pylist()}
    return tuple(sorted(found.values(), key=lambda charge: charge.key))


def lines_digest(charges: Iterable[Charge]) -> str:
    """What stands in a closing, and on an invoice, for its charges: of any order the same."""
    rows = sorted((_plain(_charge_row(charge)) for charge in charges), key=_sort_key)
    return digest_of(canonical(rows))


def closing_row(closing: Closing, closed_at: datetime) -> dict[str, Any]:
    """A closing as a row of CLOSINGS."""
    return {
        **closing.key._asdict(),
        "snapshot": closing.snapshot,
        "snapshot_id": closing.snapshot_id,
        "number": closing.number,
        "run": closing.run,
        "outcome": closing.outcome.value,
        "reasons": canonical([*closing.reasons]),
        "period_start": closing.period_start,
        "period_end": closing.period_end,
        "time_zone": closing.time_zone,
        "number_prefix": closing.number_prefix,
        "currency": closing.currency,
        "net_minor": closing.net_minor,
        "tax_minor": closing.tax_minor,
        "charges": closing.charges,
        "taxes": closing.taxes,
        "lines_digest": closing.lines_digest,
        "certificates_digest": closing.certificates_digest,
        "control_totals": closing.control_totals,
        "parties": closing.parties,
        "closed_at": closed_at,
    }


def closing_from(row: Mapping[str, Any]) -> Closing:
    """The closing that a row of CLOSINGS is of."""
    same = {name: row[name] for name in Closing.__dataclass_fields__ if name in row}
    return Closing(
        **same
        | {
            "key": _key(row),
            "outcome": ClosingState(row["outcome"]),
            "reasons": tuple(json.loads(row["reasons"])),
            "period_start": row["period_start"].astimezone(UTC),
            "period_end": row["period_end"].astimezone(UTC),
        }
    )


def taxes_text(taxes: Sequence[TaxGroup]) -> str:
    """The tax of a closing as it stands in its row."""
    return canonical(
        [
            {
                "category": group.category.value,
                "rate": str(group.rate),
                "exemption_reason": group.exemption_reason,
                "taxable_minor": group.taxable_minor,
                "tax_minor": group.tax_minor,
            }
            for group in taxes
        ]
    )


def taxes_from(text: str) -> tuple[TaxGroup, ...]:
    """The tax that `taxes_text` wrote."""
    return tuple(
        TaxGroup(**row | {"category": VatCategory(row["category"]), "rate": Decimal(row["rate"])})
        for row in json.loads(text)
    )


def document_row(document: IssuedDocument, head: str, digest: str, attempt: str) -> dict[str, Any]:
    """A document as a row of DOCUMENTS; `digest`: of the whole document, `head`: that without its lines."""
    reference = document.reference
    return {
        **document.key._asdict(),
        "counter": document.counter,
        "number": document.number,
        "type": int(document.type),
        "closing": document.closing,
        "before": document.before,
        "currency": document.currency,
        "snapshot": document.rank[0],
        "closing_number": document.rank[1],
        "net_minor": document.net_minor,
        "tax_minor": document.tax_minor,
        "issued_at": document.issued_at,
        "issue_date": document.issue_date,
        "reference_number": None if reference is None else reference.number,
        "reference_date": None if reference is None else reference.issue_date,
        "by": document.by,
        "reason": document.reason,
        "head": head,
        "digest": digest,
        "attempt": attempt,
    }


def document_from(row: Mapping[str, Any]) -> IssuedDocument:
    """The document that a row of DOCUMENTS is of."""
    number = row["reference_number"]
    return IssuedDocument(
        key=_key(row),
        counter=row["counter"],
        number=row["number"],
        type=DocumentType(str(row["type"])),
        closing=row["closing"],
        rank=(row["snapshot"], row["closing_number"]),
        before=row["before"],
        currency=row["currency"],
        net_minor=row["net_minor"],
        tax_minor=row["tax_minor"],
        issued_at=row["issued_at"].astimezone(UTC),
        issue_date=row["issue_date"],
        reference=None if number is None else PrecedingInvoice(number=number, issue_date=row["reference_date"]),
        by=row["by"],
        reason=row["reason"],
    )


def _certificate_row(certificate: DeviceCertificate) -> dict[str, Any]:
    return {
        "tenant": certificate.tenant,
        "device": certificate.device,
        "state": certificate.state.value,
        "digest": certificate.digest(),
        "certificate": canonical(certificate.document()),
    }


def _key(row: Mapping[str, Any]) -> PeriodKey:
    return PeriodKey(row["legal_entity"], row["payer"], row["first_day"], row["last_day"])


def _sort_key(row: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(row[name] for name in CHARGE_KEY)


def _charge_row(charge: Charge) -> dict[str, Any]:
    key, metered = charge.key, charge.metered
    return {
        **{name: getattr(key, name) for name in CHARGE_KEY},
        "kind": key.kind.value,
        "meter": "" if key.meter is None else key.meter.value,
        "quantity": charge.quantity,
        "free": charge.free,
        "amount_minor": charge.amount_minor,
        **{name: None if metered is None else getattr(metered, name) for name in _METERED},
    }


def _charge(row: Mapping[str, Any]) -> Charge:
    names = {name: row[name] for name in CHARGE_KEY}
    key = ChargeKey(**names | {"kind": ChargeKind(row["kind"]), "meter": Meter(row["meter"]) if row["meter"] else None})
    metered = None
    if row["rows"] is not None:
        hours = (row["first_hour"].astimezone(UTC), row["last_hour"].astimezone(UTC))
        metered = MeteredRows(row["rows"], *hours, row["digest"])
    return Charge(
        key=key, quantity=row["quantity"], free=row["free"], amount_minor=row["amount_minor"], metered=metered
    )


def _plain(row: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: value.astimezone(UTC).isoformat() if isinstance(value, datetime) else value for name, value in row.items()
    }
