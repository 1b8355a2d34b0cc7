"""`waybill canary`: run it, check its settings, ask a running one, and write what has to be published for it."""

from __future__ import annotations

import json
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import structlog
import typer

from waybill.settings import SettingsError, load

if TYPE_CHECKING:
    from deploy.canary.config import CanarySettings
    from deploy.canary.status import CanaryStatus


_WIDTH: Final = None if sys.stdout.isatty() else 140
app = typer.Typer(
    rich_markup_mode=None,
    no_args_is_help=True,
    help="Run a canary vehicle with a known route and check every hop, from the broker to the invoice.",
)
ConfigOption = Annotated[Path, typer.Option("--config", "-c", help="The settings of the canary, a TOML file.")]


@app.command()
def run(*, config: ConfigOption) -> None:
    """Run the canary until SIGTERM.

    Exit status: 0 stopped by a signal, 1 it cannot go on, 78 for wrong settings.

    Example: waybill canary run --config canary.toml
    """
    settings = _checked(config)
    from deploy.canary.checks import warnings
    from deploy.canary.service import run_canary
    from waybill.daemon.logs import start_logging
    from waybill.daemon.signals import stop_on_signals

    start_logging(settings.log)
    for problem in warnings(settings, time.time()):
        structlog.get_logger("canary").warning("configuration", problem=problem)
    with _errors_as_messages(), stop_on_signals() as stop:
        run_canary(settings, stop)


@app.command("check-config")
def check_config(*, config: ConfigOption) -> None:
    """Check the settings file, then the files and addresses it refers to. List every mistake.

    Exit status: 0 no mistake, 78 wrong settings.

    Example: waybill canary check-config --config canary.toml
    """
    settings = _checked(config)
    from deploy.canary.checks import warnings

    for problem in warnings(settings, time.time()):
        typer.echo(f"{config}: warning: {problem}", err=True)
    watched = ", ".join(hop.value for hop in settings.watched)
    typer.echo(f"{config}: right. Canary {settings.tenant}/{settings.device} of region {settings.region}: {watched}")


@app.command()
def status(
    *,
    config: Annotated[
        list[Path],
        typer.Option("--config", "-c", help="The settings of the canary; repeat it for one table of several."),
    ],
    buckets: Annotated[bool, typer.Option("--buckets", help="Also show the service level of each minute.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show each hop of a running canary: colour, reason, latencies, counts and service level.

    Exit status: 0 each watched hop is green; 1 a hop is red; 2 a canary is given twice; 3 no hop is red, but one is
    unknown, or no canary answers; 78 for wrong settings.

    Example: waybill canary status --config canary.toml --buckets
    """
    known = _by_name(config)
    from deploy.canary.status import exit_status

    answers = {name: _answer(one) for name, one in known.items()}
    if as_json:
        said = {name: answer and answer.model_dump(mode="json") for name, answer in answers.items()}
        typer.echo(json.dumps(said if len(config) > 1 else next(iter(said.values())), indent=2))
    else:
        _print(answers, buckets=buckets)
    raise typer.Exit(exit_status([*answers.values()]))


def _by_name(config: Sequence[Path]) -> dict[str, CanarySettings]:
    """The settings of some files, each under its region; of a region that has several canaries, with the device."""
    known = [_settings(one) for one in config]
    times = Counter(one.region for one in known)
    found: dict[str, CanarySettings] = {}
    for file, one in zip(config, known, strict=True):
        name = one.region if times[one.region] == 1 else f"{one.region} {one.device}"
        if name in found:
            raise typer.BadParameter(f"{file}: the canary {one.device} of region {one.region} is named twice")
        found[name] = one
    return found


def _answer(settings: CanarySettings) -> CanaryStatus | None:
    """What a canary says; None, and a line on standard error: it does not answer."""
    from deploy.canary.errors import CanaryNotRunning
    from deploy.canary.status import read_canary_status

    try:
        return read_canary_status(settings)
    except CanaryNotRunning as error:
        typer.echo(f"waybill canary: {error}", err=True)
        return None


def _print(answers: Mapping[str, CanaryStatus | None], *, buckets: bool) -> None:
    from rich.console import Console

    from deploy.canary.status import buckets_table, regions_table, status_table

    console = Console(width=_WIDTH, highlight=False)
    if len(answers) > 1:
        console.print(regions_table(answers))
    for answer in answers.values():
        if answer is not None and (len(answers) == 1 or not answer.is_healthy):
            console.print(status_table(answer))
        if answer is not None and buckets:
            console.print(buckets_table(answer))


@app.command()
def setup(
    *,
    config: ConfigOption,
    out: Annotated[Path, typer.Option("--out", help="The folder for the files.")],
    since: Annotated[
        datetime | None,
        typer.Option("--since", help="Start of the contracts (UTC). Default: the first of this month."),
    ] = None,
    publish: Annotated[
        Path | None, typer.Option("--publish", help="Also publish them, with these settings of the jobs (TOML).")
    ] = None,
    key: Annotated[Path | None, typer.Option("--key", help="Your private key, for the signature.")] = None,
    replace: Annotated[bool, typer.Option("--replace", help="Overwrite existing files.")] = False,
) -> None:
    """Write the canary's fence, tariff, seller and account, and print how to publish them.

    Choose a place without traffic: any other device in the fence is metered there too.

    Exit status: 0 written (and published), 1 writing or publishing failed, 78 for wrong settings.

    Example: waybill canary setup --config canary.toml --out canary-eu
    """
    settings = _settings(config)
    from cloud_jobs.reference.commands import put
    from deploy.canary.reference import contracts_text, fence_text, write_reference

    # a month is billed as a whole: within it the account would be free for some of it
    begin = since or datetime.now(UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    reason = f"the canary of region {settings.region}"
    with _errors_as_messages():
        contracts = contracts_text(settings, begin.replace(tzinfo=begin.tzinfo or UTC))
        written = write_reference(out, fence_text(settings), contracts, replace=replace)
    typer.echo(f"written: {' and '.join(map(str, written))}")
    if publish is not None:
        put([out], config=publish, key=key, reason=reason)
        return
    typer.echo("to check and to publish them:")
    typer.echo(f"  waybill reference check {out} --lake {settings.lake or 'LAKE'}")
    typer.echo(f'  waybill reference put {out} --config cloud.toml --key YOUR.key --reason "{reason}"')


@contextmanager
def _errors_as_messages() -> Iterator[None]:
    from cloud_jobs.errors import CloudError
    from deploy.canary.errors import CanaryError
    from deploy.local import LocalStackError

    try:
        yield
    except (CanaryError, CloudError, LocalStackError, OSError) as error:
        typer.echo(f"waybill canary: {error}", err=True)
        raise typer.Exit(1) from error


def _settings(config: Path) -> CanarySettings:
    from deploy.canary.config import CanarySettings

    try:
        return load(CanarySettings, config)
    except SettingsError as error:
        typer.echo("\n".join(error.lines), err=True)
        raise typer.Exit(os.EX_CONFIG) from error


def _checked(config: Path) -> CanarySettings:
    """The settings, if the files that they name can be used here too."""
    settings = _settings(config)
    from deploy.canary.checks import problems

    if found := problems(settings):
        typer.echo("\n".join(f"{config}: {one}" for one in found), err=True)
        raise typer.Exit(os.EX_CONFIG)
    return settings
