"""`waybill decisions`: record, withdraw and list decisions about incomplete devices."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final

import typer

from cloud_jobs.billing.billing_period import BillingPeriod
from cloud_jobs.billing.certificates.certificate import CertificateState, DeviceCertificate
from cloud_jobs.billing.certificates.decisions import (
    BadDecision,
    ClosedState,
    Decision,
    decide_each,
    decisions,
    withdraw,
)
from cloud_jobs.billing.certificates.reader import certificates_from
from cloud_jobs.billing.contracts import Contracts
from cloud_jobs.lake.coverage import TenantDevice
from cloud_jobs.lake.location import Location
from cloud_jobs.lake.snapshot_reads import reference_rows
from cloud_jobs.lake.snapshots import newest_state
from cloud_jobs.lake.tables import Lake, checked_time
from cloud_jobs.terminal import Column, FittedTable, cloud_errors_as_messages, device_of, screen
from geo.reference.moments import stamp
from waybill.settings import file_fault, read_file

MAX_DEVICES: Final = 1000
"""The most devices of one command."""
_MAX_FAULTS: Final = 20
_CLOSED_BY: Final = {CertificateState.OPEN: ClosedState.OPEN, CertificateState.SILENT: ClosedState.SILENT}
"""State of a certificate -> kind of decision that closes it."""

app = typer.Typer(
    rich_markup_mode=None,
    no_args_is_help=True,
    help="Record decisions about devices that block a bill.",
)

LakeOption = Annotated[
    str,
    typer.Option("--lake", help="A folder, or s3://BUCKET/PREFIX with the AWS variables of the environment."),
]
ByOption = Annotated[str, typer.Option("--by", help="Your name, stored with the decision.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command("close-device")
@cloud_errors_as_messages("decisions")
def close_device(
    *,
    lake: LakeOption,
    device: Annotated[
        list[str] | None, typer.Option("--device", metavar="TENANT/DEVICE", help="The device; may be repeated.")
    ] = None,
    devices: Annotated[
        Path | None, typer.Option("--devices", help=f"A file with one device per line; at most {MAX_DEVICES:,}.")
    ] = None,
    tenant: Annotated[
        str | None, typer.Option("--tenant", help="The tenant of all devices; then give their ids only.")
    ] = None,
    payer: Annotated[str, typer.Option("--payer", help="The account that pays; its time zone sets the days.")],
    period: Annotated[
        str, typer.Option("--period", help="2026, 2026-03, 2026-03-05 or 2026-03-05/2026-03-19; it must have ended.")
    ],
    by: ByOption,
    reason: Annotated[str, typer.Option("--reason", help="Reason, shown on the closing and the invoice.")],
    closes: Annotated[
        ClosedState | None,
        typer.Option(
            "--closes",
            help="What to accept: silent, open (includes silent), or doubts (unreadable or dropped messages, unknown "
            "distance). Default: the device's current state.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Close silent, open or doubtful devices for a period: all of them or none.

    Example: waybill decisions close-device --lake lake --device acme/v7 --payer acme --period 2026-09
    --by "A. Clerk" --reason "the vehicle was sold in August"
    """
    named, asked = _devices(tenant, device or [], devices), BillingPeriod.parse(period, "UTC")
    opened = _opened(lake)
    now = checked_time(opened)
    # no snapshot, which would be kept for ever
    state = newest_state(opened)
    contracts = Contracts(reference_rows(opened, state, "account"))
    days = contracts.period_of(payer, asked.first_day, asked.last_day)
    # certificates before the decision
    bounds, span = contracts.doubt_bounds(payer, days), (days.start, days.end)
    stated = certificates_from(opened, state, named, span, bounds)
    kinds = {one: closes or _to_close(stated[one]) for one in named}
    theirs = contracts.devices_paid_for(payer, days)
    faults = {one: f"{payer!r} does not pay for it in {days}" for one in named if one not in theirs}
    for one, kind in kinds.items():
        if fault := _undecidable(stated[one], kind):
            faults.setdefault(one, fault)
    if faults:
        raise _refused(faults, len(named))
    closed = {one: kind for one, kind in kinds.items() if kind is not None}
    accepts = {one: stated[one].observed.amounts for one, kind in closed.items() if kind is ClosedState.DOUBTS}
    made = decide_each(opened, closed, span, decided_by=by, reason=reason, now=now, accepts=accepts)
    _print(made, as_json=as_json)
    if not as_json:
        _say_closed(certificates_from(opened, newest_state(opened), named, span, bounds), days, kinds)


