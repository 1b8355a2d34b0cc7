"""`waybill alerts`: deliver alerts to webhooks, handle undelivered messages, and show alerts live."""

from __future__ import annotations

import sys
import time
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gateway.commands import checked_settings, errors_as_messages, run_daemon, say_warnings, show
from gateway.errors import GatewayError
from waybill.daemon.stack_folder import registered, stack_settings
from waybill.pulsar.pulsar_client import open_pulsar_client
from waybill.settings import load, name_advice, one_line, printable_json

if TYPE_CHECKING:
    from gateway.webhooks.config import NotifierSettings, WebhookSettings
    from gateway.webhooks.posting import SignedPost
    from gateway.webhooks.undelivered import UndeliveredEntry, UndeliveredMessage

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Show live alerts and deliver them to webhooks.")
ConfigOption = Annotated[
    Path,
    typer.Option(
        "--config",
        "-c",
        default_factory=stack_settings("notifier.toml"),
        help="The TOML file of settings. Default: notifier.toml of the local stack in $WAYBILL_STACK or var/local.",
        show_default=False,
    ),
]


@app.command()
def deliver(*, config: ConfigOption) -> None:
    """Post alerts and verdicts to webhooks by the alert rules, until SIGTERM.

    Exit status: 0 after SIGTERM; 1 an error; 70 an internal error; 78 for wrong settings.

    Example: waybill alerts deliver --config notifier.toml
    """
    with errors_as_messages("waybill alerts"):
        from gateway.webhooks.config import NotifierSettings
        from gateway.webhooks.service import NotifierService, problems, warnings

        settings = checked_settings(NotifierSettings, config, problems)
        found = warnings(settings, config, time.time())
        with registered("waybill alerts deliver", config, settings.status.host, settings.status.port):
            run_daemon("webhooks", settings.log, found, partial(NotifierService, settings))


@app.command("check-config")
def check_config(*, config: ConfigOption) -> None:
    """Check the settings file, then the files and addresses it refers to. List every mistake.

    Exit status: 0 no mistake; 78 wrong settings.

    Example: waybill alerts check-config --config notifier.toml
    """
    from gateway.webhooks.config import NotifierSettings
    from gateway.webhooks.service import problems, warnings

    with errors_as_messages("waybill alerts"):
        settings = checked_settings(NotifierSettings, config, problems)
    say_warnings(config, partial(warnings, settings, config))
    typer.echo(f"{config}: valid. Webhooks: {', '.join(sorted(settings.webhooks)) or 'none'}")


@app.command()
def status(
    *, config: ConfigOption, as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False
) -> None:
    """Show the status of the notifier. For a region's alert process use `fleet-gateway alerts status`.

    Exit status: 0 healthy; 1 unhealthy, unknown or no answer; 78 for wrong settings.

    Example: waybill alerts status --config notifier.toml
    """
    from gateway.status_answer import check_answering
    from gateway.webhooks.config import NotifierSettings
    from gateway.webhooks.status import notifier_table, read_notifier_status

    with errors_as_messages("waybill alerts"):
        settings = load(NotifierSettings, config)
        answer = read_notifier_status(settings.status)
        # each of several notifiers has tenants of its own
        answering, asked = (f"a notifier of {', '.join(sorted(one))}" for one in (answer.tenants, settings.tenants))
        check_answering(settings.status, answering, asked)
    show(answer, lambda: notifier_table(answer), as_json=as_json, is_good=bool(answer.healthy))


