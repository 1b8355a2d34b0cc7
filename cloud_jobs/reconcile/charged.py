"""The stations rated and invoiced: usage and charges, charges and posted documents."""

from __future__ import annotations

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cache
from typing import Final, NamedTuple

import pyarrow as pa

from cloud_jobs.billing.documents import DocumentError, canonical_bytes, head
from cloud_jobs.billing.documents.canonical import canonical_text
from cloud_jobs.billing.rating import Charge, ChargeKind
from cloud_jobs.billing.register.closer import closing_fences
from cloud_jobs.billing.register.closing import Closing, ClosingState, Days
from cloud_jobs.billing.register.current_contracts import CurrentContracts
from cloud_jobs.billing.register.documents_of import DocumentMaker
from cloud_jobs.billing.register.errors import RegisterDamaged, RegisterRefusal
from cloud_jobs.billing.register.ledger import IssuedDocument, Ledger, PostedInvoice, check_numbers
from cloud_jobs.billing.register.tables import Register, digest_of, document_from, in_parts
from cloud_jobs.billing.units import FACTS, Meter
from cloud_jobs.lake.snapshots import Snapshot
from cloud_jobs.lake.tables import row_fault_as_error
from cloud_jobs.reconcile.comparison import Comparison, Station, quantity_name
from cloud_jobs.reconcile.used import Owed

# Station invoiced: certificates of issued closings, compared with the closings' own.


def compare_certificates(register: Register, closings: Collection[Closing]) -> Iterator[Comparison]:
    """Compares the certificates of closings of one period with the closings' digests. Raises LakeError."""
    texts: dict[tuple[str, str], list[tuple[str, str, str]]] = defaultdict(list)
    for row in register.certificates_of(closings).to_pylist():
        texts[row["payer"], row["run"]].append((row["tenant"], row["device"], row["certificate"]))
    for one in closings:
        # the same row twice is one certificate
        found = sorted({*texts[one.key.payer, one.run]})
        is_same = digest_of(canonical_text([_digest(text) for _, _, text in found])) == one.certificates_digest
        note = "" if is_same else f"{len(found):,} certificates that are not those of the closing {one.id}"
        yield Comparison(
            Station.INVOICED, "closings with their certificates", one.key.payer, 1, 1 if is_same else 0, note
        )


def _digest(text: str) -> str:
    """The digest of a certificate's content, ignoring the digest that it states."""
    content = json.loads(text)
    content.pop("digest", None)
    return hashlib.sha256(canonical_text(content).encode()).hexdigest()


MAX_REASONS: Final = 3
"""The most reasons of a closing that are named."""


def _unsettled(
    closing: Closing, current: CurrentContracts, other_fences: Callable[[], str | None]
) -> Iterator[Comparison]:
    """An unknown, with its reason, for a closing that cannot be posted or would not be final again."""
    reasons = [fault] if (fault := current.fault(closing)) else []
    decide = "" if closing.outcome is ClosingState.FINAL else "`waybill decisions close-device`, then "
    if closing.outcome is not ClosingState.FINAL:
        reasons.append(f"{closing.outcome.value}: {'; '.join(closing.reasons[:MAX_REASONS])}")
    elif current.fences_are_newer(closing.snapshot) and (other := other_fences()) is not None:
        reasons.append(f"{other}, run `cloud-jobs usage`")
    if reasons:
        note = f"{'; '.join(reasons)}; {decide}`waybill bill close` it again"
        yield Comparison(Station.RATED, "closing", closing.key.payer, None, None, note)


_AT_ONCE: Final = 2000


class _Used(NamedTuple):
    """Key of an account's usage. `zone`: "" outside all zones and for meters without zones."""

    account: str
    meter: Meter
    zone: str

    @property
    def place(self) -> str:
        return f"{self.account} in {self.zone}" if self.zone else self.account


def compare_charges(
    register: Register, snapshot: Snapshot, days: Days, payers: Sequence[str], owed: Mapping[Owed, int]
) -> Iterator[Comparison]:
    """Compares the usage of each payer's accounts with the charges of its newest closing.

    Raises LakeError, StoreUnavailable.
    """
    current = CurrentContracts(register.lake, snapshot)
    # reads all fences, so only once and only if a fence is new
    other_fences = cache(lambda: closing_fences(register.lake, snapshot).open_end)
    by_payer: dict[str, Counter[_Used]] = defaultdict(Counter)
    for (payer, account, meter, zone), quantity in owed.items():
        by_payer[payer][_Used(account, meter, zone)] += quantity
    for some in in_parts(payers, _AT_ONCE):
        newest = _newest(register.closings(*days, some), snapshot)
        charges = register.charges_or_damage([*newest.values()])
        for payer in some:
            closing = newest.get(payer)
            if closing is None:
                yield Comparison(Station.RATED, "closing", payer, None, None, "the period is not closed")
            else:
                yield from _unsettled(closing, current, other_fences)
                yield from _charged(closing, charges[closing.id], by_payer[payer])


