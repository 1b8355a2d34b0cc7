"""`cloud-jobs maintain`: merges files, sweeps up, erases positions; once, or run after run until a signal."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Annotated

import typer

from cloud_jobs.command_settings import load_settings
from cloud_jobs.error_messages import cloud_errors_as_messages

if TYPE_CHECKING:
    from cloud_jobs.config import CloudSettings
    from cloud_jobs.lake.tables import Lake
    from cloud_jobs.maintenance.job import MaintenanceRun

__all__ = ["maintain"]

_HEADER = ("table", "files", "bytes", "merges", "orphans", "replaced", "log files", "left")


def maintain(
    config: Annotated[Path, typer.Option("--config", "-c", help="The settings, a TOML file.", show_default=False)],
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was done as JSON, a line for each run.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and change nothing.")] = False,
    erasures: Annotated[
        bool, typer.Option("--erasures", help="Only list what was ever declared erased, and change nothing.")
    ] = False,
    once_each: Annotated[
        bool, typer.Option("--once-each", help="Also look for records that are there twice, and keep each once.")
    ] = False,
    every: Annotated[
        float | None, typer.Option(min=1, max=86_400, help="Run again so many seconds after each end, until a signal.")
    ] = None,
    erase: Annotated[str | None, typer.Option(metavar="DEVICE", help="Erase positions of this device.")] = None,
    tenant: Annotated[str | None, typer.Option(help="The tenant of the device; needed if several have one.")] = None,
    before: Annotated[
        datetime | None,
        typer.Option(formats=["%Y-%m-%d"], help="With --erase: positions before the begin of this day, UTC."),
    ] = None,
) -> None:
    """Merge small files and sort them by device, delete what nobody needs, erase old positions.

    Beside the ingest and the jobs, as often as you like. Exit status: 0; 1 when a part failed, which is named, or when
    an erasure waits for a job; 2 for wrong options; 75 when the store does not answer or has another time; 78 for wrong
    settings. What was left to another run is no failure. With --every only a signal and wrong settings end it.

    Example: cloud-jobs maintain --config cloud.toml --every 60

    Example: cloud-jobs maintain --config cloud.toml --once-each

    Example: cloud-jobs maintain --config cloud.toml --erasures

    Example: cloud-jobs maintain --config cloud.toml --erase van-0012 --tenant acme --before 2026-03-01
    """
    _check_erasure(erase, tenant, before)
    settings = load_settings(config)
    # imported here: `--help` needs none of it
    from cloud_jobs.lake.erasures import Erasure
    from cloud_jobs.maintenance.job import Maintenance
    from cloud_jobs.run_result import log_to_standard_error
    from waybill.daemon.signals import stop_on_signals

    log_to_standard_error()
    if erasures:
        _list_erasures(settings.tables, as_json=as_json)
        return
    asked = [] if before is None else [Erasure(tenant, erase, before.replace(tzinfo=UTC))]
    with cloud_errors_as_messages("cloud-jobs"), stop_on_signals() as stop:
        maintenance = Maintenance(settings.tables, settings.upkeep, stop=stop)

        def run_once() -> MaintenanceRun:
            run = maintenance.run(asked, dry_run=dry_run, once_each=once_each)
            _show(run, as_json=as_json, dry_run=dry_run)
            return run

        if every is not None:
            _follow(settings, run_once, every, stop, dry_run=dry_run)
        elif not run_once().is_whole:
            raise typer.Exit(1)


def _follow(
    settings: CloudSettings, run_once: Callable[[], MaintenanceRun], every_s: float, stop: Event, *, dry_run: bool
) -> None:
    """Runs again and again, and serves what was done to whoever asks."""
    from cloud_jobs.metrics.maintenance_metrics import MaintenanceMetrics
    from cloud_jobs.metrics.run_metrics import RunMetrics
    from cloud_jobs.metrics.serving import served_metrics

    metrics = RunMetrics("maintain", settings.status.max_unmaintained_s)
    counts = MaintenanceMetrics(metrics.registry)

    def measured() -> bool:
        with metrics.run() as one:
            run = run_once()
            if not dry_run:
                counts.take(run)
                one.did({})
            if not run.is_whole:
                one.failed("; ".join(run.all_errors))
        return run.is_whole

    with served_metrics(settings.metrics, "maintain", metrics.registry, metrics.health):
        _repeat(measured, every_s, stop)


def _check_erasure(erase: str | None, tenant: str | None, before: datetime | None) -> None:
    if (erase is None) != (before is None) or (tenant is not None and erase is None):
        raise typer.BadParameter("--erase and --before belong together, and --tenant to them", param_hint="--erase")
    if before is not None and before.replace(tzinfo=UTC) > datetime.now(UTC):
        raise typer.BadParameter("a day in the future: each position to come would be erased", param_hint="--before")


def _list_erasures(lake: Lake, *, as_json: bool) -> None:
    """All that were declared, in their order."""
    with cloud_errors_as_messages("cloud-jobs"):
        rows = sorted(lake.rows("erasures").to_pylist(), key=lambda row: int(row["number"]))
    for row in rows:
        moments = {name: row[name] for name in ("since", "before", "erased_at") if row[name] is not None}
        shown = row | {name: moment.isoformat() for name, moment in moments.items()}
        whose = f"{row['tenant'] or 'any tenant'}/{row['device'] or 'any device'}"
        what = "positions" if row["since"] is None else f"everything from {shown['since']} on, and"
        line = f"{row['number']}  {whose}  {what} before {shown['before']}, declared {shown['erased_at']}"
        typer.echo(json.dumps(shown) if as_json else line)
    if not rows and not as_json:
        typer.echo("nothing was ever declared erased")


def _repeat(once: Callable[[], bool], every_s: float, stop: Event) -> bool:
    """Runs until `stop`; a run that failed, however, is followed by the next one all the same."""
    from cloud_jobs.errors import CloudError, LocationError

    while not stop.is_set():
        try:
            once()
        except LocationError:
            # the settings are wrong, and stay so
            raise
        except CloudError as error:
            typer.echo(f"cloud-jobs: {error}", err=True)
        except Exception as error:  # noqa: BLE001 - whatever one run raises, the lake must not be left alone for it
            typer.echo(f"cloud-jobs: {type(error).__name__}: {error}", err=True)
        # not `sleep`, which a signal would not end
        stop.wait(every_s)
    return True


def _show(run: MaintenanceRun, *, as_json: bool, dry_run: bool) -> None:
    typer.echo(json.dumps(run.document()) if as_json else _table(run, dry_run=dry_run))
    for error in run.all_errors:
        typer.echo(f"cloud-jobs: {error}", err=True)


def _table(run: MaintenanceRun, *, dry_run: bool) -> str:
    """What was done, for a reader."""
    lines: list[tuple[str, ...]] = [_HEADER]
    for one in run.tables:
        numbers = (
            f"{one.files_before} to {one.files}",
            f"{one.bytes_before:,} to {one.bytes:,}",
            *(str(count) for count in (one.merges, one.orphans, one.replaced_files)),
            "not looked at" if one.log_files is None else f"{one.log_files_before} to {one.log_files}",
            str(one.left),
        )
        lines.append((one.table, *numbers))
    widths = [max(len(line[at]) for line in lines) for at in range(len(_HEADER))]
    shown = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]
    erased = f"{run.positions_erased:,} positions and {run.conflicts_erased:,} conflicts with them erased"
    if derived := sum(run.derived_erased.values()):
        erased += f", {derived:,} rows of events, encounters, alerts, verdicts and quarantine erased"
    deleted = (
        f"{run.coverage_files:,} files of the coverage, {run.fence_files:,} of former fences and {run.dead_rows:,} rows"
        " of dead closings deleted"
    )
    shown.append(f"{erased}, {deleted}, in {run.seconds:.1f} s")
    if run.copies_removed is not None:
        shown.append(f"{run.copies_removed:,} copies of records removed{_unsearched(run)}")
    return "\n".join(["nothing is changed; a run would do:", *shown] if dry_run else shown)


def _unsearched(run: MaintenanceRun) -> str:
    files = run.files_not_searched
    return f"; {files:,} files of days that are not sorted yet were not searched" if files else ""