@app.command()
def tail(
    *,
    config: ConfigOption,
    tenant: Annotated[list[str] | None, typer.Option("--tenant", help="Only this tenant; may be repeated.")] = None,
    device: Annotated[list[str] | None, typer.Option("--device", help="Only this device; may be repeated.")] = None,
    kind: Annotated[
        list[str] | None, typer.Option("--kind", help="Only this kind: enter, exit, dwell ...; may be repeated.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")] = False,
) -> None:
    """Show new alerts and verdicts until Ctrl-C, with device time (UTC) and delay.

    The command does not affect delivery and creates no durable subscription. It shows messages published after it
    printed the header. Only terminals show colours.

    Times: `seen` from the device time until the region had the record, `raised` from there until the alert, `decided`
    from the device time until the verdict, `here` from the alert or the verdict until it could be read here.

    Exit status: 0 after Ctrl-C or SIGTERM; 1 when the cluster refuses access; 2 for an unknown tenant or kind; 78 for
    wrong settings.

    Example: waybill alerts tail --config notifier.toml --device bus-17 --kind enter
    """
    from rich.console import Console

    from gateway.webhooks.config import NotifierSettings
    from gateway.webhooks.service import alert_topics
    from gateway.webhooks.tail import HEADER, TailFilter, cluster_fault, json_line, table_line
    from gateway.webhooks.tail import tail as come
    from geo.alerts.rule import KINDS
    from waybill.daemon.signals import stop_on_signals

    for name in kind or ():
        if name not in KINDS:
            raise typer.BadParameter(f"{name!r} is not a kind: {', '.join(KINDS)}")
    with errors_as_messages("waybill alerts"):
        settings = load(NotifierSettings, config)
        for name in tenant or ():
            if name not in settings.tenants:
                known = f"{', '.join(settings.tenants)}{name_advice(name, settings.tenants)}"
                raise typer.BadParameter(f"the settings have no tenant {name!r}; they name: {known}")
        topics = [one for one in alert_topics(settings) if not tenant or one.tenant in tenant]
        wanted, console = TailFilter(device or (), kind or ()), Console(soft_wrap=True, highlight=False)
        with _client(settings) as client, stop_on_signals() as stop:
            found = come(client, topics, wanted, lambda: not stop.is_set(), partial(cluster_fault, settings.pulsar))
            # messages are shown from here on
            if not as_json:
                console.print(HEADER)
            for seen in found:
                if as_json:
                    sys.stdout.write(json_line(seen) + "\n")
                    sys.stdout.flush()
                else:
                    console.print(table_line(seen))


@contextmanager
def _client(settings: NotifierSettings) -> Iterator[object]:
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


# Undelivered messages.

undelivered = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Messages that could not be delivered.")
WebhookOption = Annotated[str | None, typer.Option("--webhook", help="Only messages for this webhook.")]
KeyOption = Annotated[str | None, typer.Option("--key", help="Only the message with this idempotency key.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")]


@undelivered.command("list")
def list_(
    *, config: ConfigOption, webhook: WebhookOption = None, key: KeyOption = None, as_json: AsJson = False
) -> None:
    """List undelivered messages with time, webhook and reason.

    Exit status: 0; 1 when the cluster refuses access, or another command reads the list; 2 for a webhook that neither
    the settings nor a message names; 78 for wrong settings.

    Example: waybill alerts undelivered list --config notifier.toml --webhook acme-ops
    """
    with _chosen(config, webhook, key, "" if as_json else "none") as entries:
        for one, _ in entries:
            at = f"{datetime.fromtimestamp(one.at_ms / 1000, UTC):%Y-%m-%d %H:%M:%S}Z"
            line = f"{at} {one.webhook} {one.key} {one.reason}, attempts {one.attempts}: {one.detail}"
            _say(line, one.model_dump() if as_json else None)


@undelivered.command()
def retry(
    *, config: ConfigOption, webhook: WebhookOption = None, key: KeyOption = None, as_json: AsJson = False
) -> None:
    """Send undelivered messages again with the same key and content. Delivered messages leave the list.

    Run the command where the secrets of the webhooks are stored.

    Exit status: 0 all were delivered, or the list was empty; 1 one was not delivered; 2 for a webhook that neither the
    settings nor a message names; 78 for wrong settings.

    Example: waybill alerts undelivered retry --config notifier.toml --webhook acme-ops
    """
    from gateway.webhooks.config import NotifierSettings
    from gateway.webhooks.posting import SignedPost

    results: list[bool] = []
    with errors_as_messages("waybill alerts"):
        webhooks = load(NotifierSettings, config).webhooks
        posts = {name: SignedPost(one) for name, one in webhooks.items()}
    with _chosen(config, webhook, key, "" if as_json else "nothing to send again") as entries:
        for message, remove in entries:
            is_taken, detail = posted(webhooks, posts, message)
            # after the server accepted it: a command that is killed in between posts it again
            if is_taken:
                remove()
            results.append(is_taken)
            facts = {"key": message.key, "webhook": message.webhook, "taken": is_taken, "detail": detail}
            said = "accepted" if is_taken else "not accepted"
            _say(f"{message.webhook} {message.key}: {said}: {detail}", facts if as_json else None)
    if not all(results):
        raise typer.Exit(1)


