"""What a running period costs as of one moment: rated as `close` rates it, without a number, and stored nowhere."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import Final

from cloud_jobs.billing.billing_period import days_text
from cloud_jobs.billing.certificates import CertificateState, DeviceCertificate
from cloud_jobs.billing.documents import Document, DocumentType, Preview, document_body
from cloud_jobs.billing.documents.document import NOTHING_KNOWN
from cloud_jobs.billing.register.close import (
    RatedPayer,
    UnratedPayer,
    UsageReader,
    closing_of,
    contracts_of,
    payer_groups,
    rate_payers,
    unbilled_devices,
)
from cloud_jobs.billing.register.closer import ClosingFences, ClosingRun, closing_fences
from cloud_jobs.billing.register.closing import Closing, ClosingState, Days, Parties, closing_head
from cloud_jobs.billing.register.errors import NoPayer, RegisterError
from cloud_jobs.lake.coverage import TenantDevice
from cloud_jobs.lake.snapshot_reads import miscounted
from cloud_jobs.lake.snapshots import newest_state
from cloud_jobs.lake.tables import Lake
from geo.reference.moments import QUARTER, stamp

_DIGITS: Final = 12
MAX_NAMED: Final = 1000
"""The most incomplete devices that a document names; the others are counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PayerPreview:
    """The preview of one payer. `document`: None if nothing can be rated; `closing.reasons` then say why."""

    closing: Closing
    document: Document | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PeriodPreview:
    """Previews by payer. `unbilled`: devices with usage in the period that no account has, if all payers are asked."""

    as_of: datetime
    payers: Sequence[PayerPreview]
    unbilled: Sequence[TenantDevice]


def running_days(today: date) -> Days:
    """The days of the calendar month up to its end."""
    following = date(today.year + today.month // 12, today.month % 12 + 1, 1)
    return date(today.year, today.month, 1), date.fromordinal(following.toordinal() - 1)


def preview_period(lake: Lake, days: Days, payers: Collection[str] | None, now: datetime) -> PeriodPreview:
    """Rates local days of some payers, or of all, with everything that the lake has now. Writes nothing.

    Raises RegisterError for a period that has not begun, UnknownPayer, NoPayer, BadPeriod, LakeError, StoreUnavailable.
    """
    state = newest_state(lake)
    run = ClosingRun(name="preview", snapshot=0, snapshot_id=f"unsaved-{state.digest()[:_DIGITS]}", now=now)
    contracts, refused, later = contracts_of(lake, state, days, payers, run)
    # a former payer owes nothing, so nothing is shown of it
    blocked = [one.closing for one in refused if one.closing.outcome is ClosingState.BLOCKED]
    if not contracts and not blocked:
        raise NoPayer(days_text(*days))
    begun = [one for one in contracts if one.period.start <= now]
    if contracts and not begun:
        start = min(one.period.start for one in contracts)
        raise RegisterError(f"the period {days_text(*days)} begins at {start.isoformat()}; choose one that has begun")
    reader = UsageReader(lake, state, miscounted=miscounted(lake, state))
    fences = closing_fences(lake, state)
    found = [PayerPreview(closing=one) for one in blocked]
    # the first hours of a month begin later in other time zones
    not_begun = [
        UnratedPayer(one, f"its period begins at {stamp(one.period.start)}") for one in contracts if one not in begun
    ]
    found += [PayerPreview(closing=closing_of(one, run, fences).closing) for one in not_begun]
    for group in payer_groups(begun, tasks=1):
        found += [_preview(one, run, fences) for one in rate_payers(reader, group)]
    return PeriodPreview(
        as_of=now,
        payers=sorted(found, key=lambda one: one.closing.key.payer),
        unbilled=[] if payers is not None else unbilled_devices(lake, state, days, contracts, later),
    )


def _preview(one: RatedPayer | UnratedPayer, run: ClosingRun, fences: ClosingFences) -> PayerPreview:
    closing = closing_of(one, run, fences).closing
    # a sum that contradicts the records is not shown, not even as a preview
    if isinstance(one, UnratedPayer) or closing.outcome is ClosingState.BLOCKED:
        return PayerPreview(closing=closing)
    parties = Parties.parse(closing.parties)
    body = document_body(
        one.rated, kind=DocumentType.INVOICE, buyer=parties.buyer, names=parties.names, nothing=NOTHING_KNOWN
    )
    incomplete = dict(_incomplete(one.certificates, run.now))
    named = dict(sorted(incomplete.items())[:MAX_NAMED])
    reasons = fences.open_ends(one.contract)
    if more := len(incomplete) - len(named):
        reasons.append(f"{more:,} more devices are incomplete")
    preview = Preview(as_of=run.now, devices=len(one.certificates), incomplete=named, reasons=tuple(reasons))
    head = closing_head(closing, parties, one.rated.owed, body.digest, preview=preview)
    return PayerPreview(closing=closing, document={**head, **body.parts})


def _incomplete(certificates: Sequence[DeviceCertificate], now: datetime) -> Iterator[tuple[str, Sequence[str]]]:
    """The devices whose usage up to now is not known, and why.

    A device that accounted for its records within the last quarter of an hour is live, although it is silent for the
    rest of the period.
    """
    for one in certificates:
        # its device is the payer's later in the period
        if one.start >= now:
            continue
        is_live = one.stated_state is CertificateState.SILENT and one.since is not None and one.since >= now - QUARTER
        still = one.silence_or_gap if is_live else ()
        if reasons := [reason for reason in one.reasons if reason not in still]:
            yield f"{one.tenant}/{one.device}", reasons
