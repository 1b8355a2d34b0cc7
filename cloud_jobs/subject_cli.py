"""`cloud-jobs subject`: what the lake has of a device and a time, exported or erased at a data subject's request."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cloud_jobs.command_settings import load_settings
from cloud_jobs.device_option import device_of
from cloud_jobs.error_messages import cloud_errors_as_messages

if TYPE_CHECKING:
    from cloud_jobs.config import CloudSettings
    from cloud_jobs.lake.erasures import Erasure

__all__ = ["app"]

app = typer.Typer(
    help="Export or erase what the lake has of a device and a time, for a data subject.", no_args_is_help=True
)
Config = Annotated[Path, typer.Option("--config", "-c", help="The settings, a TOML file.", show_default=False)]
Device = Annotated[str, typer.Argument(metavar="TENANT/DEVICE", help="The device.")]
From = Annotated[datetime, typer.Option("--from", formats=["%Y-%m-%d"], help="The first day (UTC).")]
Until = Annotated[datetime, typer.Option(formats=["%Y-%m-%d"], help="The first day (UTC) that is not meant any more.")]


@app.command()
def export(
    device: Device,
    *,
    config: Config,
    first: From,
    until: Until,
    to: Annotated[Path, typer.Option(help="A folder that is new or empty.", show_default=False)],
) -> None:
    """Write records, track, events, encounters, alerts, verdicts, usage and quarantine of a device into a folder.

    Exit status: 0; 1 if the folder is not empty, the reading cannot be logged, or the lake cannot be read; 2 for wrong
    options; 78 for wrong settings.

    Example: cloud-jobs subject export acme/van-0012 -c cloud.toml --from 2026-03-01 --until 2026-04-01 --to export
    """
    from cloud_jobs.maintenance.personal import export_subject

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
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Count what would be erased, and change nothing.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for the device's name.")] = False,
) -> None:
    """Erase all records and derived rows of a device and a time. Usage and bills keep their figures.

    It says "erased" only when no file on the disk holds them any more; until then run it again. Exit status: 0 erased;
    1 if something failed, a line says what; 2 for wrong options; 3 erased for readers, and files are still there;
    78 for wrong settings.

    Example: cloud-jobs subject erase acme/van-0012 -c cloud.toml --from 2026-03-01 --until 2026-04-01 --dry-run
    """
    from cloud_jobs.errors import LakeError
    from cloud_jobs.maintenance.config import RETENTIONS
    from cloud_jobs.maintenance.job import Maintenance
    from cloud_jobs.maintenance.personal import KEPT_FOR_BILLS, NOT_COVERED, count_rows, remaining_files
    from cloud_jobs.run_result import log_to_standard_error

    log_to_standard_error()
    settings = load_settings(config)
    with _errors_as_messages():
        asked, lake = _request(settings, device, first, until), settings.tables
        counts = count_rows(lake, asked)
        for table, count in counts.items():
            typer.echo(f"{table}: {count:,} rows{' stay, as bills rest on them' if table == 'usage' else ''}")
        typer.echo(f"records of before {until:%Y-%m-%d} that {device} still holds will be on no bill")
        if dry_run:
            return
        if not yes:
            if not sys.stdin.isatty():
                raise LakeError("nothing is erased: standard input is no terminal, so give --yes")
            if typer.prompt(f"type {device} to erase them for good") != device:
                raise LakeError("nothing is erased: that is not the device's name")
        # what is too old of other devices waits for `cloud-jobs maintain`: the counts above do not have it
        upkeep = settings.upkeep.model_copy(update=dict.fromkeys(RETENTIONS))
        run = Maintenance(lake, upkeep).run([asked])
        if not run.is_whole:
            raise LakeError(f"{'; '.join(run.all_errors)}. Run this again, also if another run was at work")
        counts = count_rows(lake, asked)
        if left := sum(count for table, count in counts.items() if table != "usage"):
            raise LakeError(f"{left:,} rows are left: another run wrote meanwhile; run this again")
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
    """What is asked for, of a device that the lake knows. Raises LakeError, BadParameter."""
    from cloud_jobs.lake.erasures import Erasure
    from cloud_jobs.maintenance.declaring import of_a_known_device

    since, before = first.replace(tzinfo=UTC), until.replace(tzinfo=UTC)
    if not since < before <= datetime.now(UTC):
        raise typer.BadParameter("--from is before --until, and --until is not in the future", param_hint="--until")
    whose = device_of(device)
    return of_a_known_device(settings.tables, Erasure(whose.tenant, whose.device, before, since))


def _log_access(settings: CloudSettings, command: str, asked: Erasure) -> None:
    from cloud_jobs.lake.coverage import TenantDevice
    from cloud_jobs.maintenance.personal import log_access

    whose = TenantDevice(str(asked.tenant), str(asked.device))
    log = settings.privacy.access_log
    log_access(settings.location, log, command, whose, since=asked.since, until=asked.before)
