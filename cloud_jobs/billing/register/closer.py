"""The closing of one payer from its charges, certificates and control totals. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, datetime, timedelta
from types import MappingProxyType
from typing import Any, Final

from cloud_jobs.billing.billing_period import day_start
from cloud_jobs.billing.certificates import DeviceCertificate
from cloud_jobs.billing.contracts import PayerContract, doubtful_taxes
from cloud_jobs.billing.documents import DocumentError, DocumentType, document_body
from cloud_jobs.billing.documents.canonical import canonical_text
from cloud_jobs.billing.rating import ChargeKind, RatedAccount
from cloud_jobs.billing.register.closing import Closing, ClosingNotes, ClosingState, Parties, PeriodKey, closing_head
from cloud_jobs.billing.register.control_totals import ControlTotal
from cloud_jobs.billing.register.facts_at import FactsState, facts_state, sells_facts
from cloud_jobs.billing.register.tables import (
    CertificateRow,
    Columns,
    certificate_row,
    charge_columns,
    digest_of,
    lines_digest,
    taxes_text,
)
from cloud_jobs.billing.units import Meter
from cloud_jobs.lake.snapshot_reads import reference_rows
from cloud_jobs.lake.snapshots import LakeState, fences_number
from cloud_jobs.lake.tables import Lake
from geo.reference.in_force import published_fences

# Fences of a snapshot: whether usage was computed with them, and which are refused.

MAX_NAMED: Final = 20
"""The most refused publications that a closing names."""
_OTHER: Final = "usage was computed with other fences than those of the snapshot"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosingFences:
    """`refused`: unusable fence publications, as text; the versions before them were metered.

    `open_end`: why no closing is final; None if usage was computed with the fences of the snapshot. `facts`: the same
    of closings with prices of facts, and which events are erased.
    """

    refused: tuple[str, ...] = ()
    open_end: str | None = None
    facts: FactsState = field(default_factory=FactsState)

    def open_ends(self, contract: PayerContract) -> list[str]:
        """Why no closing of a contract is final."""
        found = [] if self.open_end is None else [self.open_end]
        sold = any(map(sells_facts, (contract, *contract.earlier)))
        return found + (self.facts.open_ends(contract) if sold else [])


def closing_fences(lake: Lake, snapshot: LakeState) -> ClosingFences:
    """The state of the fences at a snapshot, for all of its closings. Raises LakeError."""
    found = published_fences(reference_rows(lake, snapshot, "fence"))
    number = fences_number(found.features)
    # without usage no fences are stated, which is right if there are none
    is_same = not found.features if snapshot.usage_fences is None else snapshot.usage_fences == number
    refused = [str(one) for one in found.refused[:MAX_NAMED]]
    if more := len(found.refused) - MAX_NAMED:
        refused += [f"and {more} more"] if more > 0 else []
    facts = facts_state(lake, snapshot, number)
    return ClosingFences(refused=tuple(refused), open_end=None if is_same else _OTHER, facts=facts)


_INFERRED: Final = ChargeKind.USAGE, Meter.INFERRED_ENTRY
_NOTES: Final = {
    "conflicts": "not billed: records that arrived again with different content, now in quarantine",
    "far_off": "not billed: records of a clock that was far off, which belong to no day",
    "late_positions": "distance not billed: positions that arrived after the positions around them were erased",
    "unreadable": "not billed: messages that could not be read",
    "unseen_begins": "visits whose begin was not seen, billed from the first moment that is known",
    "unseen_ends": "visits whose end was not seen, billed until the last moment that is known",
    "lasting_visits": "visits that have not ended, whose time is billed later",
}
_MAX_NAMED: Final = 20
"""The most decisions and doubts that closing and documents name; the certificates have all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosingRun:
    """One run of a closing. `name`: unique; the run's files carry it."""

    name: str
    snapshot: int
    snapshot_id: str
    now: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedPayer:
    """A closing (its `number` is 0 until it is committed), with its charges and certificates."""

    closing: Closing
    charges: Columns
    certificates: Sequence[CertificateRow]


