"""Why the register does not do what was asked; nothing was written then.

RegisterError
├── RegisterRefusal         what was asked contradicts what stands in the register
│   ├── AlreadyIssued       the period has an invoice
│   ├── OverlappingPeriod   a day of the period stands on another invoice of the payer
│   ├── OutdatedClosing     the newest closing is of another contract than that of now, or rests on a withdrawn decision
│   ├── AdjustmentDue       the period has an invoice, and the newest closing says another thing
│   ├── InvoicedToAnother   an account or a device of the payer stands on the invoice of another one
│   ├── OtherSeller         the period has an invoice of another seller
│   ├── OtherClocks         the payer's days beside these were invoiced by other clocks
│   ├── FuturePeriod        the period had not ended
│   ├── NotFinal            the closing is provisional
│   ├── Blocked             the closing has no sum that could be owed, or its totals disagree
│   ├── NotClosed           nobody closed the period
│   ├── NothingToIssue      nothing is charged in the period
│   ├── NoInvoice           the period has no invoice that something could be added to
│   ├── NothingToAdjust     the posted documents match the newest closing
│   ├── OtherCurrency       the newest closing is in another currency than the invoice
│   ├── NotOneNote          what the newest closing changes cannot stand on one document
│   └── AlreadyVoid         the invoice was taken back before
├── UnknownDocument         no document has that number
├── Unattributed            nobody is named who asks, or no reason why
├── NothingClosed           no payer was closed for the period
├── NoPayer                 no account pays for a day of the period
└── RegisterDamaged         documents contradict each other, or what they were made of
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from cloud_jobs.billing.errors import BillingError

_MAX_SHOWN = 5


class RegisterError(BillingError):
    """Base of all that keeps the register from doing what was asked."""


class RegisterRefusal(RegisterError):
    """Of one payer: `payer`. Others may still be issued. `text`: the message, with its facts."""

    text: ClassVar[str] = "{}"

    def __init__(self, payer: str, *facts: object) -> None:
        super().__init__(f"{payer}: {self.text.format(*facts, payer=payer)}")
        self.payer = payer


class AlreadyIssued(RegisterRefusal):
    """The period stands on an invoice (its number), with what was posted to it since."""

    text = "issued already as {}; what came later is posted by `waybill bill adjust`"


class OverlappingPeriod(RegisterRefusal):
    """A day is on one invoice of a payer at most: the number of the other one, its first and last day."""

    text = "invoice {} has days of the period ({} to {}); void that first"


class OutdatedClosing(RegisterRefusal):
    """What the newest closing rests on is not so any more, and why: see `current_contracts`."""

    text = "{}; close the period again first"


class AdjustmentDue(RegisterRefusal):
    """What is posted to an invoice (its number) is not what the newest closing says."""

    text = "issued already as {}, but the newest closing differs; run `waybill bill adjust`"


class InvoicedToAnother(RegisterRefusal):
    """No account and no device is asked for at one moment by invoices of two payers: what, whose, number and days."""

    text = (
        "its {0} stands on {2} of {1}, by contracts of before; close {1} for {3}, run `waybill bill adjust --period"
        " {3}`, and then this again"
    )


class OtherSeller(RegisterRefusal):
    """A note is of the seller of its invoice: its number, its seller and that of the closing."""

    text = "{} is of the seller {}, the newest closing of {}; void it and issue it again"


class OtherClocks(RegisterRefusal):
    """The days of a payer follow on each other by the same clocks: else hours are on two invoices, or on none.

    The number, the time zone of the invoice and that of the closing.
    """

    text = (
        "{} is in time zone {}, the newest closing in {}: hours would be billed twice or never; restore the time zone,"
        " or use a new account"
    )


class FuturePeriod(RegisterRefusal):
    """What has not happened is not owed: the end of the period, and now."""

    text = "the period ends at {}, and it is {}"


class NotFinal(RegisterRefusal):
    """Something of the period may still come."""

    text = "the newest closing is provisional: {}"

    def __init__(self, payer: str, reasons: Sequence[str]) -> None:
        super().__init__(payer, _shown(reasons))


class Blocked(NotFinal):
    """The period could not be rated, or a control total is not what it should be."""

    text = "blocked: {}"


class NotClosed(RegisterRefusal):
    """There is no closing of that payer and period."""

    text = "{} was not closed; run `waybill bill close` first"


class NothingToIssue(RegisterRefusal):
    """An invoice has at least one line (EN 16931 BR-16)."""

    text = "nothing is charged in the period"


class NoInvoice(RegisterRefusal):
    """A note needs an invoice that it refers to."""

    text = "the period has no invoice; run `waybill bill issue` first"


class NothingToAdjust(RegisterRefusal):
    """The sum of the invoice (its number) and its notes is the newest closing's (its snapshot)."""

    text = (
        "nothing to adjust: {} matches the newest closing (snapshot {}); close the period again to include later"
        " records"
    )


_ANEW = (
    'run `waybill bill void {0} --lake LAKE --reason "other WHAT"`, then `waybill bill issue --lake LAKE --period {1} '
    "--payer {payer}`"
)
"""The commands that lead to the same end by two documents."""


class OtherCurrency(RegisterRefusal):
    """Amounts in two currencies have no difference: number, period, currency of the invoice and of the closing."""

    text = "{0} is in {2}, the newest closing in {3}; " + _ANEW.replace("WHAT", "currency")


class NotOneNote(RegisterRefusal):
    """The tax changed so that EN 16931 has no document that takes back the one and asks for the other: number, period
    and what is wrong."""

    text = "no note can change {0} to the newest closing: {2}; " + _ANEW.replace("WHAT", "VAT")


class AlreadyVoid(RegisterRefusal):
    """What is posted to the invoice is zero."""

    text = "{} was voided before"


class UnknownDocument(RegisterError):
    """No document of that number, or none that is an invoice where one is needed."""

    def __init__(self, number: str, needed: str = "document") -> None:
        super().__init__(f"there is no {needed} {number!r} in the register; `waybill bill list` shows what there is")


class Unattributed(RegisterError):
    """What is kept for ever has the name of who asked for it, and why."""


class NothingClosed(RegisterError):
    """Of a period for which there is no closing of anybody nothing can be issued or adjusted."""

    def __init__(self, period: str) -> None:
        super().__init__(f"no payer was closed for {period}; run `cloud-jobs close` or `waybill bill close` first")


class NoPayer(RegisterError):
    """There is nobody to close the period for, so it is perhaps another one that was meant."""

    def __init__(self, period: str) -> None:
        super().__init__(f"no account pays for any day of {period}; check the period")


class RegisterDamaged(RegisterError):
    """Rows of the register contradict each other. Nothing is computed from them."""


def _shown(reasons: Sequence[str]) -> str:
    more = [f"and {len(reasons) - _MAX_SHOWN} more"] if len(reasons) > _MAX_SHOWN else []
    return "; ".join([*reasons[:_MAX_SHOWN], *more]) or "no reason is given"
