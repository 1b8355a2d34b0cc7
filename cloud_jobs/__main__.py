"""The command `cloud-jobs`. Each job's code is imported when it is called, so that `--help` needs no Spark."""

from __future__ import annotations

from typing import Annotated

import typer

from cloud_jobs.commands import Config, load_checked_settings, load_settings, registered_job
from cloud_jobs.measure import encounters, measure
from cloud_jobs.operator_commands import app as subject
from cloud_jobs.operator_commands import close, maintain, status, verdicts
from cloud_jobs.terminal import cloud_errors_as_messages
from waybill.daemon.process import add_version_option

app = typer.Typer(
    rich_markup_mode=None,
    name="cloud-jobs",
    help="The jobs of the centre: from Pulsar topics to records, usage and bills.",
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,
)
add_version_option(app, "cloud-jobs")
AsJson = Annotated[bool, typer.Option("--json", help="Print the result of each run as a line of JSON.")]
Follow = Annotated[bool, typer.Option("--follow", help="Process new records until stopped.")]


@app.command()
def ingest(
    config: Config,
    *,
    available_now: Annotated[
        bool, typer.Option("--available-now", help="Read the messages available now, then exit.")
    ] = False,
) -> None:
    """Read the telemetry topics into the records table, each record once.

    Exit status: 0 done, or ended by a signal; 1 when the job failed (with a message); 2 for wrong options; 75 when the
    object store of the lake does not answer; 78 for wrong settings.

    Example: cloud-jobs ingest --config cloud.toml
    """
    from cloud_jobs.ingest.job import run_ingest

    settings = load_settings(config)
    words = f"ingest{' --available-now' if available_now else ''}"
    with cloud_errors_as_messages("cloud-jobs"), registered_job(config, words, settings, serves=not available_now):
        run_ingest(settings, available_now=available_now)


@app.command()
def usage(
    config: Config,
    *,
    follow: Follow = False,
    as_json: AsJson = False,
) -> None:
    """Compute the usage of every device and hour whose records changed since the last run.

    Exit status: 0 done, or ended by a signal; 1 when the job failed (with a message); 2 for wrong options; 75 when the
    object store of the lake does not answer; 78 for wrong settings.

    Example: cloud-jobs usage --config cloud.toml --follow
    """
    from cloud_jobs.jobs import run_usage
    from cloud_jobs.run_result import start_report

    settings, words = load_settings(config), f"usage{' --follow' if follow else ''}"
    with cloud_errors_as_messages("cloud-jobs"), registered_job(config, words, settings, serves=follow):
        run_usage(settings, start_report(as_json=as_json), follow=follow)


@app.command()
def geofence(
    config: Config,
    *,
    follow: Follow = False,
    as_json: AsJson = False,
) -> None:
    """Compute events at fences and gates. Late records revise them.

    Exit status: 0 done, or ended by a signal; 1 when the job failed (with a message); 2 for wrong options; 75 when the
    object store of the lake does not answer; 78 for wrong settings.

    Example: cloud-jobs geofence --config cloud.toml --follow
    """
    from cloud_jobs.jobs import run_geofence
    from cloud_jobs.run_result import start_report

    settings, words = load_settings(config), f"geofence{' --follow' if follow else ''}"
    with cloud_errors_as_messages("cloud-jobs"), registered_job(config, words, settings, serves=follow):
        run_geofence(settings, start_report(as_json=as_json), follow=follow)


@app.command()
def proximity(
    config: Config,
    *,
    follow: Follow = False,
    as_json: AsJson = False,
) -> None:
    """Compute encounters of devices, each pair once. Late records revise them.

    Exit status: 0 done, or ended by a signal; 1 when the job failed (with a message); 2 for wrong options; 75 when the
    object store of the lake does not answer; 78 for wrong settings.

    Example: cloud-jobs proximity --config cloud.toml
    """
    from cloud_jobs.jobs import run_proximity
    from cloud_jobs.run_result import start_report

    settings, words = load_settings(config), f"proximity{' --follow' if follow else ''}"
    with cloud_errors_as_messages("cloud-jobs"), registered_job(config, words, settings, serves=follow):
        run_proximity(settings, start_report(as_json=as_json), follow=follow)


@app.command("check-config")
def check_config(config: Config) -> None:
    """Check the settings and print them.

    Example: cloud-jobs check-config --config cloud.toml
    """
    settings = load_checked_settings(config, with_life=True)
    # not on standard output: that is JSON
    clusters = ", ".join(cluster.name for cluster in settings.clusters)
    typer.echo(f"{config}: valid. Lake {settings.lake}, clusters {clusters}", err=True)
    if settings.spark.is_open():
        typer.echo(
            f"{config}: warning: {settings.spark.master} accepts code from anyone: set spark.authenticate on its"
            " daemons, and spark.secret_file here",
            err=True,
        )
    typer.echo(settings.model_dump_json(indent=2))


app.command()(close)
# these start no Spark: they work on files, topics and tables
app.add_typer(subject, name="subject")
app.command()(maintain)
app.command()(verdicts)
app.command()(status)
app.command()(measure)
app.command()(encounters)


if __name__ == "__main__":
    app()
