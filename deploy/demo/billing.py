"""The clerk's part of the demo: close, decide, issue, and adjust, by the functions behind `waybill bill`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from secrets import token_hex

from cloud_jobs.billing.billing_period import BillingPeriod
from cloud_jobs.billing.certificates import CertificateState, ClosedState, DeviceCertificate, certificates_from, decide
from cloud_jobs.billing.register.close import close_period
from cloud_jobs.billing.register.closer import ClosingRun
from cloud_jobs.billing.register.closing import Closing, ClosingState, Days
from cloud_jobs.billing.register.ledger import IssuedDocument
from cloud_jobs.billing.register.operations import Clerk, adjust_period, issue_period
from cloud_jobs.billing.register.tables import Register
from cloud_jobs.lake.coverage import TenantDevice
from cloud_jobs.lake.snapshots import Snapshot, take_snapshot
from cloud_jobs.lake.tables import Lake

CLERK = "the demo"
_WITHIN = timedelta(days=1)


@dataclass(slots=True)
class DemoBilling:
    """The register of the demo's lake, and what was done with it. `period`: as it is written, by the payers' clocks."""

    lake: Lake
    period: str
    snapshot: Snapshot | None = None
    closings: list[Closing] = field(default_factory=list)
    invoices: Sequence[IssuedDocument] = ()

    @property
    def days(self) -> Days:
        """Its first and last day."""
        period = BillingPeriod.parse(self.period, "UTC")
        return period.first_day, period.last_day

    @property
    def stated_by(self) -> datetime:
        """The period is over by then, whatever the time zone."""
        return BillingPeriod.parse(self.period, "UTC").end + _WITHIN

    def close(self) -> list[Closing]:
        """Closes the period for all payers, by what is known now. Raises CloudError."""
        now = datetime.now(UTC)
        self.snapshot = take_snapshot(self.lake, now)
        run = ClosingRun(name=token_hex(8), snapshot=self.snapshot.number, snapshot_id=self.snapshot.id, now=now)
        self.closings = close_period(self.lake, self.snapshot, self.days, None, run=run)
        return self.closings

    def certificates(self, devices: Iterable[TenantDevice]) -> dict[TenantDevice, DeviceCertificate]:
        """The certificates of devices for the period, at the snapshot of the latest closing."""
        assert self.snapshot is not None, "certificates are of a snapshot"
        days = BillingPeriod.parse(self.period, "UTC")
        return certificates_from(self.lake, self.snapshot, [*devices], (days.start, days.end))

    def decide(self, certificate: DeviceCertificate, reason: str) -> None:
        """Answers for a device that is silent or has a gap, up to the end of the period. Raises CloudError."""
        gap = certificate.stated_state is CertificateState.OPEN
        decide(
            self.lake,
            certificate.of_device,
            ClosedState.OPEN if gap else ClosedState.SILENT,
            # for every payer, whichever clock its period is by
            (
                min(certificate.start, *(one.period_start for one in self.closings)),
                max(certificate.end, *(one.period_end for one in self.closings)),
            ),
            decided_by=CLERK,
            reason=reason,
            now=datetime.now(UTC),
        )

    def issue(self) -> Sequence[IssuedDocument]:
        """Numbers the invoices of all payers whose closing is final. Raises CloudError."""
        register = Register(self.lake)
        return issue_period(register, self.days, None, clerk=_clerk()).documents

    def adjust(self) -> Sequence[IssuedDocument]:
        """Posts what the newest closing changes of what is posted. Raises CloudError."""
        register = Register(self.lake)
        return adjust_period(register, self.days, None, clerk=_clerk()).documents


def not_final(closings: Iterable[Closing]) -> list[Closing]:
    """The closings that cannot be issued."""
    return [one for one in closings if one.outcome is not ClosingState.FINAL]


def _clerk() -> Clerk:
    return Clerk(by=CLERK, now=datetime.now(UTC), attempt=token_hex(8))
