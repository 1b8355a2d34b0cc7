"""The head of a document from the closing that it is of: all that a number needs, without reading a charge. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, timedelta

from cloud_jobs.billing.documents import (
    CertificateSummary,
    Document,
    DocumentType,
    InvoicingPeriod,
    PrecedingInvoice,
    document_head,
)
from cloud_jobs.billing.rating import Owed
from cloud_jobs.billing.register.closing import Closing
from cloud_jobs.billing.register.parties import Parties


def closing_head(
    closing: Closing,
    parties: Parties,
    owed: Sequence[Owed],
    body_digest: str,
    *,
    kind: DocumentType = DocumentType.INVOICE,
    number: str | None = None,
    issue_date: date | None = None,
    preceding: PrecedingInvoice | None = None,
    reason: str = "",
) -> Document:
    """The head of the document over what is owed, by the terms of a closing; without a number: of a draft.

    Raises DocumentError for contracts that no valid document can be made of.
    """
    due = issue_date and issue_date + timedelta(days=parties.seller.payment_days)
    return document_head(
        kind=kind,
        number=number,
        issue_date=issue_date,
        due_date=None if kind is DocumentType.CREDIT_NOTE else due,
        seller=parties.seller,
        buyer=parties.buyer,
        owed=owed,
        period=InvoicingPeriod(
            first_day=closing.key.first_day,
            last_day=closing.key.last_day,
            start=closing.period_start,
            end=closing.period_end,
            time_zone=closing.time_zone,
        ),
        snapshot=closing.snapshot_id,
        certificates=CertificateSummary(
            devices_by_state=parties.devices_by_state,
            digest=closing.certificates_digest,
            decisions=parties.noticed.decisions,
            doubtful=parties.noticed.doubtful,
            unknown=parties.noticed.unknown,
        ),
        body_digest=body_digest,
        preceding=preceding,
        reason=reason or None,
    )