def closed(
    run: ClosingRun,
    contract: PayerContract,
    rated: RatedAccount,
    certificates: Sequence[DeviceCertificate],
    *,
    totals: Sequence[ControlTotal],
    fences: ClosingFences,
    unseen: Mapping[str, int] = MappingProxyType({}),
    open_ends: Sequence[str] = (),
) -> ClosedPayer:
    """`unseen`: the visits whose begin or end was not seen, by name of `ClosingNotes.counts`. `open_ends`: why an
    earlier period on which the sum depends is not final.
    """
    period, seller = contract.period, contract.seller
    # sorted, because the digest is over all of them
    certificates = sorted(certificates, key=lambda one: one.of_device)
    faults = [fault for total in totals if (fault := total.fault)]
    open_ends = [f"{one.tenant}/{one.device}: {reason}" for one in certificates for reason in one.reasons] + [
        *open_ends
    ]
    open_ends += fences.open_ends(contract)
    # also for a payer without devices
    if run.now < period.end:
        open_ends.append(f"the period ends at {period.end.isoformat()}")
    columns, rows = charge_columns(rated.charges), [certificate_row(one) for one in certificates]
    parties = Parties(
        seller=seller,
        buyer=contract.account,
        names={account.id: account.name for account in contract.accounts if account.id != contract.id},
        devices_by_state=dict(sorted(Counter(one.state.value for one in certificates).items())),
        noticed=_noticed(certificates, fences, rated, unseen, [*doubtful_taxes(contract)]),
        tax_rate=contract.tax_rate,
    )
    # a wrong sum is never final
    state = ClosingState.BLOCKED if faults else ClosingState.PROVISIONAL if open_ends else ClosingState.FINAL
    closing = Closing(
        key=PeriodKey(seller.id, contract.id, period.first_day, period.last_day),
        snapshot=run.snapshot,
        snapshot_id=run.snapshot_id,
        number=0,
        run=run.name,
        outcome=state,
        reasons=tuple(faults or open_ends),
        period_start=period.start,
        period_end=period.end,
        time_zone=period.time_zone,
        number_prefix=seller.number_prefix,
        currency=rated.currency,
        net_minor=rated.net_minor,
        tax_minor=rated.tax_minor,
        rounding_minor=rated.rounding_minor,
        charges=len(rated.charges),
        taxes=taxes_text(rated.taxes),
        lines_digest=lines_digest(columns),
        body_digest="",
        certificates_digest=digest_of(canonical_text([row.digest for row in rows])),
        control_totals=canonical_text([total._asdict() for total in totals]),
        parties=parties.text,
        contract_digest=contract.digest,
        decisions=tuple(sorted({made.number for one in certificates for made in (one.decision, one.accepted) if made})),
    )
    return ClosedPayer(closing=_drafted(closing, parties, rated), charges=columns, certificates=rows)


def _noticed(
    certificates: Sequence[DeviceCertificate],
    fences: ClosingFences,
    rated: RatedAccount,
    unseen: Mapping[str, int],
    doubtful: Sequence[str],
) -> ClosingNotes:
    # inferred entries that are on a line are billed
    billed = sum(one.quantity for one in rated.charges if (one.key.kind, one.key.meter) == _INFERRED)
    no_faults = sum((Counter(one.observed.no_faults) for one in certificates), Counter[str]())
    counts = {
        "conflicts": sum(one.counts.conflicts for one in certificates),
        "far_off": sum(one.observed.far_off for one in certificates),
        "late_positions": sum(one.counts.late_positions for one in certificates),
        "unreadable": sum(one.observed.faults for one in certificates),
        "no_faults": no_faults.total(),
        "unknown_mm": sum(one.observed.unknown_mm for one in certificates),
        "inferred": sum(one.observed.inferred_entries for one in certificates) - billed,
        "dropped": sum(one.observed.dropped for one in certificates),
        **unseen,
    }
    notes = [f"{text}: {counts[name]:,}" for name, text in _NOTES.items() if counts.get(name)]
    if no_faults:
        reasons = ", ".join(f"{reason} {count:,}" for reason, count in sorted(no_faults.items()))
        notes.append(f"not billed: messages without a position, value or known topic: {reasons}")
    return ClosingNotes(
        counts=counts,
        notes=(*notes, *doubtful),
        unknown=_unknown(counts),
        doubtful=_named([f"{one.tenant}/{one.device}: {doubt}" for one in certificates for doubt in one.doubts]),
        decisions=_decisions(certificates),
        refused_fences=fences.refused,
    )


