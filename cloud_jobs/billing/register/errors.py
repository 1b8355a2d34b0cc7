"""Why the register does not do what was asked; nothing was written then.

RegisterError
├── RegisterRefusal         what was asked contradicts what stands in the register
│   ├── AlreadyIssued       the period has an invoice
│   ├── OverlappingPeriod   a day of the period stands on another invoice of the payer
│   ├── OutdatedClosing     contracts were published since the newest closing, or a decision was withdrawn
│   ├── AdjustmentDue       the period has an invoice, and the newest closing says another thing
│   ├── InvoicedToAnother   an account or a device of the payer stands on the invoice of another one
│   ├── OtherSeller         the period has an invoice of another seller
│   ├── OtherClocks         the payer's days beside these were invoiced by other clocks
│   ├── DamagedPayer        rows of the register that are of the payer contradict each other
│   ├── FuturePeriod        the period had not ended
│   ├── NotFinal            the closing is provisional
│   ├── Blocked             the closing has no sum that could be owed, or its totals disagree
│   ├── NotClosed           nobody closed the period
│   ├── NothingToIssue      nothing is charged in the period
│   ├── NoInvoice           the period has no invoice that something could be added to
│   ├── NothingToAdjust     what is posted is what the newest closing says
│   ├── OtherCurrency       the newest closing is in another currency than the invoice
│   ├── NotOneNote          what the newest closing changes cannot stand on one document
│   ├── NumberOfAnother     the next number of the seller is that of another one's document
│   └── AlreadyVoid         the invoice was taken back before
├── UnknownDocument         no document has that number
├── Unattributed            nobody is named who asks, or no reason why
├── NothingClosed           nobody was closed for the period
├── NobodyPays              no account pays for a day of the period
├── ClosingTooLate          a closing was stopped for so long that its lines were swept up
└── RegisterDamaged         documents contradict each other, or what they were made of
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, datetime

from cloud_jobs.billing.errors import BillingError
from cloud_jobs.billing.register.closing import PeriodKey

_MAX_SHOWN = 5


class RegisterError(BillingError):
    """Base of all that keeps the register from doing what was asked."""


class RegisterRefusal(RegisterError):
    """Of one payer: `payer`. Others may still be issued."""

    def __init__(self, payer: str, message: str) -> None:
        super().__init__(f"{payer}: {message}")
        self.payer = payer


class AlreadyIssued(RegisterRefusal):
    """The period stands on an invoice, with what was posted to it since."""

    def __init__(self, payer: str, number: str) -> None:
        super().__init__(payer, f"issued already as {number}; what came later is posted by `waybill bill adjust`")
        self.number = number


class OverlappingPeriod(RegisterRefusal):
    """A day is on one invoice of a payer at most."""

    def __init__(self, payer: str, number: str, first_day: date, last_day: date) -> None:
        super().__init__(payer, f"invoice {number} has days of the period ({first_day} to {last_day}); void that first")
        self.number = number


class OutdatedClosing(RegisterRefusal):
    """What the newest closing rests on is not so any more: see `outdated`."""

    def __init__(self, payer: str, why: str) -> None:
        super().__init__(payer, f"{why}; close the period again first")
        self.why = why


class AdjustmentDue(RegisterRefusal):
    """What is posted is not what the newest closing says."""

    def __init__(self, payer: str, number: str) -> None:
        super().__init__(
            payer, f"issued already as {number}, and the newest closing says another thing; run `waybill bill adjust`"
        )
        self.number = number


class InvoicedToAnother(RegisterRefusal):
    """No account and no device is asked for at one moment by invoices of two payers."""

    def __init__(self, payer: str, what: str, holder: str, number: str, days: str) -> None:
        super().__init__(
            payer,
            f"its {what} stands on {number} of {holder}, by contracts of before; close {holder} for {days}, run "
            f"`waybill bill adjust --period {days}`, and then this again",
        )
        self.what, self.holder, self.number = what, holder, number


class OtherSeller(RegisterRefusal):
    """A note is of the seller of its invoice."""

    def __init__(self, payer: str, number: str, posted: str, closed: str) -> None:
        super().__init__(
            payer, f"{number} is of the seller {posted}, the newest closing of {closed}; void it and issue it anew"
        )
        self.number = number


class OtherClocks(RegisterRefusal):
    """The days of a payer follow on each other by the same clocks: else hours are on two invoices, or on none."""

    def __init__(self, payer: str, number: str, posted: str, closed: str) -> None:
        super().__init__(
            payer,
            f"{number} is of days by the clocks of {posted}, the newest closing by those of {closed}: hours would be"
            f" asked for twice, or never. Give the account its time zone back, or a new account to what goes by other"
            f" clocks",
        )
        self.number = number


class DamagedPayer(RegisterRefusal):
    """What the register has of the payer cannot be right; others are not held up by it."""

    def __init__(self, payer: str, fault: str) -> None:
        super().__init__(payer, f"damaged: {fault}")


class FuturePeriod(RegisterRefusal):
    """What has not happened is not owed."""

    def __init__(self, payer: str, end: datetime, now: datetime) -> None:
        super().__init__(payer, f"the period ends at {end.isoformat()}, and it is {now.isoformat(timespec='seconds')}")
        self.end = end


class NotFinal(RegisterRefusal):
    """Something of the period may still come. `reasons` says what."""

    def __init__(self, payer: str, reasons: Sequence[str]) -> None:
        super().__init__(payer, f"the newest closing is provisional: {_shown(reasons)}")
        self.reasons = tuple(reasons)


class Blocked(RegisterRefusal):
    """The period could not be rated, or a control total is not what it should be. `reasons` says why."""

    def __init__(self, payer: str, reasons: Sequence[str]) -> None:
        super().__init__(payer, f"blocked: {_shown(reasons)}")
        self.reasons = tuple(reasons)


class NotClosed(RegisterRefusal):
    """There is no closing of that payer and period."""

    def __init__(self, payer: str, period: str) -> None:
        super().__init__(payer, f"{period} was not closed; run `waybill bill close` first")


class NothingToIssue(RegisterRefusal):
    """An invoice has at least one line (EN 16931 BR-16)."""

    def __init__(self, payer: str) -> None:
        super().__init__(payer, "nothing is charged in the period")


class NoInvoice(RegisterRefusal):
    """A note needs an invoice that it refers to."""

    def __init__(self, payer: str) -> None:
        super().__init__(payer, "the period has no invoice; run `waybill bill issue` first")


class NothingToAdjust(RegisterRefusal):
    """The sum of the invoice and its notes is the newest closing's."""

    def __init__(self, payer: str, number: str, snapshot_id: str) -> None:
        super().__init__(
            payer,
            f"what is posted to {number} is what the newest closing says, of snapshot {snapshot_id}; what became known "
            "since needs a new closing",
        )
        self.number = number