@app.command("withdraw")
@cloud_errors_as_messages("decisions")
def withdraw_decision(
    number: Annotated[int, typer.Argument(help="The number of the decision.")],
    *,
    lake: LakeOption,
    by: ByOption,
    reason: Annotated[str, typer.Option("--reason", help="Reason for the withdrawal.")],
    as_json: JsonOption = False,
) -> None:
    """Withdraw a decision. Later closings do not use it; the list keeps both.

    Example: waybill decisions withdraw 3 --lake lake --by "A. Clerk" --reason "it was another vehicle"
    """
    opened = _opened(lake)
    _print([withdraw(opened, number, decided_by=by, reason=reason, now=checked_time(opened))], as_json=as_json)


@app.command("list")
@cloud_errors_as_messages("decisions")
def list_decisions(*, lake: LakeOption, as_json: JsonOption = False) -> None:
    """List all decisions, oldest first.

    Example: waybill decisions list --lake lake
    """
    _print(decisions(Lake(Location.of(lake))), as_json=as_json)


def _opened(lake: str) -> Lake:
    opened = Lake(Location.of(lake))
    opened.check("decisions")
    return opened


def _devices(tenant: str | None, given: list[str], file: Path | None) -> list[TenantDevice]:
    """The requested devices, distinct and sorted. Raises BadParameter."""
    try:
        lines = [] if file is None else read_file(file).decode("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise typer.BadParameter(f"{file} cannot be read: {file_fault(error)}") from error
    found = sorted({name for line in (*given, *lines) if (name := line.strip())})
    if not 0 < len(found) <= MAX_DEVICES:
        raise typer.BadParameter(f"{len(found):,} devices: name 1 to {MAX_DEVICES:,} with --device or --devices")
    return sorted(device_of(name) if tenant is None else TenantDevice(tenant, name) for name in found)


def _refused(faults: Mapping[TenantDevice, str], asked: int) -> BadDecision:
    if asked == 1:
        ((device, fault),) = faults.items()
        return BadDecision(device, [fault])
    shown = [f"{one.tenant}/{one.device}: {fault}" for one, fault in [*faults.items()][:_MAX_FAULTS]]
    more = [f"and {len(faults) - len(shown):,} more of {asked:,}"] if len(faults) > len(shown) else []
    return BadDecision(None, [*shown, *more])


def _to_close(stated: DeviceCertificate) -> ClosedState | None:
    """What a decision on this device must close: first what is missing, then doubts."""
    kind = _CLOSED_BY.get(stated.stated_state) if stated.decision is None else None
    return kind or (ClosedState.DOUBTS if stated.doubts else _CLOSED_BY.get(stated.stated_state))


def _undecidable(stated: DeviceCertificate, kind: ClosedState | None) -> str:
    """Why a decision of this kind closes nothing of a device; "" if it does."""
    is_now = stated.stated_state.value
    if kind is ClosedState.DOUBTS:
        return "" if stated.doubts else "it has no doubt to accept: its unreadable messages are within the bounds"
    if kind is None:
        return f"it is {is_now} and needs none"
    return "" if kind.closes(is_now) else f"it is {is_now}, which `--closes {kind.value}` does not close"


def _say_closed(
    found: Mapping[TenantDevice, DeviceCertificate],
    days: BillingPeriod,
    kinds: Mapping[TenantDevice, ClosedState | None],
) -> None:
    span = f"from {stamp(days.start)} to {stamp(days.end)}, {days} in {days.time_zone}"
    for name, one in found.items():
        tenant, device = name
        for remark in one.observed.remarks:
            typer.echo(f"{tenant}/{device}: {remark}.")
        if kinds[name] is ClosedState.DOUBTS:
            word = "are accepted" if one.accepted else "have grown beyond the decision"
            typer.echo(f"the doubts on {tenant}/{device} {word} {span}: {'; '.join(one.doubts)}.")
            continue
        without = "; ".join(one.silence_or_gap) or "its records are complete by now"
        is_closed = one.state is CertificateState.DECIDED
        word = "is closed" if is_closed else f"has become {one.state.value}, which the decision does not close,"
        typer.echo(f"{tenant}/{device} {word} {span}. Without this: {without}.")
        if one.doubts and not one.accepted:
            typer.echo(f"{tenant}/{device} still has doubts, see `--closes doubts`: {'; '.join(one.doubts)}.")


def _print(found: list[Decision], *, as_json: bool) -> None:
    if as_json:
        sys.stdout.write(json.dumps([one.of_device._asdict() | one.document() for one in found], indent=2) + "\n")
        return
    table = FittedTable(
        *(Column("number"), Column.text("what"), Column("device"), Column("from"), Column("until")),
        *(Column.text("by"), Column.text("reason"), Column("decided at")),
    )
    for one in found:
        device = f"{one.tenant}/{one.device}"
        what = f"closes {one.kind.value}" if one.withdraws is None else f"withdraws {one.withdraws}"
        span = stamp(one.since), stamp(one.until)
        texts = (what, device, *span, one.decided_by, one.reason, stamp(one.decided_at))
        table.add(str(one.number), *texts)
    screen(180).print(table)
