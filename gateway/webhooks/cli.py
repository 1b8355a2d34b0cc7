"""`waybill alerts`: deliver them to webhooks, see what none took, and see alerts as they come."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import structlog
import typer

from gateway.errors import GatewayError, alert_errors_as_messages, last_line
from gateway.webhooks.undelivered_cli import app as undelivered
from waybill.identity.errors import IdentityError
from waybill.identity.names import did_you_mean
from waybill.pulsar.pulsar_client import PulsarAccessError, open_pulsar_client
from waybill.settings import SettingsError, load, printable_json

if TYPE_CHECKING:
    from gateway.webhooks.config import AlertReaderSettings, NotifierSettings

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Alerts as they come, and delivered to webhooks.")
app.add_typer(undelivered, name="undelivered")
ConfigOption = Annotated[Path, typer.Option("--config", "-c", help="The TOML file of settings.")]


@app.command()
def deliver(*, config: ConfigOption) -> None:
    """Post alerts and verdicts to webhooks as the alert rules say, until SIGTERM.

    Exit status: 0 after SIGTERM; 1 an error; 70 an internal one; 78 for wrong settings.

    Example: waybill alerts deliver --config notifier.toml
    """
    from gateway.webhooks.service import warnings
    from waybill.daemon.logs import start_logging

    with alert_errors_as_messages("waybill alerts"):
        settings = _checked_settings(config)
        limit = start_logging(settings.log)
        log = structlog.get_logger("webhooks")
        for problem in warnings(settings, config, time.time()):
            log.warning("configuration", problem=problem)
        from gateway.webhooks.service import NotifierService

        try:
            NotifierService(settings, lambda: limit.log_suppressed(log)).run()
        except (GatewayError, IdentityError, SettingsError, PulsarAccessError):
            raise
        except Exception as error:
            log.exception("stopped by an internal error", error=last_line(error))
            raise typer.Exit(os.EX_SOFTWARE) from error
        finally:
            limit.log_suppressed(log)


@app.command("check-config")
def check_config(*, config: ConfigOption) -> None:
    """Say whether the file can be used on this machine, and list the mistakes if not.

    Those of the file come first; of the files and places that it names something is said when it has none.

    Exit status: 0 it can; 78 it cannot.

    Example: waybill alerts check-config --config notifier.toml
    """
    from gateway.webhooks.service import warnings

    with alert_errors_as_messages("waybill alerts"):
        settings = _checked_settings(config)
    for problem in warnings(settings, config, time.time()):
        typer.echo(f"{config}: warning: {problem}", err=True)
    typer.echo(f"{config}: right. Webhooks: {', '.join(sorted(settings.webhooks)) or 'none'}")


@app.command()
def status(
    *, config: ConfigOption, as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False
) -> None:
    """Show what the process that delivers alerts with this file is doing. Of those that raise alerts in a region it is
    `fleet-gateway alerts status`.

    Exit status: 0 it is healthy; 1 it is not, or that is not known, or it does not answer; 78 for wrong settings.

    Example: waybill alerts status --config notifier.toml
    """
    from rich.console import Console

    from gateway.status_answer import check_answering
    from gateway.webhooks.config import NotifierSettings
    from gateway.webhooks.status import notifier_table, read_notifier_status

    with alert_errors_as_messages("waybill alerts"):
        settings = load(NotifierSettings, config)
        answer = read_notifier_status(settings.status)
        # of several, each has tenants of its own
        answering, asked = (f"a notifier of {', '.join(sorted(one))}" for one in (answer.tenants, settings.tenants))
        check_answering(settings.status, answering, asked)
    if as_json:
        sys.stdout.write(printable_json(answer, indent=2) + "\n")
    else:
        Console().print(notifier_table(answer))
    if not answer.healthy:
        raise typer.Exit(1)


@app.command()
def tail(
    *,
    config: ConfigOption,
    tenant: Annotated[list[str] | None, typer.Option("--tenant", help="Only of this tenant; may be repeated.")] = None,
    device: Annotated[list[str] | None, typer.Option("--device", help="Only of this device; may be repeated.")] = None,
    kind: Annotated[
        list[str] | None, typer.Option("--kind", help="Only of this kind: enter, exit, dwell ...; may be repeated.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object a line.")] = False,
) -> None:
    """Show alerts and verdicts as they come, until Ctrl-C: when it happened by the device (UTC), and how long it took.

    What is published from the header on is shown. It reads beside whoever delivers them, and leaves nothing behind.
    Of the settings it needs `tenants`, `regions` and `pulsar`. Colours are for terminals alone.

    Times: `seen` from the device time until the region had the record, `raised` from there until the alert, `decided`
    from the device time until the verdict, `here` from the alert or the verdict until it could be read here.

    Exit status: 0 after Ctrl-C or SIGTERM; 1 when the cluster does not let us read; 2 for a tenant that the settings do
    not have, or no kind; 78 for wrong settings.

    Example: waybill alerts tail --config notifier.toml --device bus-17 --kind enter
    """
    from rich.console import Console

    from gateway.webhooks.config import TailSettings
    from gateway.webhooks.service import alert_topics
    from gateway.webhooks.tail import HEADER, TailFilter, cluster_fault, json_line, table_line
    from gateway.webhooks.tail import tail as come
    from geo.alerts.rule import KINDS
    from waybill.daemon.signals import stop_on_signals

    for name in kind or ():
        if name not in KINDS:
            raise typer.BadParameter(f"{name!r} is no kind: {', '.join(KINDS)}")
    with alert_errors_as_messages("waybill alerts"):
        settings = load(TailSettings, config)
        for name in tenant or ():
            if name not in settings.tenants:
                near = did_you_mean(name, settings.tenants)
                raise typer.BadParameter(f"the settings have no tenant {name!r}: {near}{', '.join(settings.tenants)}")
        topics = [one for one in alert_topics(settings) if not tenant or one.tenant in tenant]
        wanted, console = TailFilter(device or (), kind or ()), Console(soft_wrap=True, highlight=False)
        with _client(settings) as client, stop_on_signals() as stop:
            found = come(client, topics, wanted, lambda: not stop.is_set(), partial(cluster_fault, settings.pulsar))
            # only now: what is published from here on is shown
            if not as_json:
                console.print(HEADER)
            for seen in found:
                if as_json:
                    sys.stdout.write(json_line(seen) + "\n")
                    sys.stdout.flush()
                else:
                    console.print(table_line(seen))


@contextmanager
def _client(settings: AlertReaderSettings) -> Iterator[object]:
    import pulsar

    from gateway.webhooks.tail import cluster_fault

    source = settings.pulsar
    client = open_pulsar_client(source.service_url, source.access, timeout_s=source.operation_timeout_s)
    try:
        yield client
    except pulsar.PulsarException as error:
        raise GatewayError(cluster_fault(source, error)) from error
    finally:
        client.close()


def _checked_settings(config: Path) -> NotifierSettings:
    from gateway.webhooks.config import NotifierSettings
    from gateway.webhooks.service import problems

    settings = load(NotifierSettings, config)
    if found := problems(settings):
        raise SettingsError(str(config), found)
    return settings