class OtherCurrency(RegisterRefusal):
    """Amounts in two currencies have no difference."""

    def __init__(self, key: PeriodKey, number: str, posted: str, closed: str) -> None:
        super().__init__(
            key.payer, f"{number} is in {posted}, the newest closing in {closed}; {_anew(key, number, 'currency')}"
        )
        self.number = number


class NotOneNote(RegisterRefusal):
    """The tax changed so that EN 16931 has no document that takes back the one and asks for the other."""

    def __init__(self, key: PeriodKey, number: str, fault: str) -> None:
        super().__init__(
            key.payer, f"no note can change {number} to the newest closing: {fault}; {_anew(key, number, 'VAT')}"
        )
        self.number = number


class NumberOfAnother(RegisterRefusal):
    """A number is of one document, whoever sells: two sellers may have had one prefix, one after the other."""

    def __init__(self, payer: str, number: str, seller: str, holder: str) -> None:
        super().__init__(
            payer,
            f"the next number of {seller} would be {number}, which a document of {holder} has; publish a number_prefix "
            f"for {seller} that no other one ever had, and close the period again",
        )
        self.number = number


class AlreadyVoid(RegisterRefusal):
    """What is posted to the invoice is zero."""

    def __init__(self, payer: str, number: str) -> None:
        super().__init__(payer, f"{number} was voided before")
        self.number = number


class UnknownDocument(RegisterError):
    """No document of that number, or none that is an invoice where one is needed."""

    def __init__(self, number: str, needed: str = "document") -> None:
        super().__init__(f"there is no {needed} {number!r} in the register; `waybill bill list` shows what there is")
        self.number = number


class Unattributed(RegisterError):
    """What is kept for ever has the name of who asked for it, and why. `faults`: what is wrong with them."""

    def __init__(self, faults: Sequence[str]) -> None:
        super().__init__("; ".join(faults))
        self.faults = tuple(faults)


class NothingClosed(RegisterError):
    """Of a period for which there is no closing of anybody nothing can be issued or adjusted."""

    def __init__(self, period: str) -> None:
        super().__init__(f"nobody was closed for {period}; run `cloud-jobs close` or `waybill bill close` first")
        self.period = period


class NobodyPays(RegisterError):
    """There is nobody to close the period for, so it is perhaps another one that was meant."""

    def __init__(self, period: str) -> None:
        super().__init__(f"no account pays for a day of {period}, so nobody is closed: is the period meant?")
        self.period = period


class ClosingTooLate(RegisterError):
    """What the run has written was taken for that of one that died."""

    def __init__(self, run: str) -> None:
        super().__init__(
            f"nothing is closed: the run {run} was stopped for hours after it wrote its lines, and maintenance has "
            "taken it for dead; close the period again"
        )
        self.run = run


class RegisterDamaged(RegisterError):
    """Rows of the register contradict each other. Nothing is computed from them."""


def _anew(key: PeriodKey, number: str, what: str) -> str:
    """The commands that lead to the same end by two documents."""
    return (
        f'run `waybill bill void {number} --lake LAKE --reason "other {what}"`, then `waybill bill issue --lake LAKE '
        f"--period {key.text} --payer {key.payer}`"
    )


def _shown(reasons: Sequence[str]) -> str:
    more = [f"and {len(reasons) - _MAX_SHOWN} more"] if len(reasons) > _MAX_SHOWN else []
    return "; ".join([*reasons[:_MAX_SHOWN], *more]) or "no reason is given"
