"""What a document is of, beside the charges: its type, its period, what it refers to, how complete its records are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, datetime
from enum import StrEnum


class DocumentType(StrEnum):
    """UNTDID 1001 (BT-3)."""

    INVOICE = "380"
    CREDIT_NOTE = "381"
    DEBIT_NOTE = "383"

    @property
    def sign(self) -> int:
        """What a charge is multiplied with: a credit note states what is given back, as a positive amount."""
        return -1 if self is DocumentType.CREDIT_NOTE else 1

    @property
    def heading(self) -> str:
        """As a person calls it."""
        return self.name.capitalize().replace("_", " ")


@dataclass(frozen=True, slots=True, kw_only=True)
class InvoicingPeriod:
    """BG-14: whole local days, both included, and the moments at which they begin and end (excluded), in UTC."""

    first_day: date
    last_day: date
    start: datetime
    end: datetime
    time_zone: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PrecedingInvoice:
    """BG-3: the invoice that a note corrects."""

    number: str
    issue_date: date


@dataclass(frozen=True, slots=True, kw_only=True)
class CertificateSummary:
    """How many devices are in which state of completeness, and the SHA-256 (hex) of all their certificates.

    `decisions`: of devices that a person closed, each in words, with who decided and why. `doubtful`: what of some
    devices is not known, in words. `unknown`: what stands on no line for that reason, in words; "": nothing.
    """

    devices_by_state: Mapping[str, int]
    digest: str
    decisions: tuple[str, ...] = ()
    doubtful: tuple[str, ...] = ()
    unknown: str = ""
