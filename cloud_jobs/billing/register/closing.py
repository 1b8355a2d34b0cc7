"""A closing: what a payer owes for a period by one snapshot, and whether that is final. The lines lie beside it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from enum import StrEnum
from functools import lru_cache
from types import MappingProxyType
from typing import NamedTuple

from cloud_jobs.billing.billing_period import days_text
from cloud_jobs.billing.contracts import Account, LegalEntity
from cloud_jobs.billing.documents import (
    CertificateSummary,
    Document,
    DocumentType,
    InvoicingPeriod,
    PrecedingInvoice,
    document_head,
)
from cloud_jobs.billing.documents.canonical import canonical_text
from cloud_jobs.billing.rating import Owed

Days = tuple[date, date]
"""The first and the last day of a period, both included."""


class ClosingState(StrEnum):
    """Whether a closing can be issued. Final: nothing can come any more that somebody did not decide to leave out."""

    FINAL = "final"
    PROVISIONAL = "provisional"
    BLOCKED = "blocked"


class RegisterKey(NamedTuple):
    """By what a closing is found: the ids of all payers of one run are the same."""

    payer: str
    id: str


class PeriodKey(NamedTuple):
    """Under what the register keeps a period: seller, payer, first and last local day, both included."""

    legal_entity: str
    payer: str
    first_day: date
    last_day: date

    @property
    def text(self) -> str:
        """The days, as a period is written."""
        return days_text(self.first_day, self.last_day)

    def overlaps(self, other: PeriodKey) -> bool:
        """Whether both have a day of one payer, whoever sells."""
        return self.payer == other.payer and self.first_day <= other.last_day and other.first_day <= self.last_day


@dataclass(frozen=True, slots=True, kw_only=True)
class Closing:
    """What the register knows of a closing without its lines. Amounts in minor units of `currency`.

    `snapshot`: its number; of two closings that of the later snapshot counts, of one snapshot the one that was
    committed later (`number`, counted from 1). `period_start`, `period_end`: the first moment of the period and the
    first one after it, in UTC. `run`: under which name its lines and certificates were written. `reasons`: why it is
    not final. `charges`: how many there are. `lines_digest`: SHA-256 (hex) over their columns, see `rows`.
    `body_digest`: of what its invoice says of them ("": no valid one can be made). `number_prefix`: of the seller's
    numbers. `taxes`, `control_totals`, `parties`: canonical JSON. `contract_digest`: of what was agreed with the payer,
    or of why nothing was; `decisions`: the numbers of those that its certificates rest on.
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
    contract_digest: str = ""
    decisions: tuple[int, ...] = ()

    @property
    def id(self) -> str:
        """By which documents name it: the snapshot, the days and the run that made it."""
        return f"{self.snapshot_id}/{self.key.first_day}/{self.key.last_day}/{self.run}"

    def owes_as(self, other: Closing) -> bool:
        """Whether both are of the same charges and the same tax."""
        of_each = ((one.currency, one.lines_digest, one.tax_minor, one.taxes) for one in (self, other))
        return len({*of_each}) == 1

    @property
    def in_register(self) -> RegisterKey:
        """By what it is found."""
        return RegisterKey(self.key.payer, self.id)

    @property
    def rank(self) -> tuple[int, int]:
        """The highest of a period is its newest."""
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
        found, empty = json.loads(parties), cls()
        said = (found.get(name, getattr(empty, name)) for name in cls._fields)
        return cls._make(tuple(one) if isinstance(one, list) else one for one in said)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parties:
    """Seller and buyer in the versions of the period's end. `names`: of the buyer's children, by account id.

    `devices_by_state`: of how many devices the records are complete, and so on.
    """

    seller: LegalEntity
    buyer: Account
    names: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    devices_by_state: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    noticed: ClosingNotes = field(default_factory=ClosingNotes)

    @property
    def text(self) -> str:
        """Canonical JSON. Without the devices, of which the charges say all that was billed."""
        return canonical_text(
            {
                "seller": self.seller.model_dump(mode="json"),
                "buyer": self.buyer.model_copy(update={"devices": ()}).model_dump(mode="json"),
                "names": dict(self.names),
                "devices_by_state": dict(self.devices_by_state),
                **self.noticed._asdict() | {"counts": dict(self.noticed.counts)},
            }
        )

    @classmethod
    def parse(cls, text: str) -> Parties:
        """What `text` wrote. Raises ValueError."""
        found = json.loads(text)
        return cls(
            seller=_seller(canonical_text(found["seller"])),
            buyer=Account.model_validate(found["buyer"]),
            names=found["names"],
            devices_by_state=found["devices_by_state"],
            noticed=ClosingNotes.of(text),
        )


# sellers are few, and the payers that have them are many
@lru_cache(maxsize=256)
def _seller(text: str) -> LegalEntity:
    return LegalEntity.model_validate_json(text)


# The head of a document, from its closing. Pure.


def closing_head(
    closing: Closing,
    parties: Parties,
    owed: Sequence[Owed],
    body_digest: str,
    *,
    kind: DocumentType = DocumentType.INVOICE,
    number: str | None = None,
    issue_date: date | None = None,
    preceding: PrecedingInvoice | None = None,
    reason: str = "",
) -> Document:
    """The head of the document over what is owed, by the terms of a closing; without a number: of a draft.

    Raises DocumentError for contracts that no valid document can be made of.
    """
    due = issue_date and issue_date + timedelta(days=parties.seller.payment_days)
    return document_head(
        kind=kind,
        number=number,
        issue_date=issue_date,
        due_date=None if kind is DocumentType.CREDIT_NOTE else due,
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
        preceding=preceding,
        reason=reason or None,
    )
