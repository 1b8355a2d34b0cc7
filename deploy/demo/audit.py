"""Holds what came out against the truth: records, completeness and usage, beside documents. It only reads tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from secrets import token_hex
from typing import Any

from rich.console import RenderableType

from cloud_jobs.billing.billing_period import BillingPeriod, days_text
from cloud_jobs.billing.certificates import CertificateState, ClosedState, DeviceCertificate, certificates_from, decide
from cloud_jobs.billing.contracts import CANARY
from cloud_jobs.billing.documents import charges_of
from cloud_jobs.billing.rating import Charge
from cloud_jobs.billing.register.close import close_period
from cloud_jobs.billing.register.closer import ClosingRun
from cloud_jobs.billing.register.closing import Closing, ClosingState, Days
from cloud_jobs.billing.register.documents_of import issued_document
from cloud_jobs.billing.register.ledger import IssuedDocument
from cloud_jobs.billing.register.operations import Clerk, adjust_period, issue_period
from cloud_jobs.billing.register.tables import Register
from cloud_jobs.explain.issued_line import ExplainedLine, explain_line
from cloud_jobs.explain.terminal import line_tables
from cloud_jobs.lake.coverage import TenantDevice
from cloud_jobs.lake.schemas import QUANTITIES, QUARTERS, WHOLE_DEVICE
from cloud_jobs.lake.snapshots import Snapshot, take_snapshot
from cloud_jobs.lake.tables import Lake
from cloud_jobs.reconcile import ComparisonOutcome, Reconciliation, reconcile
from cloud_jobs.reconcile.cli import reconciled_table
from deploy.demo.processes import LockedOut
from deploy.demo.watching import AlertFindings, CanaryFindings, FaultFindings
from simulator.truth import (
    Made,
    PostedCharge,
    TrueDocument,
    TrueKey,
    TrueLedger,
    TrueUnknown,
    TrueUsage,
    Truth,
    content_bytes,
    made_canary,
    made_event,
    made_position,
    made_raw,
    made_signal,
)

# The clerk's part of the demo: close, decide, issue, adjust.

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


# The audit at the end of the demo.

_HOURS_SHOWN = 6


@dataclass(frozen=True, slots=True)
class DemoProof:
    """All stations of the period side by side for the customers, and one line of an invoice taken apart."""

    payers: tuple[str, ...]
    reconciled: Reconciliation
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


# Comparison of each invoice and note with the truth.


@dataclass(frozen=True, slots=True)
class DocumentAudit:
    """A document of the register, and the truth's of the same number; None where one of them is not there.

    `of`: which number of its seller the invoice has that a note is about.
    """

    issued: IssuedDocument | None
    truth: TrueDocument | None
    of: int | None
    charges: int
    differing_charges: int

    @property
    def equal(self) -> bool:
        """Whether both say the same, to the last minor unit."""
        return (
            self.issued is not None
            and self.truth is not None
            and self.differing_charges == 0
            and (self.of, *_facts(self.issued)) == (self.truth.of, *_true_facts(self.truth))
        )


@dataclass(frozen=True, slots=True)
class PostedAudit:
    """All that a payer was asked for, with tax, and what it owes by everything that was made."""

    payer: str
    currency: str
    posted_minor: int
    owed_minor: int

    @property
    def equal(self) -> bool:
        """Whether it was asked for what it owes."""
        return self.posted_minor == self.owed_minor


def true_ledger(states: Iterable[Truth]) -> TrueLedger:
    """The documents of the truth: invoices by the first state of knowledge, notes by each that follows."""
    ledger, first, *later = TrueLedger(), *states
    for payer, days in first.payers.items():
        ledger.issue(first.contracts, payer, days, first.quarters())
    for known in later:
        for payer, days in known.payers.items():
            ledger.adjust(known.contracts, payer, days, known.quarters())
    return ledger


def audit_documents(register: Register, ledger: TrueLedger) -> tuple[DocumentAudit, ...]:
    """All documents of the register and of the truth, by seller and number. Raises CloudError."""
    issued = {(one.key.legal_entity, one.counter): one for one in register.documents()}
    true = {(one.legal_entity, one.number): one for one in ledger.documents}
    counters = {(one.key.legal_entity, one.number): one.counter for one in issued.values()}
    return tuple(_audit(register, issued.get(key), true.get(key), counters) for key in sorted({*issued, *true}))


def audit_posted(register: Register, truth: Truth) -> tuple[PostedAudit, ...]:
    """What each payer was asked for, against what it owes by all that was made. Raises CloudError, TruthError."""
    posted: dict[str, int] = dict.fromkeys(truth.payers, 0)
    for one in register.documents():
        posted[one.key.payer] = posted.get(one.key.payer, 0) + one.gross_minor
    owed = {payer: truth.owed(payer) for payer in truth.payers}
    return tuple(PostedAudit(payer, one.currency, posted[payer], one.gross_minor) for payer, one in owed.items())


def _audit(
    register: Register,
    issued: IssuedDocument | None,
    true: TrueDocument | None,
    counters: Mapping[tuple[str, str], int],
) -> DocumentAudit:
    ours = {} if issued is None else _charges(charges_of(issued_document(register, issued.number)))
    theirs = {} if true is None else {one.about: one for one in true.charges}
    differing = sum(ours.get(about) != theirs.get(about) for about in {*ours, *theirs})
    reference = None if issued is None else issued.reference
    of = None if issued is None or reference is None else counters.get((issued.key.legal_entity, reference.number))
    return DocumentAudit(issued, true, of, len(ours), differing)


def _charges(charges: Iterable[Charge]) -> Mapping[TrueKey, PostedCharge]:
    found = {}
    for one in charges:
        key = one.key
        who = (key.account, key.region, key.tenant, key.device)
        meter = "" if key.meter is None else key.meter.value
        about = TrueKey(*who, key.kind.value, meter, key.zone, key.window, key.price)
        found[about] = PostedCharge(about, one.quantity, one.free, one.amount_minor)
    return found


def _facts(issued: IssuedDocument) -> tuple[object, ...]:
    key, kind = issued.key, issued.type.heading.lower()
    return (kind, *key, issued.currency, issued.net_minor, issued.tax_minor)


def _true_facts(true: TrueDocument) -> tuple[object, ...]:
    key = (true.legal_entity, true.payer, true.days.first_day, true.days.last_day)
    return (true.kind, *key, true.currency, true.net_minor, true.tax_minor)


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MOST_PERCENT = 1.0
_QUARTER = timedelta(hours=1) / QUARTERS
_MEASURED = ("altitude_m", "speed_mps", "heading_deg", "accuracy_m")
_COLUMNS = [
    "tenant",
    "device",
    "kind",
    "device_time",
    "latitude",
    "longitude",
    *_MEASURED,
    "name",
    "number",
    "text",
    "payload",
]


Names = Mapping[tuple[str, str], str]
"""The name in the scenario, which the truth has, of each tenant and device."""


@dataclass(frozen=True, slots=True)
class DeviceAudit:
    """One device: what the simulator made, what its agent says, what the centre has. `name`: `tenant/device`."""

    device: str
    name: str
    region: str
    made: int
    stored: int
    forwarded: int
    redelivered: int
    ingested: int
    lost: int
    unexpected: int
    received: int
    declared: int
    missing: int
    state: CertificateState

    @property
    def equal(self) -> bool:
        """Whether exactly the records that were made are in the table, and the certificate says so."""
        return (
            self.lost == self.unexpected == 0
            and self.made == self.stored == self.ingested == self.received
            and self.state is CertificateState.COMPLETE
        )


@dataclass(frozen=True, slots=True)
class NoiseFindings:
    """What is billed beside what a drive without noise would be: metres, entries, and amounts of each payer."""

    billed_mm: int
    driven_mm: int
    billed_entries: int
    driven_entries: int
    amounts: dict[str, tuple[int, int]]

    @property
    def holds(self) -> bool:
        """The way is right to a per cent. Not each entry is charged, but none that was not."""
        return abs(_more_percent(self.billed_mm, self.driven_mm)) <= _MOST_PERCENT and (
            self.billed_entries <= self.driven_entries
        )

    @property
    def found(self) -> str:
        """In words."""
        amounts = ", ".join(f"{_more_percent(*both):+.1f} % {payer}" for payer, both in sorted(self.amounts.items()))
        return (
            f"{_more_percent(self.billed_mm, self.driven_mm):+.2f} % of {self.driven_mm / 1e6:,.0f} km, "
            f"{self.billed_entries} of {self.driven_entries} entries; bills: {amounts}"
        )


def noise_findings(truth: Truth, driven: Truth) -> NoiseFindings:
    """Of the truth that the bills were held against, and the one of the same drive without noise. Raises TruthError."""
    (billed_mm, billed_entries), (driven_mm, driven_entries) = (
        (sum(row.distance_mm for row in rows), sum(row.entries for row in rows))
        for rows in (truth.usage(), driven.usage())
    )
    amounts = {payer: (truth.owed(payer).gross_minor, driven.owed(payer).gross_minor) for payer in truth.payers}
    return NoiseFindings(billed_mm, driven_mm, billed_entries, driven_entries, amounts)


def _more_percent(one: int, other: int) -> float:
    return 100.0 * (one / other - 1.0) if other else 0.0


@dataclass(frozen=True, slots=True)
class Audit:
    """Everything that was compared. `reason`: why the first closing was not final ("": it was).

    `locked_out`: the vehicle that was revoked; None where nobody is asked who they are.
    """

    devices: tuple[DeviceAudit, ...]
    reason: str
    documents: tuple[DocumentAudit, ...]
    posted: tuple[PostedAudit, ...]
    duplicates_removed: int
    conflicts: int
    malformed: int
    usage_quarters: int
    usage_differing: int
    proof: DemoProof | None
    faults: FaultFindings | None = None
    locked_out: LockedOut | None = None
    alerts: AlertFindings | None = None
    canary: CanaryFindings | None = None
    noise: NoiseFindings | None = None

    @property
    def equal(self) -> bool:
        """Whether all is as the truth says."""
        return (
            all(device.equal for device in self.devices)
            and all(one.equal for one in self.documents)
            and all(one.equal for one in self.posted)
            and bool(self.devices)
            and bool(self.documents)
            and bool(self.reason)
            # a drive in which nothing went wrong has shown nothing
            and self.faults is not None
            and self.faults.holds
            and self.proof is not None
            and self.proof.stations_agree
            and self.proof.line_agrees
            and (self.locked_out is None or self.locked_out.holds)
            and (self.alerts is None or self.alerts.holds)
            and (self.canary is None or self.canary.holds)
            and (self.noise is None or self.noise.holds)
            and self.conflicts == self.malformed == self.usage_differing == 0
        )


def audit(  # noqa: PLR0917 - what each step of the demo found
    billing: DemoBilling,
    states: Sequence[Truth],
    agents: Mapping[str, tuple[str, dict[str, Any]]],
    names: Names,
    reason: str,
    proof: DemoProof | None,
) -> Audit:
    """Compares the lake with the truth. `states`: what was known at the issue, and at each adjustment after it.

    `agents`: for each vehicle its region and its agent's status. Raises CloudError, TruthError.
    """
    lake, truth = billing.lake, states[-1]
    ingested = ingested_records(lake, names)
    certificates = billing.certificates(TenantDevice(*sender) for sender in names)
    name_of = {device: "/".join(sender) for sender, device in names.items()}
    certificate_of = {names[sender]: one for sender, one in certificates.items()}
    counted = lake.rows("ingest_batches").to_pydict()
    usage, differing = _usage(lake, truth, names)
    register = Register(lake)
    return Audit(
        devices=tuple(
            _device(
                device,
                name_of[device],
                *agents[device],
                truth.records(device),
                ingested.get(device, Counter()),
                certificate_of[device],
            )
            for device in sorted(agents)
        ),
        reason=reason,
        posted=audit_posted(register, truth),
        documents=audit_documents(register, true_ledger(states)),
        duplicates_removed=sum(counted["duplicates"]),
        conflicts=sum(counted["conflicts"]),
        malformed=sum(counted["malformed"]),
        usage_quarters=usage,
        usage_differing=differing,
        proof=proof,
    )


def _device(  # noqa: PLR0917 - the three stations of one device
    device: str,
    name: str,
    region: str,
    status: dict[str, Any],
    made: Counter[Made],
    ingested: Counter[Made],
    certificate: DeviceCertificate,
) -> DeviceAudit:
    return DeviceAudit(
        device=device,
        name=name,
        region=region,
        made=made.total(),
        stored=status["head"],
        forwarded=status["acknowledged"],
        redelivered=status["duplicates"],
        ingested=ingested.total(),
        # Counters, not sets: a message that the vehicle sent twice must be there twice.
        lost=(made - ingested).total(),
        unexpected=(ingested - made).total(),
        received=certificate.received,
        declared=sum(seqs.count for _, seqs in certificate.declared_lost),
        missing=certificate.missing.count,
        state=certificate.state,
    )


def ingested_records(lake: Lake, names: Names) -> dict[str, Counter[Made]]:
    """The records that the centre has, by vehicle, without those of canaries. Raises LakeError."""
    made: dict[str, Counter[Made]] = {}
    for batch in lake.rows("records", _COLUMNS).to_batches():
        for row in _of_customers(batch.to_pylist()):
            made.setdefault(_name(names, row["tenant"], row["device"]), Counter())[_made(row)] += 1
    return made


def _of_customers(rows: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Without what is of a canary: the truth of the fleet does not know it, and nobody is billed for it."""
    return (row for row in rows if row["tenant"] != CANARY)


