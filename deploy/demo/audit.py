"""Compares the demo's results with the truth: records, completeness, usage and documents. It only reads tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from secrets import token_hex
from typing import Any, NamedTuple

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
from cloud_jobs.billing.units import amount_text
from cloud_jobs.explain.issued_line import ExplainedLine, explain_line
from cloud_jobs.lake.coverage import TenantDevice
from cloud_jobs.lake.schemas import QUANTITIES, QUARTERS, WHOLE_DEVICE
from cloud_jobs.lake.snapshots import Snapshot, take_snapshot
from cloud_jobs.lake.tables import Lake
from cloud_jobs.reconcile import ComparisonOutcome, Reconciliation, Station, reconcile
from deploy.demo.alert_audit import AlertAudit
from deploy.demo.processes import LockedOut
from deploy.demo.watching import CanaryFindings, FaultFindings
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


@dataclass(slots=True)
class DemoBilling:
    """The register of the demo's lake, and its closings. `period`: such as 2026-01."""

    lake: Lake
    period: str
    snapshot: Snapshot | None = None
    closings: list[Closing] = field(default_factory=list)

    @property
    def register(self) -> Register:
        return Register(self.lake)

    @property
    def days(self) -> Days:
        period = BillingPeriod.parse(self.period, "UTC")
        return period.first_day, period.last_day

    @property
    def stated_by(self) -> datetime:
        """The period is over by then, whatever the time zone."""
        return BillingPeriod.parse(self.period, "UTC").end + timedelta(days=1)

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
        """Decides about a device that is silent or has a gap, up to the end of the period. Raises CloudError."""
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
        return issue_period(self.register, self.days, None, clerk=_clerk()).documents

    def adjust(self) -> Sequence[IssuedDocument]:
        """Posts what the newest closing changes of what is posted. Raises CloudError."""
        return adjust_period(self.register, self.days, None, clerk=_clerk()).documents


def _clerk() -> Clerk:
    return Clerk(by=CLERK, now=datetime.now(UTC), attempt=token_hex(8))


def reasons_not_final(closings: Iterable[Closing]) -> list[str]:
    return [reason for one in closings if one.outcome is not ClosingState.FINAL for reason in one.reasons]


# Reconciliation, and one explained line of an invoice.


@dataclass(frozen=True, slots=True)
class DemoProof:
    """All stations of the period side by side, and one line of an invoice computed again."""

    payers: tuple[str, ...]
    reconciled: Reconciliation
    explained: ExplainedLine

    @property
    def stations_agree(self) -> bool:
        return self.reconciled.outcome is ComparisonOutcome.EQUAL

    @property
    def line_agrees(self) -> bool:
        return self.explained.explanation.agrees is True

    @property
    def commands(self) -> tuple[str, str]:
        """The commands that print both, without `--lake`."""
        payers = "".join(f" --payer {payer}" for payer in self.payers)
        key, line = self.explained.explanation.charge.key, self.explained
        return (
            f"reconcile --period {days_text(*self.reconciled.days)}{payers}",
            f"bill explain {line.number} {line.line} --device {key.tenant}/{key.device}",
        )


def prove(billing: DemoBilling, number: str) -> DemoProof:
    """Reconciles the period, and explains a document's greatest charge for distance in a zone. Raises CloudError."""
    now = datetime.now(UTC)
    # the canary's payer is left out: devices count its records in any period, and it gets no bill
    payers = tuple(sorted(one.key.payer for one in billing.closings))
    reconciled = reconcile(billing.lake, take_snapshot(billing.lake, now), billing.days, payers, now=now)
    register = billing.register
    made = issued_document(register, number)
    usage = [line for line in made["lines"] if line["kind"] == "usage"]
    in_zones = [line for line in usage if line["meter"] == "distance" and line["zone"]]
    lines = {line["invoice_line_identifier"] for line in in_zones or usage}
    entry = max((one for one in made["annex"] if one["line"] in lines), key=lambda one: one["amount_minor"])
    device = TenantDevice(entry["tenant"], entry["device"])
    return DemoProof(payers, reconciled, explain_line(register, number, entry["line"], device))


# Comparison of each invoice and note with the truth.