def _unknown(counts: Mapping[str, int]) -> str:
    """What no line bills because the way of the devices is unknown."""
    found = []
    if counts["unknown_mm"]:
        made = f", inferred entries: {counts['inferred']:,}" if counts["inferred"] else ""
        beeline = f"{counts['unknown_mm'] / 1_000_000:.2f} km of beeline"
        found.append(f"not billed, as the way between positions is unknown: {beeline}{made}")
    if counts["dropped"]:
        dropped = f"{counts['dropped']:,} messages"
        found.append(f"not billed, as the vehicles' brokers dropped them before the agents: {dropped}")
    return "; ".join(found)


def _decisions(certificates: Sequence[DeviceCertificate]) -> tuple[str, ...]:
    """The decisions that certificates rely on, as text."""
    # there may be many: a sold fleet is closed device by device
    return _named(
        [
            f"{one.tenant}/{one.device}: {what} by {made.decided_by} (decision {made.number}): {made.reason}"
            for one in certificates
            for what, made in ((f"{one.stated_state.value}, closed", one.decision), ("doubts, accepted", one.accepted))
            if made is not None
        ]
    )


def _named(found: Sequence[str]) -> tuple[str, ...]:
    """Shortened to what fits on a page."""
    more = len(found) - _MAX_NAMED
    return (*found[:_MAX_NAMED], *([f"and {more:,} more, see their certificates"] if more > 0 else []))


def _drafted(closing: Closing, parties: Parties, rated: RatedAccount) -> Closing:
    """The closing with the digest of its invoice's body, or blocked if no valid invoice can be made.

    Checked here, so that nothing is numbered that cannot be issued.
    """
    try:
        body = document_body(rated, kind=DocumentType.INVOICE, buyer=parties.buyer, names=parties.names)
        closing_head(closing, parties, rated.owed, body.digest)
    except DocumentError as error:
        faults = closing.reasons if closing.outcome is ClosingState.BLOCKED else ()
        return replace(closing, outcome=ClosingState.BLOCKED, reasons=(*faults, str(error)))
    return replace(closing, body_digest=body.digest)


def blocked(
    run: ClosingRun,
    payer: str,
    days: tuple[date, date],
    time_zone: str,
    reasons: Sequence[str],
    *,
    contract: PayerContract | None = None,
) -> ClosedPayer:
    """A closing without a sum. `contract`: None if the contract is at fault.

    `days`: first and last; the clocks of the time zone may have skipped them.
    """
    seller = None if contract is None else contract.seller
    nothing: dict[str, Any] = {}
    nothing_charged = charge_columns(())
    closing = Closing(
        key=PeriodKey("" if seller is None else seller.id, payer, *days),
        snapshot=run.snapshot,
        snapshot_id=run.snapshot_id,
        number=0,
        run=run.name,
        outcome=ClosingState.BLOCKED,
        reasons=tuple(reasons),
        period_start=day_start(time_zone, days[0]),
        period_end=day_start(time_zone, days[1] + timedelta(days=1)),
        time_zone=time_zone,
        number_prefix="" if seller is None else seller.number_prefix,
        currency="" if contract is None else contract.payer.currency,
        net_minor=0,
        tax_minor=0,
        charges=0,
        taxes=canonical_text([]),
        lines_digest=lines_digest(nothing_charged),
        body_digest="",
        certificates_digest=digest_of(canonical_text([])),
        control_totals=canonical_text([]),
        parties=canonical_text(nothing),
        contract_digest="" if contract is None else contract.digest,
    )
    return ClosedPayer(closing=closing, charges=nothing_charged, certificates=())
