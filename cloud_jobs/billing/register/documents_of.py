"""Documents from rows of the register: the same rows always give the same bytes."""

from __future__ import annotations

import base64
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, Final, NamedTuple

from cloud_jobs.billing.billing_period import days_text
from cloud_jobs.billing.contracts import Account, LegalEntity, usable_contract
from cloud_jobs.billing.contracts.published import micros
from cloud_jobs.billing.documents import (
    Document,
    Look,
    MissingFact,
    canonical_bytes,
    check_taxes,
    document_body,
    head,
)
from cloud_jobs.billing.rating import Charge, Owed, RatedAccount, difference, taken_back
from cloud_jobs.billing.register.closing import Closing, Days, Parties, closing_head
from cloud_jobs.billing.register.current_contracts import CurrentContracts
from cloud_jobs.billing.register.errors import NotClosed, OutdatedClosing, RegisterDamaged
from cloud_jobs.billing.register.ledger import IssuedDocument, PostedChange, adjustable
from cloud_jobs.billing.register.tables import Register, missing_closing, taxes_from
from cloud_jobs.lake.tables import Lake, row_fault_as_error
from cloud_jobs.reference.tables import in_force
from geo.reference.in_force import HeldVersion, Usable, usable_fence
from geo.spatial.ids import UNSHOWN


class DocumentMaker:
    """Makes documents from their closings. Keeps the charges of the loaded closings."""

    def __init__(self, register: Register) -> None:
        self._register = register
        self._rated: dict[str, RatedAccount] = {}

    def check(self, closings: Collection[Closing]) -> None:
        """Checks that the charges of some closings exist. Raises LakeError, RegisterDamaged."""
        self._register.check_charges(closings)

    def load(self, closings: Collection[Closing]) -> None:
        """Replaces the loaded charges by those of these closings. Raises LakeError, RegisterDamaged."""
        charges = self._register.charges_of(closings)
        self._rated = {}
        for one in closings:
            owed = _owed_by(one)
            rated = RatedAccount(
                payer=owed.payer,
                currency=owed.currency,
                charges=charges[one.id],
                taxes=owed.taxes,
                rounding_minor=owed.rounding_minor,
            )
            # lines_digest covers the lines; this compares them with the posted sums
            if (rated.net_minor, rated.tax_minor) != (one.net_minor, one.tax_minor):
                raise RegisterDamaged(f"the charges of the closing {one.id} do not add up to its sum")
            self._rated[one.id] = rated

    @property
    def charges(self) -> dict[str, Sequence[Charge]]:
        return {key: rated.charges for key, rated in self._rated.items()}

    def change(self, before: Closing, after: Closing) -> PostedChange:
        """The change from one closing to another, both loaded unless they owe the same."""
        if after.owes_as(before):
            return PostedChange(net_minor=0, tax_minor=0, is_empty=True)
        made = self.rated(before, after)
        change = PostedChange(
            net_minor=made.net_minor,
            tax_minor=made.tax_minor,
            rounding_minor=made.rounding_minor,
            # a note without amounts is not posted
            is_empty=not (made.tax_minor or made.rounding_minor or any(charge.amount_minor for charge in made.charges)),
        )
        _, parties = _terms(after, before)
        try:
            check_taxes(parties.seller, parties.buyer, {group.category for group in made.taxes})
        except MissingFact as fault:
            return replace(change, fault=str(fault))
        return change

    def document(self, entry: IssuedDocument, closing: Closing | None, before: Closing | None) -> Document:
        """The document of an entry whose closings are loaded. Raises DocumentError for contracts that allow no valid
        one.
        """
        basis, parties = _terms(closing, before)
        rated = self.rated(before, closing)
        body = document_body(rated, kind=entry.type, buyer=parties.buyer, names=parties.names)
        return {**_head(entry, basis, parties, rated.owed, body.digest), **body.parts}

    def seal(self, entry: IssuedDocument, closing: Closing | None, before: Closing | None) -> tuple[str, str]:
        """The head (canonical JSON) and the digest of an entry's document, as the register stores them.

        An invoice needs only its closing, which has the digest of the body.
        """
        if closing is not None and before is None:
            _, parties = _terms(closing, None)
            made = _head(entry, closing, parties, _owed_by(closing), closing.body_digest)
        else:
            made = head(self.document(entry, closing, before))
        return canonical_bytes(made).decode(), made["digest"]

    def rated(self, before: Closing | None, after: Closing | None) -> RatedAccount:
        """The charges of `after`, or the change from `before` to it; without `after`, those of `before` taken back."""
        posted, owed = (None if one is None else self._rated[one.id] for one in (before, after))
        if posted is None:
            assert owed is not None
            return owed
        return taken_back(posted) if owed is None else difference(posted, owed)


def _owed_by(closing: Closing) -> Owed:
    with row_fault_as_error("closings", {"payer": closing.key.payer, "id": closing.id}):
        taxes = taxes_from(closing.taxes)
    return Owed(closing.key.payer, closing.currency, closing.net_minor, taxes, closing.rounding_minor)


def _terms(closing: Closing | None, before: Closing | None) -> tuple[Closing, Parties]:
    """The closing whose terms a document has, and its parties."""
    basis = closing or before
    assert basis is not None, "a document posts a closing, or takes one back"
    with row_fault_as_error("closings", {"payer": basis.key.payer, "parties": basis.parties}):
        return basis, Parties.parse(basis.parties)


