"""A closing: what a payer owes for a period at one snapshot, and whether that is final. Its lines are stored
separately.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from decimal import Decimal
from enum import StrEnum
from functools import lru_cache
from types import MappingProxyType
from typing import Any, NamedTuple

import orjson

from cloud_jobs.billing.billing_period import days_text
from cloud_jobs.billing.contracts import Account, LegalEntity
from cloud_jobs.billing.documents import (
    CertificateSummary,
    Document,
    DocumentType,
    InvoicingPeriod,
    PrecedingInvoice,
    Preview,
    document_head,
)
from cloud_jobs.billing.documents.canonical import canonical_text
from cloud_jobs.billing.rating import Owed

Days = tuple[date, date]
"""The first and the last day of a period, both included."""


class ClosingState(StrEnum):
    """Whether a closing can be issued. Final: nothing more can arrive, except what a decision excludes."""

    FINAL = "final"
    PROVISIONAL = "provisional"
    BLOCKED = "blocked"


class PeriodKey(NamedTuple):
    """The register's key of a period: seller, payer, first and last local day, both included."""

    legal_entity: str
    payer: str
    first_day: date
    last_day: date

    @property
    def text(self) -> str:
        return days_text(self.first_day, self.last_day)

    def overlaps(self, other: PeriodKey) -> bool:
        """Whether both have a day of one payer, whoever sells."""
        return self.payer == other.payer and self.first_day <= other.last_day and other.first_day <= self.last_day


@dataclass(frozen=True, slots=True, kw_only=True)
class Closing:
    """A closing without its lines. Amounts in minor units of `currency`.

    `snapshot`: its number. The newest closing is that of the latest snapshot; of one snapshot, that of the latest
    commit (`number`, from 1). `period_start`, `period_end`: in UTC, the end excluded. `run`: the name of its lines and
    certificates. `reasons`: why it is not final. `lines_digest`: SHA-256 (hex) over the columns of its charges.
    `body_digest`: of its invoice's body ("": no valid invoice). `taxes`, `control_totals`, `parties`: canonical JSON.
    `contract_digest`: of the contract, or of why there is none. `decisions`: numbers of those that its certificates
    rely on.
    """

    key: PeriodKey
    snapshot: int
    snapshot_id: str
    number: int
    run: str
    outcome: ClosingState
    reasons: tuple[str, ...]
    period_start: datetime
    period_end: datetime
    time_zone: str
    number_prefix: str
    currency: str
    net_minor: int
    tax_minor: int
    charges: int
    taxes: str
    lines_digest: str
    body_digest: str
    certificates_digest: str
    control_totals: str
    parties: str
    rounding_minor: int = 0
    contract_digest: str = ""
    decisions: tuple[int, ...] = ()

    @property
    def id(self) -> str:
        """Payer, snapshot, days and run: unique in the register."""
        return f"{self.key.payer}/{self.snapshot_id}/{self.key.first_day}/{self.key.last_day}/{self.run}"

    def owes_as(self, other: Closing) -> bool:
        """Whether both have the same charges, tax and rounding."""
        of_each = (
            (one.currency, one.lines_digest, one.tax_minor, one.taxes, one.rounding_minor) for one in (self, other)
        )
        return len({*of_each}) == 1

    @property
    def is_invoiced(self) -> bool:
        """Whether there is a document of it; of one without an amount as its payer chose."""
        if self.net_minor or self.tax_minor or self.rounding_minor:
            return True
        chosen = (orjson.loads(self.parties).get("buyer", {}).get("payer") or {}).get("zero_documents")
        return bool(self.charges) if chosen is None else chosen

    @property
    def rank(self) -> tuple[int, int]:
        """The newest closing of a period has the highest rank."""
        return self.snapshot, self.number


# Seller and buyer as of the closing.


