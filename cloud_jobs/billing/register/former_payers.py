"""Who was invoiced for some days and, by what is agreed now, pays for none of them: all of it is to be taken back."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from cloud_jobs.billing.register.closer import ClosedPayer, ClosingRun
from cloud_jobs.billing.register.closing import Closing, ClosingState, Days
from cloud_jobs.billing.register.ledger import Ledger
from cloud_jobs.billing.register.parties import Parties
from cloud_jobs.billing.register.rows import canonical, digest_of, lines_digest, taxes_text
from cloud_jobs.billing.register.tables import Register
from cloud_jobs.lake.tables import row_fault_as_error


def invoiced_payers(register: Register, days: Days, payers: Collection[str] | None = None) -> dict[str, str]:
    """The payers, of some or of all, of whom an invoice for exactly these days stands; the id of the closing posted.

    Raises LakeError, StoreUnavailable, RegisterDamaged.
    """
    found = register.documents(payers, first_day=days[0], last_day=days[1])
    ledger = Ledger(one for one in found if (one.key.first_day, one.key.last_day) == days)
    return {payer: one.closing for payer in {one.key.payer for one in found} for one in ledger.standing(payer)}


def closed_empty(run: ClosingRun, posted: Closing) -> ClosedPayer:
    """The closing of a former payer: nothing is owed, by the terms of what is posted.

    It is final: whose devices they are now, and whether those have said all, is for who pays for them.
    """
    with row_fault_as_error("closings", {"payer": posted.key.payer, "parties": posted.parties}):
        parties = Parties.parse(posted.parties)
    closing = replace(
        posted,
        snapshot=run.snapshot,
        snapshot_id=run.snapshot_id,
        number=0,
        run=run.name,
        outcome=ClosingState.FINAL,
        reasons=(),
        net_minor=0,
        tax_minor=0,
        charges=0,
        taxes=taxes_text(()),
        lines_digest=lines_digest(()),
        body_digest="",
        certificates_digest=digest_of(canonical([])),
        control_totals=canonical([]),
        parties=replace(parties, names={}, devices_by_state={}, conflicts=0, refused_fences=()).text,
    )
    return ClosedPayer(closing=closing, charges=(), certificates=())
