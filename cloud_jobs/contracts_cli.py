"""`waybill reference`: contracts and fences in files, checked before anybody publishes them."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cloud_jobs.error_messages import cloud_errors_as_messages
from cloud_jobs.lake.location import Location

if TYPE_CHECKING:
    from cloud_jobs.billing.contracts.what_if import BillChange, KnownBill

__all__ = ["app"]

app = typer.Typer(
    rich_markup_mode=None, no_args_is_help=True, help="Check contracts and fences before publishing them."
)


@app.callback()
def _reference() -> None:
    """Check contracts and fences before publishing them."""


@app.command()
@cloud_errors_as_messages("waybill reference")
def check(
    files: Annotated[list[Path], typer.Argument(help="TOML of contracts, GeoJSON of fences, or folders of them.")],
    *,
    lake: Annotated[
        str | None,
        typer.Option(
            "--lake", help="Check against what is published, as this lake has it: a folder, or s3://BUCKET/PREFIX."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Say what is wrong with files, each fault with its file, line and reason, and what publishing them would change.

    With --lake the files are judged beside what is published: a device that would be in two accounts, an account that
    nobody would pay for, a tariff or a price's zone that is nowhere, a currency that changes in the midst of a month.
    Named are also devices that nobody pays for any more, versions that are replaced, and every payer whose last month
    would be billed otherwise.

    Exit status: 0 if the files can be published, 1 when they have a fault, 75 when the object store does not answer.

    Example: waybill reference check contracts.toml --lake lake
    """
    from cloud_jobs.errors import ReferenceFileError
    from cloud_jobs.judged_reference import judged_reference
    from cloud_jobs.lake.tables import Lake

    there = None if lake is None else Lake(Location.of(lake))
    try:
        judged = judged_reference(files, there, datetime.now(UTC), with_bills=there is not None)
    except ReferenceFileError as error:
        _say(list(error.faults), [], [], Counter(), as_json=as_json)
        raise typer.Exit(1) from None
    checked = judged.checked
    # without a lake what is not in the files may be published already
    faults = [*checked.faults, *(checked.lacking if there else [])]
    warnings = [*checked.notices, *([] if there else (f"not in these files: {one}" for one in checked.lacking))]
    _say(faults, warnings, checked.changes, judged.counts, as_json=as_json)
    if faults:
        raise typer.Exit(1)


def _say(
    faults: list[str],
    warnings: list[str],
    changes: Sequence[BillChange],
    counts: Counter[Any],
    *,
    as_json: bool,
) -> None:
    from cloud_jobs.reference_files import counts_text

    if as_json:
        bills = [_change(one) for one in changes]
        made = {"faults": faults, "warnings": warnings, "versions": dict(sorted(counts.items())), "bills": bills}
        sys.stdout.write(json.dumps(made, indent=2, ensure_ascii=False) + "\n")
        return
    for fault in faults:
        typer.echo(fault, err=True)
    for warning in warnings:
        typer.echo(f"warning: {warning}", err=True)
    if faults:
        typer.echo(f"{len(faults)} fault{'' if len(faults) == 1 else 's'}; nothing can be published", err=True)
        return
    typer.echo(f"right: {counts_text(counts) or 'the files hold no version'}")
    for change in changes:
        typer.echo(f"{change.payer} {change.period}: {_owed(change.before)} -> {_owed(change.after)}")


def _change(change: BillChange) -> dict[str, Any]:
    return {
        "payer": change.payer,
        "period": str(change.period),
        "time_zone": change.period.time_zone,
        "before": _owed_json(change.before),
        "after": _owed_json(change.after),
    }


def _owed_json(owed: KnownBill) -> dict[str, Any]:
    currency = owed.contract.payer.currency if owed.contract else None
    return {"currency": currency, "net_minor": owed.amount_minor, "blocked": list(owed.reasons)}


def _owed(owed: KnownBill) -> str:
    from cloud_jobs.billing.currency import amount_text

    if owed.contract is None:
        return f"blocked ({'; '.join(owed.reasons)})"
    currency = owed.contract.payer.currency
    if owed.amount_minor is None:
        tariffs = sorted({span.tariff.id for one in owed.contract.accounts for span in one.spans})
        devices = len(owed.contract.devices)
        return f"{len(owed.contract.accounts)} accounts, {devices} devices, tariffs {', '.join(tariffs) or 'none'}"
    return f"{amount_text(owed.amount_minor, currency)} {currency}"