class ClosingNotes(NamedTuple):
    """What a closing reports that does not affect its sum.

    `counts`: by name, for programs. The rest is text for people. `unknown`: what no line bills because it is unknown;
    `doubtful`: devices beyond the agreed bounds; `decisions`: those that the closing relies on; `refused_fences`:
    publications that cannot be used; `notes`: anything else.
    """

    counts: Mapping[str, int] = MappingProxyType({})
    notes: tuple[str, ...] = ()
    unknown: str = ""
    doubtful: tuple[str, ...] = ()
    decisions: tuple[str, ...] = ()
    refused_fences: tuple[str, ...] = ()

    @classmethod
    def of(cls, parties: str) -> ClosingNotes:
        """The notes in the parties of a closing; none in a closing that is blocked by its contracts."""
        return cls.parse(orjson.loads(parties))

    @classmethod
    def parse(cls, found: Mapping[str, Any]) -> ClosingNotes:
        empty = cls()
        said = (found.get(name, getattr(empty, name)) for name in cls._fields)
        return cls._make(tuple(one) if isinstance(one, list) else one for one in said)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parties:
    """Seller and buyer as of the period's end. `names`: of the buyer's children, by account id.

    `tax_rate`: from the buyer's currency into that of the seller's VAT. `devices_by_state`: number of devices by
    state of completeness.
    """

    seller: LegalEntity
    buyer: Account
    names: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    devices_by_state: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    noticed: ClosingNotes = field(default_factory=ClosingNotes)
    tax_rate: Decimal | None = None

    @property
    def text(self) -> str:
        """Canonical JSON without devices and fees: the charges name what was billed. No look of documents is in it."""
        return canonical_text(
            {
                "seller": self.seller.model_dump(mode="json", exclude={"logo", "colour"}),
                "buyer": self.buyer.model_copy(update={"devices": ()}).model_dump(
                    mode="json", exclude={"payer": {"language"}, "fees": True}
                ),
                "names": dict(self.names),
                "tax_rate": None if self.tax_rate is None else str(self.tax_rate),
                "devices_by_state": dict(self.devices_by_state),
                **self.noticed._asdict() | {"counts": dict(self.noticed.counts)},
            }
        )

    @classmethod
    def parse(cls, text: str) -> Parties:
        """Raises ValueError."""
        found = orjson.loads(text)
        return cls(
            seller=_seller(canonical_text(found["seller"])),
            buyer=Account.model_validate(found["buyer"]),
            names=found["names"],
            tax_rate=found["tax_rate"] and Decimal(found["tax_rate"]),
            devices_by_state=found["devices_by_state"],
            noticed=ClosingNotes.parse(found),
        )


# few sellers, shared by many payers
@lru_cache(maxsize=256)
def _seller(text: str) -> LegalEntity:
    return LegalEntity.model_validate_json(text)


# The head of a document, from its closing. Pure.


def closing_head(
    closing: Closing,
    parties: Parties,
    owed: Owed,
    body_digest: str,
    *,
    kind: DocumentType = DocumentType.INVOICE,
    number: str | None = None,
    issue_date: date | None = None,
    preceding: PrecedingInvoice | None = None,
    reason: str = "",
    preview: Preview | None = None,
) -> Document:
    """The head of a document under the terms of a closing; without a number, of a draft or a preview.

    Raises DocumentError for contracts that allow no valid document.
    """
    payer, days = parties.buyer.payer, parties.seller.payment_days
    if payer is not None and payer.payment_days is not None:
        days = payer.payment_days
    due = issue_date and issue_date + timedelta(days=days)
    return document_head(
        kind=kind,
        number=number,
        issue_date=issue_date,
        due_date=due,
        seller=parties.seller,
        buyer=parties.buyer,
        owed=owed,
        period=InvoicingPeriod(
            first_day=closing.key.first_day,
            last_day=closing.key.last_day,
            start=closing.period_start,
            end=closing.period_end,
            time_zone=closing.time_zone,
        ),
        snapshot=closing.snapshot_id,
        certificates=CertificateSummary(
            devices_by_state=parties.devices_by_state,
            digest=closing.certificates_digest,
            decisions=parties.noticed.decisions,
            doubtful=parties.noticed.doubtful,
            unknown=parties.noticed.unknown,
        ),
        body_digest=body_digest,
        tax_rate=parties.tax_rate,
        preceding=preceding,
        reason=reason or None,
        preview=preview,
    )
