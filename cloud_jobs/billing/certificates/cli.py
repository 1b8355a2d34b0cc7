"""`waybill decisions`: close what a device does not say, with name and reason, and list what was decided."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from cloud_jobs.billing.certificates.decision import ClosedState, Decision
from cloud_jobs.billing.certificates.decisions import decide, decisions
from cloud_jobs.billing.period import stamp
from cloud_jobs.error_messages import cloud_errors_as_messages
from cloud_jobs.lake.coverage import TenantDevice
from cloud_jobs.lake.location import Location
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
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command("close-device")
@cloud_errors_as_messages("decisions")
def close_device(
    *,
    lake: LakeOption,
    tenant: Annotated[str, typer.Option("--tenant", help="Whose device it is.")],
    device: Annotated[str, typer.Option("--device", help="The device's id.")],
    until: Annotated[str, typer.Option("--until", help="A moment that has come (ISO 8601, UTC if it has no offset).")],
    closes: Annotated[ClosedState, typer.Option("--closes", help="silent, or open, which closes both.")],
    by: Annotated[str, typer.Option("--by", help="The name of who decides.")],
    reason: Annotated[str, typer.Option("--reason", help="Why; it is shown on every bill that rests on it.")],
    as_json: JsonOption = False,
) -> None:
    """Close a silent or open device for all periods that end at a moment or before.

    Example: waybill decisions close-device --lake lake --tenant acme --device v7 --until 2026-10-01
    --closes silent --by "A. Clerk" --reason "the vehicle was sold in August"
    """
    made = decide(
        Lake(Location.of(lake)),
        TenantDevice(tenant, device),
        closes,
        _moment(until),
        decided_by=by,
        reason=reason,
        now=datetime.now(UTC),
    )
    _print([made], as_json=as_json)


@app.command("list")
@cloud_errors_as_messages("decisions")
def list_decisions(*, lake: LakeOption, as_json: JsonOption = False) -> None:
    """List all decisions in the order in which they were made.

    Example: waybill decisions list --lake lake
    """
    _print(decisions(Lake(Location.of(lake))), as_json=as_json)


def _moment(text: str) -> datetime:
    try:
        found = datetime.fromisoformat(text.strip())
    except ValueError as error:
        raise typer.BadParameter(f"{text!r} is no moment; use 2026-10-01 or 2026-10-01T00:00+02:00") from error
    # as everywhere on the command line
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found


def _print(found: list[Decision], *, as_json: bool) -> None:
    if as_json:
        sys.stdout.write(json.dumps([one.of_device._asdict() | one.document() for one in found], indent=2) + "\n")
        return
    table = Table("number", "closes", "device", "until", "by", "reason", "decided at")
    for one in found:
        device = f"{one.tenant}/{one.device}"
        texts = (one.kind.value, device, stamp(one.until), one.decided_by, one.reason, stamp(one.decided_at))
        table.add_row(str(one.number), *(Text(text) for text in texts))
    Console(width=None if sys.stdout.isatty() else 140).print(table)
