"""What an auditor asks for at the end of the demo: do all stations agree, and does a line come apart into records."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from rich.console import RenderableType

from cloud_jobs.billing.billing_period import days_text
from cloud_jobs.billing.register.documents_of import issued_document
from cloud_jobs.billing.register.tables import Register
from cloud_jobs.explain.issued_line import ExplainedLine, explain_line
from cloud_jobs.explain.terminal import line_tables
from cloud_jobs.lake.coverage import TenantDevice
from cloud_jobs.lake.snapshots import take_snapshot
from cloud_jobs.reconcile import ComparisonOutcome, Reconciled, reconcile
from cloud_jobs.reconcile.cli import reconciled_table
from deploy.demo.billing import DemoBilling

_HOURS_SHOWN = 6


@dataclass(frozen=True, slots=True)
class DemoProof:
    """All stations of the period side by side for the customers, and one line of an invoice taken apart."""

    payers: tuple[str, ...]
    reconciled: Reconciled
    explained: ExplainedLine

    @property
    def stations_agree(self) -> bool:
        """Whether device, region, centre, usage, charges and documents have the same."""
        return self.reconciled.outcome is ComparisonOutcome.EQUAL

    @property
    def line_agrees(self) -> bool:
        """Whether records, fences and prices give the line once more."""
        return self.explained.explanation.agrees is True

    @property
    def commands(self) -> tuple[str, str]:
        """What prints both, but for the lake."""
        payers = "".join(f" --payer {payer}" for payer in self.payers)
        key, line = self.explained.explanation.charge.key, self.explained
        return (
            f"reconcile --period {days_text(*self.reconciled.days)}{payers}",
            f"bill explain {line.number} {line.line} --device {key.tenant}/{key.device}",
        )

    def tables(self) -> tuple[RenderableType, RenderableType]:
        """What `waybill reconcile` and `waybill bill explain` print."""
        return reconciled_table(self.reconciled), line_tables(self.explained, _HOURS_SHOWN)


def prove(billing: DemoBilling, number: str) -> DemoProof:
    """Reconciles the period, and explains a document's greatest charge for distance in a zone. Raises CloudError."""
    now = datetime.now(UTC)
    # of the canary's records the station of devices counts those of any period, and nobody is billed for them
    payers = tuple(sorted(one.key.payer for one in billing.closings))
    reconciled = reconcile(billing.lake, take_snapshot(billing.lake, now), billing.days, payers, now=now)
    register = Register(billing.lake)
    made = issued_document(register, number)
    lines = {
        line["invoice_line_identifier"]
        for line in made["lines"]
        if line["kind"] == "usage" and line["meter"] == "distance" and line["zone"]
    } or {line["invoice_line_identifier"] for line in made["lines"] if line["kind"] == "usage"}
    entry = max((one for one in made["annex"] if one["line"] in lines), key=lambda one: one["amount_minor"])
    device = TenantDevice(entry["tenant"], entry["device"])
    return DemoProof(payers, reconciled, explain_line(register, number, entry["line"], device))
