"""Who was closed for some days and, by what is agreed now, pays for none of them: nothing of it is owed any more."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from itertools import groupby

from cloud_jobs.billing.register.closer import ClosedPayer, ClosingRun, blocked
from cloud_jobs.billing.register.closing import Closing, ClosingState, Days
from cloud_jobs.billing.register.errors import DamagedPayer, RegisterDamaged
from cloud_jobs.billing.register.ledger import Ledger
from cloud_jobs.billing.register.parties import Noticed, Parties
from cloud_jobs.billing.register.rows import canonical, charge_columns, digest_of, lines_digest, taxes_text
from cloud_jobs.billing.register.tables import Register
from cloud_jobs.errors import LakeError
from cloud_jobs.lake.tables import row_fault_as_error


def closed_former(register: Register, run: ClosingRun, days: Days, payers: Collection[str]) -> dict[str, ClosedPayer]:
    """The closings, by payer, of former payers that have one to be taken back; blocked of those whose rows are damaged.

    Raises StoreUnavailable.
    """
    try:
        return dict(_taken_back(register, run, days, payers))
    except (LakeError, RegisterDamaged) as fault:
        # of one of them; each by itself, and the others are closed
        if len(payers) > 1:
            return {name: one for payer in payers for name, one in closed_former(register, run, days, [payer]).items()}
        return {name: blocked(run, name, days, "UTC", [str(DamagedPayer(name, str(fault)))]) for name in payers}


def _taken_back(
    register: Register, run: ClosingRun, days: Days, payers: Collection[str]
) -> Iterator[tuple[str, ClosedPayer]]:
    if not payers:
        return
    ledger = Ledger(register.documents(payers, first_day=days[0], last_day=days[1]))
    # in the order of payers and ranks
    for payer, closings in groupby(register.closings(*days, payers), key=lambda one: one.key.payer):
        yield payer, closed_empty(run, _last_charged(ledger, days, payer, [*closings]))


def _last_charged(ledger: Ledger, days: Days, payer: str, closings: Sequence[Closing]) -> Closing:
    """The closing of a payer that is to be taken back: the one that is posted, or the newest that would be; or the
    newest that holds up the period for nothing now."""
    charged = [one for one in closings if one.outcome is not ClosingState.BLOCKED]
    posted = [
        one.closing for one in ledger.standing(payer) if (one.invoice.key.first_day, one.invoice.key.last_day) == days
    ]
    return next((one for one in charged if one.id in posted), (charged or closings)[-1])


def closed_empty(run: ClosingRun, posted: Closing) -> ClosedPayer:
    """The closing of a former payer: nothing is owed, by the terms of what was.

    It is final: whose devices they are now, and whether those have said all, is for who pays for them.
    """
    nothing = charge_columns(())
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
        lines_digest=lines_digest(nothing),
        body_digest="",
        certificates_digest=digest_of(canonical([])),
        control_totals=canonical([]),
        parties=_without_devices(posted),
    )
    return ClosedPayer(closing=closing, charges=nothing, certificates=())


def _without_devices(closing: Closing) -> str:
    if closing.outcome is ClosingState.BLOCKED:
        # perhaps even its seller was not known
        return closing.parties
    with row_fault_as_error("closings", {"payer": closing.key.payer, "parties": closing.parties}):
        parties = Parties.parse(closing.parties)
    return replace(parties, names={}, devices_by_state={}, noticed=Noticed()).text