@dataclass(frozen=True, slots=True)
class DocumentAudit:
    """A document of the register and the truth's document of the same number; None where one of them is missing.

    `of`: the number, within its seller, of the invoice that a note corrects.
    """

    issued: IssuedDocument | None
    truth: TrueDocument | None
    of: int | None
    charges: int
    differing_charges: int

    @property
    def name(self) -> str:
        if self.issued is not None:
            return f"{self.issued.type.heading.lower()} {self.issued.number}"
        assert self.truth is not None, "one of both is there"
        return f"a {self.truth.kind} that was not issued to {self.truth.payer},"

    @property
    def gross(self) -> str:
        one = self.issued or self.truth
        assert one is not None, "one of both is there"
        return f"{amount_text(one.gross_minor, one.currency)} {one.currency}"

    @property
    def equal(self) -> bool:
        """Whether both are equal to the last minor unit."""
        return (
            self.issued is not None
            and self.truth is not None
            and self.differing_charges == 0
            and (self.of, *_facts(self.issued)) == (self.truth.of, *_true_facts(self.truth))
        )


@dataclass(frozen=True, slots=True)
class PostedAudit:
    """The sum that a payer was asked for, and the sum that it owes by all records; both with tax."""

    payer: str
    currency: str
    posted_minor: int
    owed_minor: int

    @property
    def amount(self) -> str:
        return f"{amount_text(self.posted_minor, self.currency)} {self.currency}"

    @property
    def equal(self) -> bool:
        return self.posted_minor == self.owed_minor


def true_ledger(states: Iterable[Truth]) -> TrueLedger:
    """The documents of the truth: invoices from the first state of knowledge, notes from each later one."""
    ledger, first, *later = TrueLedger(), *states
    for payer, days in first.payers.items():
        ledger.issue(first.owed(payer), days)
    for known in later:
        for payer, days in known.payers.items():
            ledger.adjust(known.owed(payer), days)
    return ledger


def audit_documents(register: Register, ledger: TrueLedger) -> tuple[DocumentAudit, ...]:
    """All documents of the register and of the truth, by seller and number. Raises CloudError."""
    issued = {(one.key.legal_entity, one.counter): one for one in register.documents()}
    true = {(one.legal_entity, one.number): one for one in ledger.documents}
    counters = {(one.key.legal_entity, one.number): one.counter for one in issued.values()}
    return tuple(_audit(register, issued.get(key), true.get(key), counters) for key in sorted({*issued, *true}))


def audit_posted(register: Register, truth: Truth) -> tuple[PostedAudit, ...]:
    """Compares what each payer was asked for with what it owes. Raises CloudError, TruthError."""
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
        about = TrueKey(*who, key.kind.value, meter, key.zone, key.window_id, key.price)
        found[about] = PostedCharge(about, one.quantity, one.free, one.amount_minor)
    return found


def _facts(issued: IssuedDocument) -> tuple[object, ...]:
    key, kind = issued.key, issued.type.heading.lower()
    return (kind, *key, issued.currency, issued.net_minor, issued.tax_minor)


def _true_facts(true: TrueDocument) -> tuple[object, ...]:
    key = (true.legal_entity, true.payer, true.days.first_day, true.days.last_day)
    return (true.kind, *key, true.currency, true.net_minor, true.tax_minor)


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
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
    """The counts of one device in the simulator, its agent and the centre. `name`: `tenant/device`."""

    device: str
    name: str
    region: str
    made: int
    stored: int
    forwarded: int
    ingested: int
    lost: int
    unexpected: int
    received: int
    state: CertificateState

    @property
    def equal(self) -> bool:
        """Whether the table has exactly the simulated records, and the certificate says so."""
        return (
            self.lost == self.unexpected == 0
            and self.made == self.stored == self.ingested == self.received
            and self.state is CertificateState.COMPLETE
        )


