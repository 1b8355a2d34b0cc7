"""Who was closed for some days and, by what is agreed now, pays for none of them: nothing of it is owed any more."""

from __future__ import annotations

from dataclasses import replace

from cloud_jobs.billing.register.closer import ClosedPayer, ClosingRun
from cloud_jobs.billing.register.closing import Closing, ClosingState, Days
from cloud_jobs.billing.register.ledger import Ledger
from cloud_jobs.billing.register.parties import Parties
from cloud_jobs.billing.register.rows import canonical, digest_of, lines_digest, taxes_text
from cloud_jobs.billing.register.tables import Register
from cloud_jobs.lake.tables import row_fault_as_error


def last_charged(register: Register, days: Days, payer: str) -> Closing | None:
    """The closing of a payer that is to be taken back: the one that is posted, or the newest that would be; or none.

    Raises LakeError, StoreUnavailable, RegisterDamaged.
    """
    closings = [one for one in register.closings(*days, [payer]) if one.outcome is not ClosingState.BLOCKED]
    documents = register.documents([payer], first_day=days[0], last_day=days[1])
    posted = [
        one.closing
        for one in Ledger(documents).standing(payer)
        if (one.invoice.key.first_day, one.invoice.key.last_day) == days
    ]
    return next((one for one in closings if one.id in posted), closings[-1] if closings else None)


def closed_empty(run: ClosingRun, posted: Closing) -> ClosedPayer:
    """The closing of a former payer: nothing is owed, by the terms of what was.

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
