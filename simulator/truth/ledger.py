"""What was posted, state of knowledge by state of knowledge: an invoice first, then only differences to it."""

from collections.abc import Iterable
from typing import NamedTuple

from simulator.truth.charging import TrueKey, TrueOwed, TrueTax, owed_by
from simulator.truth.contracts import TrueContracts
from simulator.truth.errors import TruthError
from simulator.truth.quarters import TrueDays, TrueQuarter


class PostedCharge(NamedTuple):
    """A line of a document: what it is about, and how much more or less of it."""

    about: TrueKey
    quantity: int
    free: int
    amount_minor: int


class TrueDocument(NamedTuple):
    """What an invoice or a note says; `number` counts the documents of its seller from 1.

    `kind`: invoice, debit note or credit note; the amounts of a credit note are below zero. `of`: the number of the
    invoice that a note is about, None for an invoice.
    """

    kind: str
    number: int
    of: int | None
    legal_entity: str
    payer: str
    days: TrueDays
    currency: str
    charges: tuple[PostedCharge, ...]
    taxes: tuple[TrueTax, ...]

    @property
    def net_minor(self) -> int:
        """Without tax."""
        return sum(charge.amount_minor for charge in self.charges)

    @property
    def tax_minor(self) -> int:
        """The tax on it."""
        return sum(tax.tax_minor for tax in self.taxes)

    @property
    def gross_minor(self) -> int:
        """With tax."""
        return self.net_minor + self.tax_minor


Said = tuple[tuple[PostedCharge, ...], tuple[TrueTax, ...]]


class TrueLedger:
    """All documents of all sellers, in the order in which they were issued."""

    def __init__(self) -> None:
        self.documents: list[TrueDocument] = []

    def issue(
        self, contracts: TrueContracts, payer: str, days: TrueDays, usage: Iterable[TrueQuarter]
    ) -> TrueDocument | None:
        """The invoice of a payer and period, by what is known now; None if it would have no line (EN 16931 BR-16).

        Raises TruthError if there is one.
        """
        if any(document.of is None for document in self._about(payer, days)):
            raise TruthError(f"{payer} has an invoice for {days.first_day} to {days.last_day}")
        owed = owed_by(contracts, payer, days, usage)
        charges = tuple(PostedCharge(*one) for one in owed.charges)
        if not charges:
            return None
        return self._post(owed, days, None, (charges, owed.taxes))

    def adjust(
        self, contracts: TrueContracts, payer: str, days: TrueDays, usage: Iterable[TrueQuarter]
    ) -> TrueDocument | None:
        """The note that makes what was posted what is owed by what is known now. Raises TruthError.

        None if no amount changes: what is used and free is on no note of its own, but on the next one that has one.
        """
        posted = self._about(payer, days)
        if not posted:
            raise TruthError(f"{payer} has no invoice for {days.first_day} to {days.last_day}")
        owed = owed_by(contracts, payer, days, usage)
        if {owed.currency, *(document.currency for document in posted)} != {owed.currency}:
            raise TruthError(f"{payer} was billed in another currency than {owed.currency}")
        charges, taxes = _charges_missing(owed, posted), _taxes_missing(owed, posted)
        if not taxes and not any(charge.amount_minor for charge in charges):
            return None
        return self._post(owed, days, posted[0].number, (charges, taxes))

    def posted_minor(self, payer: str, days: TrueDays) -> int:
        """What a payer was asked for so far, with tax."""
        return sum(document.gross_minor for document in self._about(payer, days))

    def _about(self, payer: str, days: TrueDays) -> list[TrueDocument]:
        return [document for document in self.documents if (document.payer, document.days) == (payer, days)]

    def _post(self, owed: TrueOwed, days: TrueDays, of: int | None, said: Said) -> TrueDocument:
        net = sum(charge.amount_minor for charge in said[0])
        gross = net + sum(tax.tax_minor for tax in said[1])
        # what asks for nothing more is a credit note, also one that moves amounts between charges
        asks = gross > 0 or (gross == 0 and net > 0)
        kind = "invoice" if of is None else "debit note" if asks else "credit note"
        number = 1 + sum(document.legal_entity == owed.legal_entity for document in self.documents)
        document = TrueDocument(kind, number, of, owed.legal_entity, owed.payer, days, owed.currency, *said)
        self.documents.append(document)
        return document


def _charges_missing(owed: TrueOwed, posted: list[TrueDocument]) -> tuple[PostedCharge, ...]:
    """What is owed less what was posted, for each thing that either is about."""
    sums: dict[TrueKey, list[int]] = {}
    for sign, charges in [(1, owed.charges), *((-1, document.charges) for document in posted)]:
        for about, *amounts in charges:
            before = sums.get(about, [0, 0, 0])
            sums[about] = [sum_ + sign * amount for sum_, amount in zip(before, amounts, strict=True)]
    return tuple(PostedCharge(about, *amounts) for about, amounts in sorted(sums.items()) if any(amounts))


def _taxes_missing(owed: TrueOwed, posted: list[TrueDocument]) -> tuple[TrueTax, ...]:
    """The same of taxes: their sum is the tax on everything, not a sum of taxes that were rounded one by one."""
    groups = [*owed.taxes, *(tax for document in posted for tax in document.taxes)]
    missing = []
    for category, rate, reason in sorted({tax[:3] for tax in groups}):
        taxable = tax_minor = 0
        for sign, taxes in [(1, owed.taxes), *((-1, document.taxes) for document in posted)]:
            for tax in taxes:
                if tax[:3] == (category, rate, reason):
                    taxable += sign * tax.taxable_minor
                    tax_minor += sign * tax.tax_minor
        if taxable or tax_minor:
            missing.append(TrueTax(category, rate, reason, taxable, tax_minor))
    return tuple(missing)