def _charged(
    closing: Closing, charges: Sequence[Charge] | RegisterDamaged, owed: Mapping[_Used, int]
) -> Iterator[Comparison]:
    payer = closing.key.payer
    if isinstance(charges, RegisterDamaged):
        yield Comparison(Station.RATED, "lines of the closing", payer, closing.charges, None, str(charges))
        return
    found: Counter[_Used] = Counter()
    for one in charges:
        meter = one.key.meter
        if one.key.kind is ChargeKind.USAGE and meter and meter is not Meter.ACTIVE_DAY and meter not in FACTS:
            found[_Used(one.key.account, meter, one.key.zone)] += one.quantity
    for one_use in sorted({*owed, *found}):
        expected, charged = owed.get(one_use, 0), found[one_use]
        if expected or charged:
            note = "" if expected == charged else f"closed by snapshot {closing.snapshot_id}: close again"
            yield Comparison(
                Station.RATED, quantity_name(one_use.meter), f"{payer}, {one_use.place}", expected, charged, note
            )
    yield Comparison(
        Station.RATED, "children = parent", payer, closing.net_minor, _net(charges), currency=closing.currency
    )


def compare_documents(
    register: Register, snapshot: Snapshot, days: Days, payers: Sequence[str]
) -> Iterator[Comparison]:
    """Compares what is posted to each payer's invoice with the posted closing and with the newest one.

    Each document is made again and compared with its digest. Raises LakeError.
    """
    for some in in_parts(payers, _AT_ONCE):
        closings = register.closings(*days, some)
        rows = _documents(register, days, some)
        documents = [document_from(row) for row in rows]
        posted: dict[str, list[IssuedDocument]] = defaultdict(list)
        for one in documents:
            posted[one.key.payer].append(one)
        newest = _newest(closings, snapshot)
        named = {one.id: one for one in closings}
        yield from _made_again(register, rows, named)
        yield from compare_certificates(register, _basis([one for one in documents if not one.is_void], named))
        for payer in some:
            yield from _posted(payer, newest.get(payer), named, posted[payer])


def compare_numbers(register: Register) -> Iterator[Comparison]:
    """Checks that the documents of each legal entity are numbered from 1 without gaps. Raises LakeError."""
    for entity, found in sorted(register.counters().items()):
        note = ""
        try:
            check_numbers(found, entity)
        except RegisterDamaged as fault:
            note = str(fault)
        distinct = len({*found} & {*range(1, max(found) + 1)})
        count = distinct if distinct == len(found) else len(found)
        yield Comparison(Station.INVOICED, "numbers of a legal entity", entity, max(found), count, note)


def _posted(
    payer: str, newest: Closing | None, closings: Mapping[str, Closing], documents: Sequence[IssuedDocument]
) -> Iterator[Comparison]:
    numbers = ", ".join(one.number for one in documents)
    try:
        standing = Ledger(documents).standing(payer)
    except RegisterDamaged as fault:
        yield Comparison(Station.INVOICED, "posted", payer, None, None, f"{numbers}: {fault}")
        return
    net, tax, rounding = (
        sum(getattr(one, f"{name}_minor") for one in documents) for name in ("net", "tax", "rounding")
    )
    if not standing:
        voided = (net, tax, documents[-1].currency) if documents else None
        yield from _not_posted(payer, newest, voided, numbers)
        return
    (posted,) = standing
    basis = closings.get(posted.closing)
    if basis is None:
        yield Comparison(Station.INVOICED, "posted", payer, None, None, f"{numbers}: the closing is not there")
        return
    yield Comparison(Station.INVOICED, "posted", payer, basis.net_minor, net, numbers, basis.currency)
    yield Comparison(Station.INVOICED, "tax posted", payer, basis.tax_minor, tax, numbers, basis.currency)
    if basis.rounding_minor or rounding:
        yield Comparison(
            Station.INVOICED, "rounding posted", payer, basis.rounding_minor, rounding, numbers, basis.currency
        )
    if newest is not None and newest.id != basis.id:
        yield from _newer(payer, newest, posted, net, tax)


