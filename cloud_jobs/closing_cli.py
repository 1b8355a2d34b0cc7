"""`cloud-jobs close`: the closing of a period as one Spark job over all payers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from cloud_jobs.command_settings import load_settings
from cloud_jobs.error_messages import cloud_errors_as_messages

__all__ = ["close"]


def close(
    config: Annotated[Path, typer.Option("--config", "-c", help="The settings, a TOML file.", show_default=False)],
    *,
    period: Annotated[str, typer.Option("--period", help="2026-03, 2026-03-05 or FIRST/LAST, by the payers' clocks.")],
    payer: Annotated[
        list[str] | None, typer.Option("--payer", metavar="ID", help="This payer alone; again for more.")
    ] = None,
    snapshot: Annotated[
        str | None, typer.Option("--snapshot", help="By what was known then; by what is known now if not given.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print each closing as a line of JSON.")] = False,
) -> None:
    """Compute what all payers owe for a period, and whether that is final. `waybill bill issue` numbers it.

    Exit status: 0 when all is final; 3 when the period is closed and some of it is not final; 1 when it went wrong, a
    line says how; 2 for wrong options; 75 when the store does not answer; 78 for wrong settings.

    Example: cloud-jobs close --config cloud.toml --period 2026-03
    """
    settings = load_settings(config)
    # imported here: `--help` needs none of it
    from cloud_jobs.billing.register.close import unbilled_text
    from cloud_jobs.billing.register.closing import ClosingState
    from cloud_jobs.billing.register.commands import NOT_ALL, days_of, payer_id
    from cloud_jobs.billing.register.terminal import closing_values, closings_table
    from cloud_jobs.closing_job import run_close
    from cloud_jobs.fitted_table import screen
    from cloud_jobs.lake.coverage import TenantDevice
    from cloud_jobs.run_result import log_to_standard_error

    log_to_standard_error()
    payers = None if payer is None else [payer_id(one) for one in payer]
    with cloud_errors_as_messages("cloud-jobs"):
        unbilled = list[TenantDevice]()
        closings = run_close(settings, days_of(period), payers, snapshot, unbilled=unbilled.extend)
    if as_json:
        for one in closings:
            typer.echo(json.dumps(closing_values(one), sort_keys=True))
    else:
        screen().print(closings_table(closings))
    if unbilled:
        typer.echo(f"cloud-jobs: {unbilled_text(unbilled)}", err=True)
    if any(one.outcome is not ClosingState.FINAL for one in closings):
        raise typer.Exit(NOT_ALL)
