"""Holds what came out against the truth: records, completeness and usage, beside documents. It only reads tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from cloud_jobs.billing.certificates import CertificateState, DeviceCertificate
from cloud_jobs.billing.contracts import CANARY
from cloud_jobs.billing.register.tables import Register
from cloud_jobs.lake.coverage import TenantDevice
from cloud_jobs.lake.schemas import QUANTITIES, QUARTERS, WHOLE_DEVICE
from cloud_jobs.lake.tables import Lake
from deploy.demo.alerting import AlertFindings
from deploy.demo.billing import DemoBilling
from deploy.demo.canary import CanaryFindings
from deploy.demo.document_audit import DocumentAudit, PostedAudit, audit_documents, audit_posted, true_ledger
from deploy.demo.faults import FaultFindings
from deploy.demo.guarding import LockedOut
from deploy.demo.proof import DemoProof
from simulator.truth import (
    Made,
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