def _not_posted(
    payer: str, newest: Closing | None, voided: tuple[int, int, str] | None, numbers: str
) -> Iterator[Comparison]:
    """For a period without a valid invoice: nothing is owed, or it must still be issued.

    `voided`: net, tax and currency of voided documents.
    """
    if voided is not None:
        net, tax, currency = voided
        yield Comparison(Station.INVOICED, "posted by void documents", payer, 0, net, numbers, currency)
        yield Comparison(Station.INVOICED, "tax posted by void documents", payer, 0, tax, numbers, currency)
    if newest is None:
        return
    nothing = not newest.is_invoiced and newest.outcome is not ClosingState.BLOCKED
    why = (
        "nothing to issue"
        if nothing
        else f"void ({numbers}), and not issued again"
        if voided is not None
        else "not issued"
    )
    found = 0 if nothing else None
    yield Comparison(Station.INVOICED, "posted", payer, newest.net_minor, found, why, newest.currency)


def _newer(payer: str, newest: Closing, posted: PostedInvoice, net: int, tax: int) -> Iterator[Comparison]:
    """Compares what is posted with a closing that is newer than the posted one."""
    number = posted.invoice.number
    closing = f"the newest closing is {newest.id} ({newest.outcome.value})"
    if newest.outcome is ClosingState.BLOCKED:
        why = f"{closing}: {'; '.join(newest.reasons[:MAX_REASONS])}"
        yield Comparison(Station.INVOICED, "newest closing posted", payer, None, None, why)
        return
    agreed = newest.key.legal_entity, newest.currency
    if agreed != (posted.invoice.key.legal_entity, posted.invoice.currency):
        why = f"{closing}, of the seller {agreed[0]} in {agreed[1]}: void {number}, and issue it again"
        yield Comparison(Station.INVOICED, "seller and currency of the newest closing", payer, 1, 0, why)
        return
    why = f"{closing}: adjust"
    for name, owed, found in (
        ("newest closing", newest.net_minor, net),
        ("tax of the newest closing", newest.tax_minor, tax),
    ):
        yield Comparison(Station.INVOICED, f"{name} posted", payer, owed, found, why, newest.currency)


def _made_again(
    register: Register, rows: Sequence[Mapping[str, object]], closings: Mapping[str, Closing]
) -> Iterator[Comparison]:
    maker = DocumentMaker(register)
    entries = [document_from(row) for row in rows]
    try:
        maker.load(_basis(entries, closings))
        is_loaded = True
    except RegisterDamaged:
        # find the damaged one
        is_loaded = False
    same = 0
    for entry, row in zip(entries, rows, strict=True):
        fault = _fault_of(maker, entry, row, closings, is_loaded=is_loaded)
        same += fault is None
        if fault is not None:
            yield Comparison(Station.INVOICED, "document as it was issued", entry.number, 1, 0, fault)
    if rows:
        yield Comparison(Station.INVOICED, "documents as they were issued", "", len(rows), same)


def _basis(entries: Sequence[IssuedDocument], closings: Mapping[str, Closing]) -> list[Closing]:
    keys = {name for one in entries for name in (one.closing, one.before)}
    return [closings[key] for key in sorted(keys) if key in closings]


def _fault_of(
    maker: DocumentMaker,
    entry: IssuedDocument,
    row: Mapping[str, object],
    closings: Mapping[str, Closing],
    *,
    is_loaded: bool,
) -> str | None:
    """Why a document cannot be rendered as it was issued; None if it can."""
    closing, before = closings.get(entry.closing), closings.get(entry.before)
    if (entry.closing and closing is None) or (entry.before and before is None):
        return "its closing is not there"
    try:
        if not is_loaded:
            maker.load(_basis([entry], closings))
        made = maker.document(entry, closing, before)
    except (RegisterRefusal, RegisterDamaged, DocumentError, AssertionError) as fault:
        return str(fault) or type(fault).__name__
    is_same = made["digest"] == row["digest"] and canonical_bytes(head(made)).decode() == row["head"]
    return None if is_same else "its digest differs from that at issue"


def _documents(register: Register, days: Days, payers: Collection[str]) -> list[dict[str, object]]:
    names = pa.array(sorted(payers), pa.string())
    where = [("payer", "in", names), ("first_day", "=", days[0]), ("last_day", "=", days[1])]
    found = register.lake.rows("documents", where=where).to_pylist()
    for row in found:
        with row_fault_as_error("documents", row):
            document_from(row)
    return sorted(found, key=lambda row: (row["legal_entity"], row["counter"]))


def _newest(closings: Sequence[Closing], snapshot: Snapshot) -> dict[str, Closing]:
    """The newest closing of each payer that a snapshot can contain; `closings` are ordered by rank."""
    return {one.key.payer: one for one in closings if one.snapshot <= snapshot.number}


def _net(charges: Sequence[Charge]) -> int:
    by_account: Counter[str] = Counter()
    for one in charges:
        by_account[one.key.account] += one.amount_minor
    return by_account.total()