@undelivered.command()
def discard(
    *, config: ConfigOption, webhook: WebhookOption = None, key: KeyOption = None, as_json: AsJson = False
) -> None:
    """Discard undelivered messages permanently: all of a webhook, or one by key.

    Exit status: 0; 1 when the cluster refuses access, or another command reads the list; 2 without `--webhook` and
    `--key`, and for a webhook that neither the settings nor a message names; 78 for wrong settings.

    Example: waybill alerts undelivered discard --config notifier.toml --webhook acme-former
    """
    if webhook is None and key is None:
        raise typer.BadParameter("add --webhook or --key")
    with _chosen(config, webhook, key, "" if as_json else "nothing to discard") as entries:
        for message, remove in entries:
            remove()
            facts = {"key": message.key, "webhook": message.webhook}
            _say(f"{message.webhook} {message.key}: discarded", facts if as_json else None)


def posted(
    webhooks: Mapping[str, WebhookSettings], posts: Mapping[str, SignedPost], message: UndeliveredMessage
) -> tuple[bool, str]:
    """Whether the webhook accepted a message, and what its server answered or why it was not asked."""
    post = posts.get(message.webhook)
    if post is None:
        return False, "the settings have no webhook of this name"
    # whoever may write to the topic can name any rule and any webhook: the settings say who may receive what
    if foreign := webhooks[message.webhook].foreign_accounts(message.rules):
        return False, f"the webhook is not for account {foreign[0]}"
    outcome = post(message.delivery)
    return outcome.is_delivered, outcome.detail


def _say(line: str, facts: Mapping[str, Any] | None) -> None:
    sys.stdout.write((one_line(line) if facts is None else printable_json(facts)) + "\n")


@contextmanager
def _chosen(config: Path, webhook: str | None, key: str | None, none: str) -> Iterator[Iterator[UndeliveredEntry]]:
    """The entries that a command is for; prints `none` if there are none.

    Raises BadParameter if neither the settings nor an entry have the webhook.
    """
    from gateway.webhooks.config import NotifierSettings

    found = False

    def chosen() -> Generator[UndeliveredEntry, None, None]:
        nonlocal found
        for entry in _entries(settings):
            if webhook in {None, entry.message.webhook} and key in {None, entry.message.key}:
                found = True
                yield entry

    with errors_as_messages("waybill alerts"):
        settings = load(NotifierSettings, config)
        with closing(chosen()) as entries:
            yield entries
        if not found and webhook is not None and webhook not in settings.webhooks:
            known = f"{', '.join(sorted(settings.webhooks)) or 'none'}{name_advice(webhook, settings.webhooks)}"
            raise typer.BadParameter(f"the settings have no webhook {webhook!r}; they name: {known}")
    if none and not found:
        typer.echo(none)


def _entries(settings: NotifierSettings) -> Generator[UndeliveredEntry, None, None]:
    from gateway.webhooks.tail import cluster_fault
    from gateway.webhooks.undelivered import open_undelivered, undelivered_entries

    source = settings.pulsar
    opening = partial(open_pulsar_client, source.service_url, source.access, timeout_s=source.operation_timeout_s)
    for tenant in settings.tenants:
        topic = settings.undelivered_topic(tenant)
        with open_undelivered(opening, topic, partial(cluster_fault, source)) as consumer:
            yield from undelivered_entries(consumer, tenant)


app.add_typer(undelivered, name="undelivered")