class Verdict(NamedTuple):
    """One statement of the demo, and whether it holds."""

    what: str
    found: str
    holds: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """Everything that was compared. `reason`: why the first closing was not final ("": it was).

    `usage_quarters`, `usage_differing`: all quarters of an hour with usage, and those that differ from the truth.
    """

    devices: tuple[DeviceAudit, ...]
    reason: str
    documents: tuple[DocumentAudit, ...]
    posted: tuple[PostedAudit, ...]
    quarantined: int
    usage_quarters: int
    usage_differing: int
    proof: DemoProof
    faults: FaultFindings
    locked_out: LockedOut
    alerts: AlertAudit
    canary: CanaryFindings

    @property
    def equal(self) -> bool:
        return bool(self.devices and self.documents) and all(one.holds for one in self.verdicts)

    @property
    def verdicts(self) -> list[Verdict]:
        devices, line = self.devices, self.proof.explained
        lost, unexpected = (sum(getattr(one, name) for one in devices) for name in ("lost", "unexpected"))
        complete = sum(one.state is CertificateState.COMPLETE for one in devices)
        comparisons = f"{len(self.proof.reconciled.comparisons)} comparisons, {self.proof.reconciled.outcome.value}"
        quarters = f"{self.usage_quarters:,} quarters, {self.usage_differing} differ"
        return [
            Verdict("each fault of the drive happened, and lasted", self.faults.found, self.faults.holds),
            Verdict("made = stored = forwarded = in the table", _counts(devices), all(one.equal for one in devices)),
            Verdict("no record lost", f"{lost} lost", not lost),
            Verdict("no record counted twice", f"{unexpected} too many", not unexpected),
            Verdict("every device complete", f"{complete} of {len(devices)}", complete == len(devices)),
            Verdict("nothing in quarantine", f"{self.quarantined}", not self.quarantined),
            Verdict("usage equal in every quarter of an hour and zone", quarters, not self.usage_differing),
            Verdict("a silent vehicle kept its bill provisional", self.reason or "it did not", bool(self.reason)),
            *(Verdict(f"{one.name} equal to the last minor unit", one.gross, one.equal) for one in self.documents),
            *(
                Verdict(f"{one.payer} was asked for all that it owes, and no more", one.amount, one.equal)
                for one in self.posted
            ),
            Verdict(" = ".join(Station), comparisons, self.proof.stations_agree),
            Verdict(f"line {line.line} of {line.number} computed again", _charged(line), self.proof.line_agrees),
            Verdict("each alert has its verdict", self.alerts.summary, self.alerts.holds),
            Verdict("each hop that the canary watches is green", self.canary.found, self.canary.holds),
            Verdict(
                "a revoked vehicle lost its session and got no other", self.locked_out.found, self.locked_out.holds
            ),
        ]


def _counts(devices: Sequence[DeviceAudit]) -> str:
    return " = ".join(
        f"{sum(getattr(one, name) for one in devices):,}" for name in ("made", "stored", "forwarded", "ingested")
    )


def _charged(line: ExplainedLine) -> str:
    return f"{amount_text(line.explanation.charge.amount_minor, line.currency)} {line.currency}"


def audit_devices(
    billing: DemoBilling, truth: Truth, agents: Mapping[str, tuple[str, dict[str, Any]]], names: Names
) -> tuple[DeviceAudit, ...]:
    """`agents`: for each vehicle its region and its agent's status. Raises CloudError, TruthError."""
    ingested = ingested_records(billing.lake, names)
    certificates = billing.certificates(TenantDevice(*sender) for sender in names)
    name_of = {device: "/".join(sender) for sender, device in names.items()}
    certificate_of = {names[sender]: one for sender, one in certificates.items()}
    return tuple(
        _device(
            device,
            name_of[device],
            *agents[device],
            truth.records(device),
            ingested.get(device, Counter()),
            certificate_of[device],
        )
        for device in sorted(agents)
    )


def quarantined_records(lake: Lake) -> int:
    counted = lake.rows("ingest_batches").to_pydict()
    return int(sum(counted["conflicts"]) + sum(counted["malformed"]))


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
        ingested=ingested.total(),
        # Counters, not sets: a message that the vehicle sent twice must be there twice.
        lost=(made - ingested).total(),
        unexpected=(ingested - made).total(),
        received=certificate.received,
        state=certificate.state,
    )


def ingested_records(lake: Lake, names: Names) -> dict[str, Counter[Made]]:
    """The records of the centre by vehicle, without those of canaries. Raises LakeError."""
    made: dict[str, Counter[Made]] = {}
    for batch in lake.rows("records", _COLUMNS).to_batches():
        for row in _of_customers(batch.to_pylist()):
            made.setdefault(_name(names, row["tenant"], row["device"]), Counter())[_made(row)] += 1
    return made


def _of_customers(rows: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Leaves canaries out: the truth of the fleet does not know them, and they get no bill."""
    return (row for row in rows if row["tenant"] != CANARY)


def _name(names: Names, tenant: str, device: str) -> str:
    return names.get((tenant, device), f"{tenant}/{device}")


def _made(row: dict[str, Any]) -> Made:
    """A row of the records table in the form of the truth."""
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


def audit_usage(lake: Lake, truth: Truth, names: Names) -> tuple[int, int]:
    """The number of quarters with usage, and of those that differ from the truth or are on one side only."""
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
    """The bytes of raw payloads by device and quarter: the truth has no time for them, as only the agent dates them."""
    found: Counter[tuple[str, datetime]] = Counter()
    raw = lake.rows("records", [*_COLUMNS, "device_date"], where=[("kind", "=", "raw")]).to_pylist()
    for row in _of_customers(raw):
        if row["device_date"] is not None:
            quarter = _EPOCH + (row["device_time"] - _EPOCH) // _QUARTER * _QUARTER
            found[_name(names, row["tenant"], row["device"]), quarter] += content_bytes(_made(row))
    return found