def _head(entry: IssuedDocument, basis: Closing, parties: Parties, owed: Owed, body_digest: str) -> Document:
    posts = owed.net_minor, owed.tax_minor, owed.rounding_minor
    assert posts == (entry.net_minor, entry.tax_minor, entry.rounding_minor), "a document is what its entry posts"
    return closing_head(
        basis,
        parties,
        owed,
        body_digest,
        kind=entry.type,
        number=entry.number,
        issue_date=entry.issue_date,
        preceding=entry.reference,
        reason=entry.reason,
    )


class IssuedAgain(NamedTuple):
    """A document made again, the closing that it posts (None for a void), the one posted before, and their charges."""

    document: Document
    closing: Closing | None
    before: Closing | None
    charges: Mapping[str, Sequence[Charge]]


def issued_document(register: Register, number: str) -> Document:
    """The document of a number, made again from the register's rows and compared with its stored digest.

    Raises UnknownDocument, RegisterDamaged, LakeError.
    """
    return issued_again(register, number).document


def issued_again(register: Register, number: str) -> IssuedAgain:
    """`issued_document` with the closings and charges that it was made from. Raises the same errors."""
    entry, row = register.document(number)
    closing = register.closing(entry.key, entry.closing) if entry.closing else None
    before = register.closing(entry.key, entry.before) if entry.before else None
    maker = DocumentMaker(register)
    maker.load([one for one in (closing, before) if one is not None])
    made = maker.document(entry, closing, before)
    # also if this version would make it differently: an issued document is never shown changed
    if made["digest"] != row["digest"] or canonical_bytes(head(made)).decode() != row["head"]:
        raise RegisterDamaged(f"document {number} cannot be rendered as it was issued: its digest differs")
    return IssuedAgain(made, closing, before, maker.charges)


def outstanding(register: Register, days: Days, payer: str) -> tuple[str, RatedAccount]:
    """The number of a payer's invoice, and the change that `adjust` would post to it.

    Raises NotClosed, RegisterRefusal as `adjust` does, RegisterDamaged, LakeError.
    """
    closings = {one.id: one for one in register.closings(*days, [payer])}
    if not closings:
        raise NotClosed(payer, days_text(*days))
    newest = [*closings.values()][-1]
    ledger = register.ledger(register.lake.open("documents"), [newest.key])
    posted = ledger.posted(newest.key)
    if posted is None or posted.closing != newest.id:
        # raises why it cannot be posted
        posted = adjustable(ledger, newest)
    # an outdated closing has no valid difference
    if fault := CurrentContracts(register.lake).fault(newest):
        raise OutdatedClosing(payer, fault)
    before = closings.get(posted.closing)
    if before is None:
        raise missing_closing(payer, posted.closing)
    maker = DocumentMaker(register)
    # the newest closing may be the posted one
    maker.load([*{one.id: one for one in (before, newest)}.values()])
    return posted.invoice.number, maker.rated(before, newest)


# How a document looks, from the contracts and fences that were in force at the end of its period. The newest
# publication of that version counts: a corrected name is printed from then on, a later logo is not.

_KINDS: Final = ("account", "fence", "legal_entity")
_MAX_NAME: Final = 100


def look_of(lake: Lake, document: Document, language: str | None = None) -> Look:
    """`language`: instead of the payer's. Raises LakeError."""
    seller, buyer = document["seller"]["seller_identifier"], document["buyer"]["buyer_identifier"]
    accounts = {line["account"] for line in document["lines"]}
    zones = {line["zone"] for line in document["lines"] if line["zone"]}
    asked = sorted({seller, buyer, *accounts, *zones})
    rows = lake.rows("reference", where=[("kind", "in", [*_KINDS]), ("id", "in", asked)])
    end_us = micros(datetime.fromisoformat(document["invoicing_period"]["end"]))
    last: dict[tuple[str, str], HeldVersion[Any]] = {}
    for held in in_force(rows.to_pylist(), _usable).held:
        if held.begin < end_us:
            last[held.row["kind"], held.row["id"]] = held
    entity: LegalEntity | None = getattr(last.get(("legal_entity", seller)), "made", None)
    payer: Account | None = getattr(last.get(("account", buyer)), "made", None)
    logo, colour = (entity.logo, entity.colour) if entity else (None, None)
    return Look(
        language=language or (payer.payer.language if payer and payer.payer else None),
        logo=base64.b64decode(logo) if logo else None,
        **({"colour": colour} if colour else {}),
        fences={zone: name for zone in zones if (name := _name_of(last.get(("fence", zone))))},
        vehicles=_vehicles(one.made for (kind, name), one in last.items() if kind == "account" and name in accounts),
    )


def _usable(kind: str, body: str) -> Usable[Any]:
    """Orders all kinds by microseconds."""
    if kind != "fence":
        return usable_contract(kind, body)
    begin_ms, made = usable_fence(body)
    return Usable(begin_ms * 1000, made)


def _name_of(fence: HeldVersion[Any] | None) -> str:
    """The property `name` of a feature, if a document can show it."""
    name = json.loads(fence.row["body"])["properties"].get("name") if fence else None
    return name[:_MAX_NAME] if isinstance(name, str) and not UNSHOWN.search(name) else ""


def _vehicles(accounts: Iterable[Account]) -> Mapping[str, str]:
    return {f"{one.tenant}/{one.device}": one.name for of in accounts for one in of.devices if one.name}
