"""Why the register refuses a command. Nothing was written then."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from cloud_jobs.billing.errors import BillingError

_MAX_SHOWN = 5


class RegisterError(BillingError):
    """Base of the register's errors."""


class RegisterRefusal(RegisterError):
    """A refusal for one payer; others may still be issued. `text`: the message, filled with the facts."""

    text: ClassVar[str] = "{}"

    def __init__(self, payer: str, *facts: object) -> None:
        super().__init__(f"{payer}: {self.text.format(*facts, payer=payer)}")
        self.payer = payer


class AlreadyIssued(RegisterRefusal):
    text = "issued already as {}; run `waybill bill adjust` to post later changes"


class OverlappingPeriod(RegisterRefusal):
    """A day is on at most one invoice of a payer. Facts: number, first and last day of the other invoice."""

    text = "invoice {} has days of the period ({} to {}); void that first"


class OutdatedClosing(RegisterRefusal):
    """Facts: why, from `current_contracts`."""

    text = "{}; close the period again first"


class AdjustmentDue(RegisterRefusal):
    text = "issued already as {}, but the newest closing differs; run `waybill bill adjust`"


class InvoicedToAnother(RegisterRefusal):
    """No account or device is billed to two payers at one moment. Facts: account or device, other payer, number,
    days.
    """

    text = (
        "its {0} is on {2} of {1}, under earlier contracts; close {1} for {3}, run `waybill bill adjust --period"
        " {3}`, and then this again"
    )


class OtherSeller(RegisterRefusal):
    """A note is from the seller of its invoice. Facts: number, its seller, the closing's seller."""

    text = "{} is of the seller {}, the newest closing of {}; void it and issue it again"


class OtherClocks(RegisterRefusal):
    """A payer's adjacent days need one time zone; otherwise hours are on two invoices or on none.

    Facts: number, time zone of the invoice, time zone of the closing.
    """

    text = (
        "{} is in time zone {}, the newest closing in {}: hours would be billed twice or never; restore the time zone,"
        " or use a new account"
    )


class FuturePeriod(RegisterRefusal):
    text = "the period ends at {}; now it is {}; `waybill bill preview` shows what it costs so far"


class NotFinal(RegisterRefusal):
    text = "the newest closing is provisional: {}"

    def __init__(self, payer: str, reasons: Sequence[str]) -> None:
        super().__init__(payer, _shown(reasons))


class Blocked(NotFinal):
    """The period could not be rated, or its control totals disagree. Facts: the reasons."""

    text = "blocked: {}"


class NotClosed(RegisterRefusal):
    text = "{} was not closed; run `waybill bill close` first"


class NothingToIssue(RegisterRefusal):
    """An invoice needs a line (EN 16931 BR-16)."""

    text = "nothing is charged in the period"


class NoInvoice(RegisterRefusal):
    """A note refers to an invoice."""

    text = "the period has no invoice; run `waybill bill issue` first"


class NothingToAdjust(RegisterRefusal):
    """Facts: the invoice number, the closing's snapshot."""

    text = (
        "nothing to adjust: {} matches the newest closing (snapshot {}); close the period again to include later"
        " records"
    )


_ANEW = (
    'run `waybill bill void {0} --lake LAKE --reason "other WHAT"`, then `waybill bill issue --lake LAKE --period {1} '
    "--payer {payer}`"
)
"""The commands that do it with two documents."""


class OtherCurrency(RegisterRefusal):
    """Facts: number, period, currency of the invoice, currency of the closing."""

    text = "{0} is in {2}, the newest closing in {3}; " + _ANEW.replace("WHAT", "currency")


class NotOneNote(RegisterRefusal):
    """EN 16931 has no document for both the old and the new tax. Facts: number, period, reason."""

    text = "no note can change {0} to the newest closing: {2}; " + _ANEW.replace("WHAT", "VAT")


class AlreadyVoid(RegisterRefusal):
    text = "{} was voided before"


class UnknownDocument(RegisterError):
    """No document has this number, or it is no invoice where one is needed."""

    def __init__(self, number: str, needed: str = "document") -> None:
        super().__init__(f"there is no {needed} {number!r} in the register; `waybill bill list` lists all documents")


class NothingClosed(RegisterError):
    def __init__(self, period: str) -> None:
        super().__init__(f"no payer was closed for {period}; run `cloud-jobs close` or `waybill bill close` first")


class NoPayer(RegisterError):
    def __init__(self, period: str) -> None:
        super().__init__(f"no account pays for any day of {period}; check the period")


class RegisterDamaged(RegisterError):
    """Rows of the register contradict each other. Nothing is computed from them."""


def _shown(reasons: Sequence[str]) -> str:
    more = [f"and {len(reasons) - _MAX_SHOWN} more"] if len(reasons) > _MAX_SHOWN else []
    return "; ".join([*reasons[:_MAX_SHOWN], *more]) or "no reason is given"
