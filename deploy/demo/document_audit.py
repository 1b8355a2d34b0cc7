"""Holds each invoice and note, as it is shown, against what the truth would have issued by what was known then."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from cloud_jobs.billing.documents import charges_of
from cloud_jobs.billing.rating import Charge
from cloud_jobs.billing.register.documents_of import issued_document
from cloud_jobs.billing.register.ledger import IssuedDocument
from cloud_jobs.billing.register.tables import Register
from simulator.truth import PostedCharge, TrueDocument, TrueKey, TrueLedger, Truth


@dataclass(frozen=True, slots=True)
class DocumentAudit:
    """A document of the register, and the truth's of the same number; None where one of them is not there.

    `of`: which number of its seller the invoice has that a note is about.
    """

    issued: IssuedDocument | None
    truth: TrueDocument | None
    of: int | None
    charges: int
    differing_charges: int

    @property
    def equal(self) -> bool:
        """Whether both say the same, to the last minor unit."""
        return (
            self.issued is not None
            and self.truth is not None
            and self.differing_charges == 0
            and (self.of, *_facts(self.issued)) == (self.truth.of, *_true_facts(self.truth))
        )


@dataclass(frozen=True, slots=True)
class PostedAudit:
    """All that a payer was asked for, with tax, and what it owes by everything that was made."""

    payer: str
    currency: str
    posted_minor: int
    owed_minor: int

    @property
    def equal(self) -> bool:
        """Whether it was asked for what it owes."""
        return self.posted_minor == self.owed_minor


def true_ledger(states: Iterable[Truth]) -> TrueLedger:
    """The documents of the truth: invoices by the first state of knowledge, notes by each that follows."""
    ledger, first, *later = TrueLedger(), *states
    for payer, days in first.payers.items():
        ledger.issue(first.contracts, payer, days, first.quarters())
    for known in later:
        for payer, days in known.payers.items():
            ledger.adjust(known.contracts, payer, days, known.quarters())
    return ledger


def audit_documents(register: Register, ledger: TrueLedger) -> tuple[DocumentAudit, ...]:
    """All documents of the register and of the truth, by seller and number. Raises CloudError."""
    issued = {(one.key.legal_entity, one.counter): one for one in register.documents()}
    true = {(one.legal_entity, one.number): one for one in ledger.documents}
    counters = {(one.key.legal_entity, one.number): one.counter for one in issued.values()}
    return tuple(_audit(register, issued.get(key), true.get(key), counters) for key in sorted({*issued, *true}))


def audit_posted(register: Register, truth: Truth) -> tuple[PostedAudit, ...]:
    """What each payer was asked for, against what it owes by all that was made. Raises CloudError, TruthError."""
    posted: dict[str, int] = dict.fromkeys(truth.payers, 0)
    for one in register.documents():
        posted[one.key.payer] = posted.get(one.key.payer, 0) + one.gross_minor
    owed = {payer: truth.owed(payer) for payer in truth.payers}
    return tuple(PostedAudit(payer, one.currency, posted[payer], one.gross_minor) for payer, one in owed.items())


def _audit(
    register: Register,
    issued: IssuedDocument | None,
    true: TrueDocument | None,
    counters: Mapping[tuple[str, str], int],
) -> DocumentAudit:
    ours = {} if issued is None else _charges(charges_of(issued_document(register, issued.number)))
    theirs = {} if true is None else {one.about: one for one in true.charges}
    differing = sum(ours.get(about) != theirs.get(about) for about in {*ours, *theirs})
    reference = None if issued is None else issued.reference
    of = None if issued is None or reference is None else counters.get((issued.key.legal_entity, reference.number))
    return DocumentAudit(issued, true, of, len(ours), differing)


def _charges(charges: Iterable[Charge]) -> Mapping[TrueKey, PostedCharge]:
    found = {}
    for one in charges:
        key = one.key
        who = (key.account, key.region, key.tenant, key.device)
        meter = "" if key.meter is None else key.meter.value
        about = TrueKey(*who, key.kind.value, meter, key.zone, key.window, key.price)
        found[about] = PostedCharge(about, one.quantity, one.free, one.amount_minor)
    return found


def _facts(issued: IssuedDocument) -> tuple[object, ...]:
    key, kind = issued.key, issued.type.heading.lower()
    return (kind, *key, issued.currency, issued.net_minor, issued.tax_minor)


def _true_facts(true: TrueDocument) -> tuple[object, ...]:
    key = (true.legal_entity, true.payer, true.days.first_day, true.days.last_day)
    return (true.kind, *key, true.currency, true.net_minor, true.tax_minor)
