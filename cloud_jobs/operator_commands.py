"""The commands that start no Spark of their own: close, verdicts, maintain, subject and status."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from cloud_jobs.commands import Config, load_settings, registered_job, settings_refused
from cloud_jobs.lake.coverage import TenantDevice
from cloud_jobs.terminal import Column, FittedTable, cloud_errors_as_messages, device_of, screen
from waybill.settings import SettingsError, printable_json

if TYPE_CHECKING:
    from cloud_jobs.config import CloudSettings
    from cloud_jobs.lake.erasures import Erasure
    from cloud_jobs.maintenance.job import MaintenanceRun


# `cloud-jobs close`: the closing of a period as one Spark job over all payers.


def close(
    config: Config,
    *,
    period: Annotated[
        str, typer.Option("--period", help="2026-03, 2026-03-05 or FIRST/LAST, in the payers' time zones.")
    ],
    payer: Annotated[
        list[str] | None, typer.Option("--payer", metavar="ID", help="Only this payer; may be repeated.")
    ] = None,
    snapshot: Annotated[str | None, typer.Option("--snapshot", help="Use this snapshot instead of a new one.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print each closing as a line of JSON.")] = False,
) -> None:
    """Compute what all payers owe for a period, and whether it is final. `waybill bill issue` creates the invoices.

    Exit status: 0 all closings are final; 3 some closings are not final; 1 when the job failed (with a message); 2 for
    wrong options; 75 when the store does not answer; 78 for wrong settings.

    Example: cloud-jobs close --config cloud.toml --period 2026-03
    """
    settings = load_settings(config)
    # imported here: `--help` needs none of it
    from cloud_jobs.billing.register.close import unbilled_text
    from cloud_jobs.billing.register.closing import ClosingState
    from cloud_jobs.billing.register.commands import NOT_ALL, advice_while_running, days_of, payer_id
    from cloud_jobs.billing.register.terminal import closing_values, closings_table
    from cloud_jobs.jobs import run_close
    from cloud_jobs.run_result import log_to_standard_error
    from cloud_jobs.terminal import screen

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
    if advice := advice_while_running(closings, datetime.now(UTC), "--lake", str(settings.lake), "--period", period):
        typer.echo(f"cloud-jobs: {advice}", err=True)
    if any(one.outcome is not ClosingState.FINAL for one in closings):
        raise typer.Exit(NOT_ALL)


# `cloud-jobs verdicts`.


def verdicts(
    config: Config,
    *,
    follow: Annotated[bool, typer.Option("--follow", help="Run until SIGTERM or SIGINT.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON line for each run.")] = False,
) -> None:
    """Compare each region's alerts with the computed events and publish a verdict for each.

    Report events without an alert as late. An alert is confirmed, corrected or withdrawn once `cloud-jobs geofence` has
    processed its record. The command does not use Spark.

    Exit status: 0 done, or ended by a signal; 1 when it failed (with a message); 2 for wrong options; 75 when the
    object store of the lake does not answer; 78 for wrong settings.

    Example: cloud-jobs verdicts --config cloud.toml --follow
    """
    from cloud_jobs.verdicts.run import run_verdicts

    with cloud_errors_as_messages("cloud-jobs"):
        settings = load_settings(config)
        if without_alerts := settings.regions_without_alerts:
            said = f"name the topics of alerts: none follows from {', '.join(without_alerts)} of ingest.topics"
            raise settings_refused(SettingsError(str(config), [f"verdicts.alerts: {said}"]))
        with registered_job(config, f"verdicts{' --follow' if follow else ''}", settings, serves=follow):
            run_verdicts(settings, _print_counts(as_json=as_json, follow=follow), follow=follow)


def _print_counts(*, as_json: bool, follow: bool) -> Callable[[dict[str, Any]], None]:
    def show(counts: dict[str, Any]) -> None:
        if as_json:
            typer.echo(json.dumps({"job": "verdicts", **counts}))
        elif not follow:  # a run that is followed by others is in the log
            table = FittedTable(Column("what"), Column.number("count"), title="cloud-jobs verdicts")
            for name, count in counts.items():
                table.add(name.replace("_", " "), str(count))
            screen().print(table)

    return show


# `cloud-jobs maintain`.


def maintain(
    config: Config,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON line for each run.")] = False,
    erasures: Annotated[bool, typer.Option("--erasures", help="Only list all declared erasures, as JSON.")] = False,
    every: Annotated[
        float | None, typer.Option(min=1, max=86_400, help="Run again N seconds after each run, until a signal.")
    ] = None,
) -> None:
    """Compact files, delete unused files, and apply the retention.

    It may run at any time, together with the ingest and the jobs. With --every, only a signal or wrong settings end it.

    Exit status: 0; 1 when a part failed (with a message); 2 for wrong options; 75 when the store does not answer or its
    clock differs; 78 for wrong settings. Work left to another run is not a failure.

    Example: cloud-jobs maintain --config cloud.toml --every 60
    """
    settings = load_settings(config)
    # imported here: `--help` needs none of it
    from cloud_jobs.maintenance.job import Maintenance
    from cloud_jobs.run_metrics import MaintenanceMetrics, RunMetrics, served_metrics
    from cloud_jobs.run_result import log_to_standard_error
    from waybill.daemon.signals import stop_on_signals

    log_to_standard_error()
    with cloud_errors_as_messages("cloud-jobs"), stop_on_signals() as stop:
        if erasures:
            for row in sorted(settings.tables.rows("erasures").to_pylist(), key=lambda row: int(row["number"])):
                typer.echo(json.dumps(row, default=datetime.isoformat))
            return
        maintenance = Maintenance(settings.tables, settings.upkeep, stop=stop)
        metrics = RunMetrics("maintain", settings.status.max_unmaintained_s)
        counts = MaintenanceMetrics(metrics.registry)

        def run_once() -> MaintenanceRun:
            with metrics.run() as measured:
                run = maintenance.run()
                counts.on_run(run, measured)
            _show(run, as_json=as_json)
            return run

        if every is None:
            if run_once().all_errors:
                raise typer.Exit(1)
            return
        served = served_metrics(settings.metrics, "maintain", metrics.registry, metrics.health)
        with registered_job(config, f"maintain --every {every:g}", settings), served:
            repeat_until(stop, run_once, every)


def repeat_until(
    stop: Event, once: Callable[[], object], every_s: float, failed: Callable[[str], object] = lambda _: None
) -> None:
    """Runs again and again until `stop` is set, also after a run that raised. Raises LocationError."""
    from cloud_jobs.errors import CloudError, LocationError
    from cloud_jobs.run_result import run_repeatedly

    def report(error: Exception) -> None:
        if isinstance(error, LocationError):
            # the settings are wrong, and stay so
            raise error
        text = str(error) if isinstance(error, CloudError) else f"{type(error).__name__}: {error}"
        failed(text)
        typer.echo(f"cloud-jobs: {text}", err=True)

    run_repeatedly(once, interval_s=every_s, on_error=report, stop=stop, survives=(Exception,))


def _show(run: MaintenanceRun, *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(asdict(run)))
    else:
        names = ("files", "merges", "orphans", "replaced", "log files", "left")
        table = FittedTable(Column("table"), *map(Column.number, names))
        for one in run.tables:
            numbers = (one.files, one.merges, one.orphans, one.replaced_files)
            log_files = "" if one.log_files is None else f"{one.log_files:,}"
            table.add(one.table, *(f"{number:,}" for number in numbers), log_files, str(one.left))
        screen().print(table)
        erased = ", ".join(f"{count:,} of {name}" for name, count in run.erased.items() if count) or "none"
        deleted = f"{run.coverage_files:,} coverage files and {run.fence_files:,} fence files deleted"
        typer.echo(f"rows erased: {erased}; {deleted}; {run.seconds:.1f} s")
    for error in run.all_errors:
        typer.echo(f"cloud-jobs: {error}", err=True)


# `cloud-jobs subject`.

app = typer.Typer(help="Export or erase the data of a device and a period, for a data subject.", no_args_is_help=True)
Device = Annotated[str, typer.Argument(metavar="TENANT/DEVICE", help="The device.")]
From = Annotated[datetime, typer.Option("--from", formats=["%Y-%m-%d"], help="The first day (UTC).")]
Until = Annotated[datetime, typer.Option(formats=["%Y-%m-%d"], help="End of the period (UTC), exclusive.")]


@app.command()
def export(
    device: Device,
    *,
    config: Config,
    first: From,
    until: Until,
    to: Annotated[Path, typer.Option(help="A folder that is new or empty.", show_default=False)],
) -> None:
    """Export records, events, encounters, alerts, verdicts, usage and quarantine of a device to a folder.

    Exit status: 0; 1 if the folder is not empty, or the access log or the lake cannot be used; 2 for wrong options; 78
    for wrong settings.

    Example: cloud-jobs subject export acme/van-0012 -c cloud.toml --from 2026-03-01 --until 2026-04-01 --to export
    """
    from cloud_jobs.maintenance.erasing import export_subject

    settings = load_settings(config)
    with _errors_as_messages():
        asked = _request(settings, device, first, until)
        _log_access(settings, "cloud-jobs subject export", asked)
        made = export_subject(settings.tables, asked, to, datetime.now(UTC))
    typer.echo(json.dumps(made, indent=2, sort_keys=True))


@app.command()
def erase(
    device: Device,
    *,
    config: Config,
    first: From,
    until: Until,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Count the rows to erase; change nothing.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for the device's name.")] = False,
) -> None:
    """Erase all records and derived rows of a device and a period. Usage and bills keep their figures.

    The command says "erased" only when no file on disk contains them; until then, run it again.

    Exit status: 0 erased; 1 when it failed (with a message); 2 for wrong options; 3 erased for readers, but files
    remain; 78 for wrong settings.

    Example: cloud-jobs subject erase acme/van-0012 -c cloud.toml --from 2026-03-01 --until 2026-04-01 --dry-run
    """
    from cloud_jobs.errors import LakeError
    from cloud_jobs.job_settings import RETENTIONS
    from cloud_jobs.maintenance.erasing import KEPT_FOR_BILLS, NOT_COVERED, count_rows, remaining_files
    from cloud_jobs.maintenance.job import Maintenance
    from cloud_jobs.run_result import log_to_standard_error

    log_to_standard_error()
    settings = load_settings(config)
    with _errors_as_messages():
        asked, lake = _request(settings, device, first, until), settings.tables
        counts = count_rows(lake, asked)
        for table, count in counts.items():
            typer.echo(f"{table}: {count:,} rows{' stay, because bills depend on them' if table == 'usage' else ''}")
        typer.echo(f"records from before {until:%Y-%m-%d} that {device} still stores will not be billed")
        if dry_run:
            return
        if not yes:
            if not sys.stdin.isatty():
                raise LakeError("nothing is erased: standard input is not a terminal, so add --yes")
            if typer.prompt(f"type {device} to erase them permanently") != device:
                raise LakeError("nothing is erased: that is not the device's name")
        # what is too old of other devices waits for `cloud-jobs maintain`: the counts above do not have it
        upkeep = settings.upkeep.model_copy(update=dict.fromkeys(RETENTIONS))
        run = Maintenance(lake, upkeep).run([asked])
        if run.all_errors:
            raise LakeError(f"{'; '.join(run.all_errors)}. Run this again, also if another run was at work")
        counts = count_rows(lake, asked)
        if left := sum(count for table, count in counts.items() if table != "usage"):
            raise LakeError(f"{left:,} rows are left, because another run wrote meanwhile; run this again")
        remaining = remaining_files(lake, asked)
    for one in (KEPT_FOR_BILLS, *NOT_COVERED):
        typer.echo(f"not covered: {one}")
    if not remaining:
        typer.echo(f"{device}: erased")
        return
    # what no commit names may be of an attempt that goes on
    kept = timedelta(hours=settings.upkeep.removed_files_kept_hours, seconds=settings.upkeep.orphan_age_s)
    at = datetime.now(UTC) + kept
    typer.echo(
        f"{device}: unreadable from now on; {len(remaining)} replaced files are removed by `cloud-jobs maintain` from"
        f" {at:%Y-%m-%dT%H:%MZ} on: run this again then"
    )
    raise typer.Exit(3)


@contextmanager
def _errors_as_messages() -> Iterator[None]:
    from cloud_jobs.errors import LakeError

    with cloud_errors_as_messages("cloud-jobs"):
        try:
            yield
        except OSError as error:
            raise LakeError(str(error)) from error


def _request(settings: CloudSettings, device: str, first: datetime, until: datetime) -> Erasure:
    """The request, for a device that the lake knows. Raises LakeError, BadParameter."""
    from cloud_jobs.lake.erasures import Erasure
    from cloud_jobs.maintenance.job import with_known_device

    since, before = first.replace(tzinfo=UTC), until.replace(tzinfo=UTC)
    if not since < before <= datetime.now(UTC):
        raise typer.BadParameter("--from is before --until, and --until is not in the future", param_hint="--until")
    whose = device_of(device)
    return with_known_device(settings.tables, Erasure(whose.tenant, whose.device, before, since))


def _log_access(settings: CloudSettings, command: str, asked: Erasure) -> None:
    from cloud_jobs.maintenance.erasing import log_access

    whose = TenantDevice(str(asked.tenant), str(asked.device))
    log = settings.privacy.access_log
    log_access(settings.location, log, command, whose, since=asked.since, until=asked.before)


_WIDTH: Final = 140
_SERVED_EVERY_S: Final = 60.0
_STALE_LOOKS: Final = 3
"""After so many missed refreshes the metrics report that the state is unknown."""


def status(
    config: Config,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON line each time.")] = False,
    every: Annotated[
        float | None,
        typer.Option(min=1, max=86_400, help="Refresh every N seconds until interrupted."),
    ] = None,
    serve: Annotated[
        bool,
        typer.Option("--serve", help="Print nothing; serve metrics at metrics.status_port, every 60 s or --every."),
    ] = False,
) -> None:
    """Show the centre's tables, the delay of its jobs, the backlog in Pulsar, and problems.

    The command does not read records or start Spark. With --every and --serve it ends with 0 at a signal.

    Exit status: 0 healthy; 1 when a limit of the settings `[status]` is exceeded or a value is unknown; 75 when the
    object store of the lake does not answer; 78 for wrong settings.

    Example: cloud-jobs status --config cloud.toml

    Example: cloud-jobs status --config cloud.toml --json --every 60

    Example: cloud-jobs status --config cloud.toml --serve
    """
    settings = load_settings(config)
    from cloud_jobs.run_result import log_to_standard_error
    from cloud_jobs.status.centre_reader import CentreReader
    from cloud_jobs.status.facts import status_tables
    from waybill.daemon.signals import stop_on_signals

    log_to_standard_error()
    if serve:
        _serve(settings, every or _SERVED_EVERY_S)
        return
    with cloud_errors_as_messages("cloud-jobs"):
        reader = CentreReader(settings)

        def look() -> bool:
            found, wrong = reader.look()
            if as_json:
                document = {"healthy": not wrong, "problems": wrong} | found.document()
                sys.stdout.write(printable_json(document) + "\n")
                sys.stdout.flush()
            else:
                screen(_WIDTH).print(status_tables(found, wrong))
            return not wrong

        if every is not None:
            with stop_on_signals() as stop:
                repeat_until(stop, look, every)
        elif not look():
            raise typer.Exit(1)


def _serve(settings: CloudSettings, every_s: float) -> None:
    """Serves the state of the centre as metrics, until a signal."""
    from cloud_jobs.run_metrics import metric_routes
    from cloud_jobs.status.centre_metrics import CentreCollector
    from cloud_jobs.status.centre_reader import CentreReader
    from waybill.daemon.signals import stop_on_signals
    from waybill.daemon.status_server import StatusServer

    host, port = settings.metrics.host, settings.metrics.status_port
    if port is None:
        typer.echo("cloud-jobs: --serve needs a port: set metrics.status_port", err=True)
        raise typer.Exit(os.EX_CONFIG)
    collector = CentreCollector(_STALE_LOOKS * every_s)
    try:
        server = StatusServer(host, port, metric_routes(collector.registry(), collector.health))
    except OSError as error:
        typer.echo(
            f"cloud-jobs: {host}:{port} cannot be served: {error.strerror}; change metrics.status_port", err=True
        )
        raise typer.Exit(1) from error
    with server, cloud_errors_as_messages("cloud-jobs"), stop_on_signals() as stop:
        reader = CentreReader(settings)
        repeat_until(stop, lambda: collector.looked(*reader.look()), every_s, collector.failed)
