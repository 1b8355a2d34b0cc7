"""Closings, charges and documents as rows of the register's tables, and back. Pure.

What the digests are over is canonical JSON: sorted keys, no spaces, amounts in integers.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import lru_cache
from hashlib import sha256
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from cloud_jobs.billing.contracts.vat import VatCategory
from cloud_jobs.billing.documents import DocumentType, PrecedingInvoice
from cloud_jobs.billing.meters import Meter
from cloud_jobs.billing.rating import Charge, ChargeKey, ChargeKind, MeteredRows, TaxGroup
from cloud_jobs.billing.register.closing import Closing, ClosingState, PeriodKey
from cloud_jobs.billing.register.ledger import IssuedDocument
from cloud_jobs.lake.register_schemas import CERTIFICATES, CHARGE_KEY, RATED_LINES

if TYPE_CHECKING:
    from cloud_jobs.billing.certificates import DeviceCertificate

_METERED: Final = ("rows", "first_hour", "last_hour", "digest")
_COUNTED: Final = ("quantity", "free", "amount_minor")
_MOMENTS: Final = ("first_hour", "last_hour")
_NOT_METERED: Final = (None,) * len(_METERED)
_STORED: Final = (*CHARGE_KEY, *_COUNTED, *_METERED)
CHARGE_COLUMNS: Final = ("payer", "run", *_STORED)
"""What of RATED_LINES says whose a charge is, and what."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_US: Final = timedelta(microseconds=1)
_KINDS: Final = {kind.value: kind for kind in ChargeKind}
_METERS: Final[dict[str, Meter | None]] = {"": None, **{meter.value: meter for meter in Meter}}
_ENCODER: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), sort_keys=True)

Columns = Mapping[str, Sequence[Any]]
"""Charges column by column: a month of many payers is millions of them."""


class CertificateRow(NamedTuple):
    """What a row of CERTIFICATES says of a device; `certificate`: canonical JSON with the digest."""

    tenant: str
    device: str
    state: str
    digest: str
    certificate: str


def canonical(value: Any) -> str:
    """The one JSON text of a value."""
    return _ENCODER.encode(value)


def digest_of(text: str) -> str:
    """SHA-256, in hex, of a text."""
    return sha256(text.encode()).hexdigest()


def charge_columns(charges: Sequence[Charge]) -> Columns:
    """The columns of RATED_LINES that are of charges, which come in the order of their keys."""
    if not charges:
        return dict.fromkeys(_STORED, ())
    keys, *counted, metered = zip(*charges, strict=True)
    behind = zip(*(one or _NOT_METERED for one in metered), strict=True)
    columns: dict[str, Sequence[Any]] = dict(zip(_STORED, (*zip(*keys, strict=True), *counted, *behind), strict=True))
    return columns | {"meter": [meter or "" for meter in columns["meter"]]}


def charge_rows(run: str, charges: Sequence[tuple[PeriodKey, Columns]]) -> pa.Table:
    """The charges of payers, see `charge_columns`, as rows of RATED_LINES."""
    sizes = [len(columns["account"]) for _, columns in charges]
    made = _of_payers(RATED_LINES, run, [key for key, _ in charges], sizes)
    for name in _STORED:
        values = chain.from_iterable(columns[name] for _, columns in charges)
        # as integers: Arrow asks each moment for its time zone
        plain = [moment and _micros(moment) for moment in values] if name in _MOMENTS else [*values]
        made[name] = pa.array(plain, RATED_LINES.field(name).type)
    return pa.table([made[name] for name in RATED_LINES.names], schema=RATED_LINES)


def certificate_row(certificate: DeviceCertificate) -> CertificateRow:
    """A certificate as it stands in a row of CERTIFICATES."""
    made = certificate.document()
    return CertificateRow(made["tenant"], made["device"], made["state"], made["digest"], canonical(made))


def certificate_rows(run: str, certificates: Sequence[tuple[PeriodKey, Sequence[CertificateRow]]]) -> pa.Table:
    """The certificates of the devices of payers as rows of CERTIFICATES."""
    made = _of_payers(CERTIFICATES, run, [key for key, _ in certificates], [len(rows) for _, rows in certificates])
    rows = [row for _, of_payer in certificates for row in of_payer]
    columns = zip(*rows, strict=True) if rows else ((),) * len(CertificateRow._fields)
    made |= {
        name: pa.array([*values], CERTIFICATES.field(name).type)
        for name, values in zip(CertificateRow._fields, columns, strict=True)
    }
    return pa.table([made[name] for name in CERTIFICATES.names], schema=CERTIFICATES)