def _name(names: Names, tenant: str, device: str) -> str:
    return names.get((tenant, device), f"{tenant}/{device}")


def _made(row: dict[str, Any]) -> Made:
    """A row of the records table in the truth's own words."""
    since = row["device_time"] - _EPOCH
    time_us = (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
    match row["kind"]:
        case "position":
            measured = {name: row[name] for name in _MEASURED}
            return made_position(time_us, row["latitude"], row["longitude"], **measured)
        case "signal":
            value = row["number"] if row["text"] is None else row["text"]
            return made_signal(time_us, row["name"], value)
        case "event":
            return made_event(time_us, row["name"], row["text"])
        case "canary":
            return made_canary(time_us, row["name"])
        case _:
            return made_raw(row["name"], row["payload"])


def _usage(lake: Lake, truth: Truth, names: Names) -> tuple[int, int]:
    """How many quarters of usage there are, and how many differ from the truth's or are on one side only."""
    newest: dict[tuple[str, datetime, str], dict[str, Any]] = {}
    # The table is only appended to: of each hour the row that was committed last counts.
    for row in sorted(_of_customers(lake.rows("usage").to_pylist()), key=lambda row: row["commit_number"]):
        newest[_name(names, row["tenant"], row["device"]), row["hour"].astimezone(UTC), row["zone"]] = row
    undated = _undated(lake, names)
    ours: set[TrueUsage | TrueUnknown] = set()
    for (device, hour, zone), row in newest.items():
        if zone == WHOLE_DEVICE:
            ways = zip(*(row[name] for name in TrueUnknown._fields[2:]), strict=True)
            ours |= {TrueUnknown(device, hour + n * _QUARTER, *one) for n, one in enumerate(ways) if any(one)}
        for number, amounts in enumerate(zip(*(row[name] for name in QUANTITIES), strict=True)):
            quarter = hour + number * _QUARTER
            one = TrueUsage(device, quarter, zone, *amounts)
            if zone == WHOLE_DEVICE:
                one = one._replace(content_bytes=one.content_bytes - undated[device, quarter])
            # The truth has no row for a quarter with nothing in it.
            if any(one[3:]):
                ours.add(one)
    theirs = {*truth.usage(), *truth.unknown()}
    return len(ours), len(ours ^ theirs)


def _undated(lake: Lake, names: Names) -> Counter[tuple[str, datetime]]:
    """The bytes of the payloads that nobody understood, by device and quarter: only the vehicle's agent dates them."""
    found: Counter[tuple[str, datetime]] = Counter()
    raw = lake.rows("records", [*_COLUMNS, "device_date"], where=[("kind", "=", "raw")]).to_pylist()
    for row in _of_customers(raw):
        if row["device_date"] is not None:
            quarter = _EPOCH + (row["device_time"] - _EPOCH) // _QUARTER * _QUARTER
            found[_name(names, row["tenant"], row["device"]), quarter] += content_bytes(_made(row))
    return found
