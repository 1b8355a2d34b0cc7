"""`waybill decisions`: close what a device does not say, with name and reason, and list what was decided."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

from cloud_jobs.billing.billing_period import BillingPeriod
from cloud_jobs.billing.certificates.certificate import CertificateState, DeviceCertificate
from cloud_jobs.billing.certificates.decision import ClosedState, Decision
from cloud_jobs.billing.certificates.decisions import decide, decisions, withdraw
from cloud_jobs.billing.certificates.errors import BadDecision
from cloud_jobs.billing.certificates.reader import certificates_from
from cloud_jobs.billing.contracts import Contracts
from cloud_jobs.billing.utc_stamp import stamp
from cloud_jobs.error_messages import cloud_errors_as_messages
from cloud_jobs.fitted_table import Column, FittedTable, screen
from cloud_jobs.lake.coverage import TenantDevice
from cloud_jobs.lake.location import Location
from cloud_jobs.lake.snapshot_reads import reference_rows
from cloud_jobs.lake.snapshots import LakeState, take_snapshot
from cloud_jobs.lake.store_clock import checked_time
from cloud_jobs.lake.tables import Lake

app = typer.Typer(
    rich_markup_mode=None,
    no_args_is_help=True,
    help="What people decided where devices do not say it.",
)

LakeOption = Annotated[
    str,
    typer.Option("--lake", help="A folder, or s3://BUCKET/PREFIX reached as AWS's variables in the environment say."),
]
ByOption = Annotated[str, typer.Option("--by", help="The name of who decides.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command("close-device")
@cloud_errors_as_messages("decisions")
def close_device(
    *,
    lake: LakeOption,
    tenant: Annotated[str, typer.Option("--tenant", help="Whose device it is.")],
    device: Annotated[str, typer.Option("--device", help="The device's id.")],
    payer: Annotated[str, typer.Option("--payer", help="Who pays for it: the days are by this account's clocks.")],
    period: Annotated[
        str, typer.Option("--period", help="2026, 2026-03, 2026-03-05 or 2026-03-05/2026-03-19: it has to be over.")
    ],
    by: ByOption,
    reason: Annotated[
        str, typer.Option("--reason", help="Why; it stands on the closing, and on the invoice as a page or as JSON.")
    ],
    closes: Annotated[
        ClosedState | None,
        typer.Option("--closes", help="silent, or open, which closes both; what the device is now, if not given."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Close a silent or open device for a period, and for shorter ones within it; for no other time.

    Example: waybill decisions close-device --lake lake --tenant acme --device v7 --payer acme --period 2026-09
    --by "A. Clerk" --reason "the vehicle was sold in August"
    """
    opened, of = _opened(lake), TenantDevice(tenant, device)
    now = checked_time(opened)
    snapshot = take_snapshot(opened, now)
    days = _days(opened, snapshot, payer, period)
    # what there is to decide, before anything is
    stated = certificates_from(opened, snapshot, [of], days)[of]
    kind = closes or _closed_state(stated)
    if not kind.closes(stated.stated_state.value):
        raise BadDecision(of, [f"it is {stated.stated_state.value}, which `--closes {kind.value}` does not close"])
    made = decide(opened, of, kind, (days.start, days.end), decided_by=by, reason=reason, now=now)
    _print([made], as_json=as_json)
    if not as_json:
        span = f"from {stamp(days.start)} to {stamp(days.end)}, {days} in {days.time_zone}"
        typer.echo(f"{tenant}/{device} is closed {span}. Without this: {'; '.join(stated.silence_or_gap)}.")


@app.command("withdraw")
@cloud_errors_as_messages("decisions")
def withdraw_decision(
    number: Annotated[int, typer.Argument(help="The number of the decision.")],
    *,
    lake: LakeOption,
    by: ByOption,
    reason: Annotated[str, typer.Option("--reason", help="Why it does not hold any more.")],
    as_json: JsonOption = False,
) -> None:
    """Take a decision back: what is closed from now on does not rest on it. Both stay in the list.

    Example: waybill decisions withdraw 3 --lake lake --by "A. Clerk" --reason "it was another vehicle"
    """
    opened = _opened(lake)
    _print([withdraw(opened, number, decided_by=by, reason=reason, now=checked_time(opened))], as_json=as_json)


@app.command("list")
@cloud_errors_as_messages("decisions")
def list_decisions(*, lake: LakeOption, as_json: JsonOption = False) -> None:
    """List all decisions in the order in which they were made.

    Example: waybill decisions list --lake lake
    """
    _print(decisions(Lake(Location.of(lake))), as_json=as_json)


def _opened(lake: str) -> Lake:
    opened = Lake(Location.of(lake))
    opened.check("decisions")
    return opened


def _days(lake: Lake, snapshot: LakeState, payer: str, text: str) -> BillingPeriod:
    """The period by the clocks of who pays."""
    asked = BillingPeriod.parse(text, "UTC")
    # the payer's own publications say its clocks
    accounts = Contracts(reference_rows(lake, snapshot, "account", [payer]))
    return accounts.period_of(payer, asked.first_day, asked.last_day)


def _closed_state(stated: DeviceCertificate) -> ClosedState:
    """What a decision has to close."""
    if stated.stated_state is CertificateState.OPEN:
        return ClosedState.OPEN
    if stated.stated_state is CertificateState.SILENT:
        return ClosedState.SILENT
    raise BadDecision(stated.of_device, [f"it is {stated.stated_state.value}: nothing has to be decided"])


def _print(found: list[Decision], *, as_json: bool) -> None:
    if as_json:
        sys.stdout.write(json.dumps([one.of_device._asdict() | one.document() for one in found], indent=2) + "\n")
        return
    table = FittedTable(
        *(Column("number"), Column.text("what"), Column("device"), Column("from", lesser=2), Column("until")),
        *(Column.text("by", 1), Column.text("reason", 3), Column("decided at", lesser=4)),
    )
    for one in found:
        device = f"{one.tenant}/{one.device}"
        what = f"closes {one.kind.value}" if one.withdraws is None else f"withdraws {one.withdraws}"
        span = stamp(one.since), stamp(one.until)
        texts = (what, device, *span, one.decided_by, one.reason, stamp(one.decided_at))
        table.add(str(one.number), *texts)
    screen(180).print(table)
