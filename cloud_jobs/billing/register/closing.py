"""A closing: what a payer owes for a period by one snapshot, and whether that is final. The lines lie beside it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime
from enum import StrEnum
from typing import NamedTuple

from cloud_jobs.billing.billing_period import days_text

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
    numbers. `taxes`, `control_totals`, `parties`: canonical JSON.
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
