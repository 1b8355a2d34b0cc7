"""`waybill reference check`: contracts and fences in files, judged before anybody publishes them."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from cloud_jobs.error_messages import cloud_errors_as_messages
from cloud_jobs.lake.location import Location
from waybill.settings import printable, printable_json

if TYPE_CHECKING:
    from cloud_jobs.billing.contracts.what_if import BillChange, Bills, KnownBill
    from cloud_jobs.lake.tables import Lake

__all__ = ["check"]

MAX_LISTED: Final = 100
"""So many bills are listed for a reader."""
MAX_REASONS: Final = 5
EACH_S: Final = 5.0
"""So often it is said how far a comparison is."""


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
    Named are also devices that nobody pays for any more, meters that become free, versions that are replaced, and every
    bill that would be another one: of last month, and of each period that is posted.

    Exit status: 0 if the files can be published, 1 when they have a fault, 75 when the object store does not answer.

    Example: waybill reference check contracts.toml --lake lake
    """
    from cloud_jobs.errors import ReferenceFileError
    from cloud_jobs.judged_reference import judged_reference
    from cloud_jobs.lake.tables import Lake

    there, progress = None if lake is None else Lake(Location.of(lake)), _Progress()
    try:
        judged = judged_reference(files, there, datetime.now(UTC), None if there is None else _bills(there, progress))
    except ReferenceFileError as error:
        _say(list(error.faults), [], [], Counter(), compared=None, as_json=as_json)
        raise typer.Exit(1) from None
    checked = judged.checked
    # without a lake what is not in the files may be published already
    faults = [*checked.faults, *(checked.lacking if there else [])]
    warnings = [*checked.notices, *([] if there else (f"not in these files: {one}" for one in checked.lacking))]
    compared = None if there is None else progress.whole
    _say(faults, warnings, checked.changes, judged.counts, compared=compared, as_json=as_json)
    if faults:
        raise typer.Exit(1)


def _bills(lake: Lake, progress: _Progress) -> Bills:
    # rating is imported where something is rated
    from cloud_jobs.bills_of_usage import LakeBills

    return LakeBills(lake, progress)


class _Progress:
    """Says on standard error how far a long comparison is. `whole`: of how many bills."""

    def __init__(self) -> None:
        self._said = time.monotonic()
        self.whole = 0

    def __call__(self, done: int, whole: int) -> None:
        self.whole = whole
        if time.monotonic() - self._said > EACH_S:
            self._said = time.monotonic()
            typer.echo(f"compared {done:,} of {whole:,} bills", err=True)


def _say(
    faults: list[str],
    warnings: list[str],
    changes: Sequence[BillChange],
    counts: Counter[Any],
    *,
    compared: int | None,
    as_json: bool,
) -> None:
    """`compared`: how many bills; None: there was no lake to hold the files against."""
    from cloud_jobs.reference_files import counts_text

    if as_json:
        bills = [_change(one) for one in changes]
        made: dict[str, Any] = {
            "faults": faults,
            "warnings": warnings,
            "versions": dict(sorted(counts.items())),
            "bills": bills,
        }
        made |= {"bills_compared": compared}
        sys.stdout.write(printable_json(made, indent=2) + "\n")
        return
    for fault in faults:
        typer.echo(printable(fault), err=True)
    for warning in warnings:
        typer.echo(printable(f"warning: {warning}"), err=True)
    if faults:
        typer.echo(f"{len(faults)} fault{'' if len(faults) == 1 else 's'}; nothing can be published", err=True)
        return
    alone = " by themselves, not held against a lake" if compared is None else ""
    typer.echo(f"right{alone}: {counts_text(counts) or 'the files hold no version'}")
    if compared is not None and not changes:
        typer.echo(f"no bill changes ({compared:,} looked at)")
    for change in changes[:MAX_LISTED]:
        posted = ", posted" if change.is_posted else ""
        typer.echo(printable(f"{change.payer} {change.period}{posted}: {_change_text(change.before, change.after)}"))
    if len(changes) > MAX_LISTED:
        typer.echo(f"and {len(changes) - MAX_LISTED:,} more, which --json names")


def _change(change: BillChange) -> dict[str, Any]:
    return {
        "payer": change.payer,
        "period": str(change.period),
        "time_zone": change.period.time_zone,
        "posted": change.is_posted,
        "before": _owed_json(change.before),
        "after": _owed_json(change.after),
    }


def _owed_json(bill: KnownBill) -> dict[str, Any]:
    net, tax = bill.owed or (None, None)
    return {
        "currency": bill.currency,
        "net_minor": net,
        "tax_minor": tax,
        "pays": bill.pays,
        "blocked": list(bill.reasons),
    }


def _change_text(before: KnownBill, after: KnownBill) -> str:
    shown = f"{_text_of(before)} -> {_text_of(after)}"
    was, would_be = before.owed, after.owed
    if was is None or would_be is None or was.net_minor != would_be.net_minor or before.currency != after.currency:
        return shown
    return f"{shown}, tax {_amount(was.tax_minor, before)} -> {_amount(would_be.tax_minor, after)}"


def _text_of(bill: KnownBill) -> str:
    if bill.owed is not None:
        return _amount(bill.owed.net_minor, bill)
    rest = [f"and {len(bill.reasons) - MAX_REASONS} more reasons"] if len(bill.reasons) > MAX_REASONS else []
    why = "; ".join([*bill.reasons[:MAX_REASONS], *rest])
    return f"{'blocked' if bill.pays else 'no payer'} ({why})"


def _amount(minor: int, bill: KnownBill) -> str:
    from cloud_jobs.billing.currency import amount_text

    assert bill.currency is not None
    return f"{amount_text(minor, bill.currency)} {bill.currency}"
