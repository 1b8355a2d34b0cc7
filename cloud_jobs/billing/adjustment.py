"""What arrives late: the difference of two as-of bills, posted beside the one that was issued."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from cloud_jobs.billing.bill import Bill
from cloud_jobs.billing.errors import NotTheSameBill
from cloud_jobs.billing.lines import Line, LineKey
from cloud_jobs.billing.period import Period
from cloud_jobs.billing.reference import Account
from cloud_jobs.lake.seq_ranges import SeqRanges


class Direction(StrEnum):
    """Who gets the money of an adjustment line: a credit goes back to the account."""

    CREDIT = "credit"
    DEBIT = "debit"


@dataclass(frozen=True, slots=True, kw_only=True)
class AdjustmentLine:
    """How one line changed; both numbers are signed differences. It keeps the service period of the bill it corrects.

    `added`, `removed`: the seq ranges that came and went.
    """

    number: int
    key: LineKey
    service_period: Period
    quantity: int
    amount_minor: int
    added: SeqRanges = field(default_factory=SeqRanges)
    removed: SeqRanges = field(default_factory=SeqRanges)

    @property
    def direction(self) -> Direction:
        """Credit for less, debit for more."""
        return Direction.CREDIT if (self.amount_minor, self.quantity) < (0, 0) else Direction.DEBIT


@dataclass(frozen=True, slots=True, kw_only=True)
class Adjustment:
    """What an account owes more (or less, if negative) than the bill as of `issued_as_of` says, as known at `as_of`."""

    account: Account
    period: Period
    issued_as_of: datetime
    as_of: datetime
    lines: tuple[AdjustmentLine, ...]

    @property
    def total_minor(self) -> int:
        """The sum of the lines, signed, in minor units."""
        return sum(line.amount_minor for line in self.lines)


def adjustment(issued: Bill, revised: Bill) -> Adjustment:
    """The lines that turn `issued` into `revised`; the issued bill stays as it is. Raises NotTheSameBill."""
    _same_bill(issued, revised)
    before = {line.key: line for line in issued.lines}
    after = {line.key: line for line in revised.lines}
    changed = [
        key
        for key in sorted(before.keys() | after.keys(), key=lambda key: key.order)
        if _worth(before.get(key)) != _worth(after.get(key))
    ]
    lines = tuple(
        _difference(number, key, before.get(key), after.get(key), issued.period)
        for number, key in enumerate(changed, start=1)
    )
    return Adjustment(
        account=revised.account, period=issued.period, issued_as_of=issued.as_of, as_of=revised.as_of, lines=lines
    )


def _same_bill(issued: Bill, revised: Bill) -> None:
    for what, one, other in (
        ("account", issued.account.id, revised.account.id),
        ("currency", issued.currency, revised.currency),
        ("period", str(issued.period), str(revised.period)),
    ):
        if one != other:
            raise NotTheSameBill(f"the {what} of the issued bill is {one}, of the revised one {other}")


def _worth(line: Line | None) -> tuple[int, int]:
    return (line.quantity, line.amount_minor) if line else (0, 0)


def _difference(number: int, key: LineKey, before: Line | None, after: Line | None, period: Period) -> AdjustmentLine:
    (quantity, amount), (was, owed) = _worth(after), _worth(before)
    had, has = before.seq_ranges if before else SeqRanges(), after.seq_ranges if after else SeqRanges()
    return AdjustmentLine(
        number=number,
        key=key,
        service_period=period,
        quantity=quantity - was,
        amount_minor=amount - owed,
        added=has - had,
        removed=had - has,
    )