def charges_from(
    tables: Iterable[pa.Table], runs: Collection[tuple[str, str]]
) -> dict[tuple[str, str], tuple[Charge, ...]]:
    """The charges of each payer and run, in the order of their keys. The same row twice is one charge.

    `tables`: rows in CHARGE_COLUMNS, perhaps of others too; each is dropped before the next one is taken.
    """
    found: dict[tuple[str, str], dict[ChargeKey, Charge]] = {run: {} for run in runs}
    # thousands of charges have the same device, place and price
    texts: dict[str, str] = {}
    for rows in tables:
        columns = (_plain_values(rows[name], texts) for name in CHARGE_COLUMNS)
        for payer, run, *values in zip(*columns, strict=True):
            of_run = found.get((payer, run))
            if of_run is not None:
                charge = _charge(values)
                of_run[charge.key] = charge
    return {run: tuple(sorted(charges.values(), key=lambda one: one.key.order)) for run, charges in found.items()}


def lines_digest(columns: Columns) -> str:
    """What stands in a closing for its charges. Over their columns, each a list, one by one."""
    found = sha256()
    for name in _STORED:
        values = columns[name]
        plain = [moment and _text_of(moment) for moment in values] if name in _MOMENTS else values
        found.update(canonical(plain).encode())
    return found.hexdigest()


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
        "body_digest": closing.body_digest,
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
        "time_zone": document.time_zone,
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
        time_zone=row["time_zone"],
        net_minor=row["net_minor"],
        tax_minor=row["tax_minor"],
        issued_at=row["issued_at"].astimezone(UTC),
        issue_date=row["issue_date"],
        reference=None if number is None else PrecedingInvoice(number=number, issue_date=row["reference_date"]),
        by=row["by"],
        reason=row["reason"],
    )


def _key(row: Mapping[str, Any]) -> PeriodKey:
    return PeriodKey(row["legal_entity"], row["payer"], row["first_day"], row["last_day"])


def _of_payers(schema: pa.Schema, run: str, keys: Sequence[PeriodKey], sizes: Sequence[int]) -> dict[str, pa.Array]:
    """The columns that say of which period, payer and run rows are, so many of each payer."""
    payer = np.repeat(np.arange(len(keys)), sizes)
    made = {
        name: pa.array([getattr(key, name) for key in keys], schema.field(name).type).take(pa.array(payer))
        for name in ("first_day", "last_day", "payer")
    }
    return made | {"run": pa.repeat(pa.scalar(run, schema.field("run").type), len(payer))}


def _charge(row: Sequence[Any]) -> Charge:
    """The charge of a row's values, in the order of _STORED."""
    account, region, tenant, device, kind, meter, zone, window, price, quantity, free, amount_minor = row[:12]
    rows, first_us, last_us, digest = row[12:]
    key = ChargeKey(account, region, tenant, device, _KINDS[kind], _METERS[meter], zone, window, price)
    metered = None if rows is None else MeteredRows(rows, _moment(first_us), _moment(last_us), digest)
    return Charge(key, quantity, free, amount_minor, metered)


@lru_cache(maxsize=4096)
def _micros(moment: datetime) -> int:
    return (moment - _EPOCH) // _US


@lru_cache(maxsize=4096)
def _text_of(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat()


def _plain_values(column: pa.ChunkedArray, texts: dict[str, str]) -> list[Any]:
    """Moments as integers: as such they are many times faster to take out of Arrow. Equal texts are one of `texts`."""
    if pa.types.is_string(column.type):
        coded = column.combine_chunks().dictionary_encode()
        known = [text and texts.setdefault(text, text) for text in (*coded.dictionary.to_pylist(), None)]
        return [known[at] for at in coded.indices.fill_null(len(known) - 1).to_pylist()]
    plain = column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column
    return list(plain.to_pylist())


@lru_cache(maxsize=4096)
def _moment(us: int) -> datetime:
    """Of microseconds since 1970; a period has few hours, and many rows of each."""
    return _EPOCH + timedelta(microseconds=us)
